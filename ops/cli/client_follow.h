// Follows a job at the coordinator until it ends, also through restarts of the coordinator: once it
// has answered, if only that it cannot write its state, its silence is said and waited out.
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ops/cli/client_session.h"
#include "proto/base/clock.h"

namespace swax {

class JobFollower {
 public:
  // timeout_ms 0: as long as it takes.
  JobFollower(ClientSession* session, std::string job, int64_t timeout_ms);

  // The newest status; nothing: it cannot be followed any longer, why is said on stderr, and
  // exit_code() tells: 3, 4, 5, 124 or, once the job has ended, its own.
  std::optional<pb::JobStatus> next();
  int exit_code() const { return exit_code_; }
  void pause(int64_t ms);  // ends earlier when the time is over
  // Who says that the coordinator is silent or back; unset: print_message.
  void on_message(std::function<void(const std::string&)> say) { say_ = std::move(say); }

 private:
  std::optional<pb::JobStatus> end(int exit_code);
  void say(const std::string& text) const;
  int64_t left_ms();

  ClientSession* session_;
  std::string job_;
  std::optional<int64_t> end_ms_;  // none: no limit
  SystemClock clock_;
  std::function<void(const std::string&)> say_;
  bool heard_ = false;  // ever
  bool lost_ = false;   // said that the coordinator is silent
  bool ended_ = false;  // the job has, its status was given
  int exit_code_ = 0;
};

struct FollowOptions {
  int64_t timeout_ms = 0;  // 0: none
  bool show = false;       // progress and events on stderr, as `swax run` shows them
};
struct Followed {
  int exit_code = 0;
  std::optional<pb::JobStatus> job;  // newest known
};
Followed follow_job(ClientSession* session, const std::string& job, const FollowOptions& options);

// The end of `wait`, `watch` and `submit --wait`: the job on stdout. `request_id`: also given in
// JSON when not empty.
void print_followed(const Followed& followed, const std::string& output,
                    const std::string& request_id);

}  // namespace swax
