// A job as people watch it on stderr: its events as they come and a line of progress, from what the
// coordinator tells. Threads: one.
#pragma once

#include <cstdint>
#include <string>

#include "ops/cli/client_session.h"
#include "ops/cli/run_progress.h"

namespace swax {

class JobView {
 public:
  struct Options {
    bool terminal = false;
    uint64_t total_steps = 0;
    uint64_t from_event = 1;
    bool waiting = false;  // also says what a job without a step is waiting for
  };
  JobView(ClientSession* session, const Options& options);

  void say(const std::string& line) { progress_.say(line); }
  void pass_over(uint64_t events) { next_event_ = events + 1; }
  // What is new since the last call. A coordinator that does not answer shows nothing.
  void show(const pb::JobStatus& job);

 private:
  void show_events(const pb::JobStatus& job);
  void show_step(const pb::JobStatus& job);

  ClientSession* session_;
  SystemClock clock_;
  RunProgress progress_;
  uint64_t next_event_;
  bool waiting_;
  std::string shown_state_;
};

}  // namespace swax
