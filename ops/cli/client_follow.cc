#include "ops/cli/client_follow.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "ops/cli/client_events.h"
#include "ops/cli/client_job.h"
#include "ops/cli/job_view.h"
#include "ops/cli/output.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kPollMs = 500, kTryMs = 2000;
constexpr uint64_t kEventsBefore = 4;

// Ends as the signal would, but leaves no half of a drawn line to the shell.
void leave_clean(int signal) {
  constexpr char kClear[] = "\r\x1b[K";
  (void)!::write(STDERR_FILENO, kClear, sizeof kClear - 1);
  ::raise(signal);  // once this handler has returned, by its default again
}

void expect_to_be_left() {
  if (!is_terminal(STDERR_FILENO)) return;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_DFL) continue;
    action.sa_handler = leave_clean;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace

JobFollower::JobFollower(ClientSession* session, std::string job, int64_t timeout_ms)
    : session_(session), job_(std::move(job)) {
  if (timeout_ms > 0) end_ms_ = clock_.monotonic_ms() + timeout_ms;
}

int64_t JobFollower::left_ms() { return end_ms_ ? *end_ms_ - clock_.monotonic_ms() : INT64_MAX; }

void JobFollower::say(const std::string& text) const {
  if (say_) {
    say_(text);
  } else {
    print_message(text);
  }
}

std::optional<pb::JobStatus> JobFollower::end(int exit_code) {
  exit_code_ = exit_code;
  return std::nullopt;
}

std::optional<pb::JobStatus> JobFollower::next() {
  if (ended_) return std::nullopt;
  for (;;) {
    const int64_t left = left_ms();
    if (left <= 0) {
      print_message("job " + one_line(job_, 64) + " has not ended; it goes on");
      return end(kExitWaitTimedOut);
    }
    const Patience patience = heard_ ? Patience{.tries = 1, .total_ms = std::min(left, kTryMs)}
                                     : Patience{.tries = 3, .total_ms = end_ms_ ? left : 0};
    const pb::Reply reply = session_->ask(status_request(job_), patience);
    if (reply.code() != kExitUnreachable) heard_ = true;
    if (may_pass(reply) && heard_) {
      if (!lost_) say(one_line(reply.error(), 500) + "; waiting for it");
      lost_ = true;
      pause(kPollMs);
      continue;
    }
    if (reply.code() != 0) return end(fail_reply(reply));
    if (reply.jobs_size() != 1) {
      print_message("the coordinator's answer has no job");
      return end(kExitInternal);
    }
    if (lost_) say("the coordinator answers again");
    lost_ = false;
    const int exit_code = exit_code_of_job(reply.jobs(0));
    ended_ = exit_code >= 0;
    if (ended_) exit_code_ = exit_code;
    if (reply.jobs(0).state() != "HELD") return reply.jobs(0);
    print_message("job " + one_line(job_, 64) + " is held: " + one_line(reply.jobs(0).message()));
    return end(kExitConflict);
  }
}

void JobFollower::pause(int64_t ms) {
  const int64_t wait = std::clamp<int64_t>(left_ms(), 0, ms);
  std::this_thread::sleep_for(std::chrono::milliseconds(wait));
}

Followed follow_job(ClientSession* session, const std::string& job, const FollowOptions& options) {
  JobFollower follower(session, job, options.timeout_ms);
  std::optional<JobView> view;
  Followed followed;
  if (options.show) expect_to_be_left();
  while (std::optional<pb::JobStatus> status = follower.next()) {
    if (options.show && !view) {
      const uint64_t events = status->events();
      view.emplace(session, JobView::Options{.terminal = is_terminal(STDERR_FILENO),
                                             .total_steps = status->total_steps(),
                                             .from_event = events - std::min(events, kEventsBefore),
                                             .waiting = true});
      follower.on_message([&view](const std::string& text) { view->say(text); });
    }
    if (view) view->show(*status);
    followed.job = std::move(status);
    if (exit_code_of_job(*followed.job) >= 0) break;
    follower.pause(kPollMs);
  }
  followed.exit_code = follower.exit_code();
  return followed;
}

void print_followed(const Followed& followed, const std::string& output,
                    const std::string& request_id) {
  if (!followed.job) return;
  if (output != "json") return print(job_text(*followed.job, nullptr));
  Json json = job_json(*followed.job);
  if (!request_id.empty()) json.set("request_id", request_id);
  print_line(json.text(false));
}

}  // namespace swax
