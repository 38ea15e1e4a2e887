#include "ops/cli/run_job.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "jobs/spec.h"
#include "ops/cli/client_events.h"
#include "ops/cli/client_job.h"
#include "ops/cli/output.h"
#include "ops/cli/run_prepare.h"
#include "ops/cli/run_result.h"
#include "proto/base/files.h"
#include "proto/base/hash.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int kPollMs = 100;
constexpr int64_t kAskMs = 2'000;
constexpr int64_t kRetentionMs = 3'000;

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + to_text(signal);
}

// The same for every typing of the command, so that a job is handed over once.
std::string submit_id(const StateDir& state, const pb::JobSpec& spec) {
  return xxh3_128("swax run\n" + state.root() + "\n" + numeric_id(spec).hex()).hex();
}

}  // namespace

RunJob::RunJob(const RunArgs& args, const StateDir& state, pb::JobSpec spec, RunService& service,
               ClientSession& session, RunSignals& signals)
    : args_(args),
      state_(state),
      spec_(std::move(spec)),
      service_(service),
      session_(session),
      signals_(signals),
      view_(&session, {.terminal = args.terminal, .total_steps = spec_.training().steps()}),
      slots_(spec_.parallelism().ranks()) {}

int RunJob::go() {
  if (const int code = find_job(); code >= 0) return code;
  if (const int code = start(); code >= 0) return code;
  watch();
  end_worker();
  return end();
}

int RunJob::find_job() {
  const pb::Reply reply = session_.read(status_request(spec_.job().name()));
  if (reply.code() == kExitNotFound) return submit();
  if (reply.code() != 0) return fail_reply(reply);
  return take_up(reply.jobs(0));
}

int RunJob::submit() {
  if (const Status fits = check_fit(spec_); !fits.ok()) return fail_input(fits);
  pb::Request request;
  *request.mutable_submit()->mutable_spec() = spec_;
  const pb::Reply reply = session_.ask(request, {}, submit_id(state_, spec_));
  return reply.code() == 0 ? -1 : fail_reply(reply);
}

// A job that has ended is shown; any other goes on, with the free fields that were typed now.
int RunJob::take_up(const pb::JobStatus& job) {
  if (job.state() == "HELD") {
    print_message("the run in " + state_.root() + " is held: " + one_line(job.message(), 1000));
    return kExitConflict;
  }
  view_.pass_over(job.events());
  slots_ = std::max(slots_, static_cast<uint32_t>(job.ranks_size()));
  const bool same = job.numeric_id() == numeric_id(spec_).hex();
  if (same && (job.state() == "SUCCEEDED" || job.state() == "FAILED")) {
    job_code_ = exit_code_of_job(job);
    return end();
  }
  if (const Status fits = check_fit(spec_); same && !fits.ok()) return fail_input(fits);
  pb::Request request;
  request.mutable_resume()->set_job(job.job());
  *request.mutable_resume()->mutable_spec() = spec_;
  const pb::Reply reply = session_.read(request);
  if (reply.code() == kExitConflict) {
    print_message(state_.root() + " holds another run: " + one_line(reply.error(), 1000) +
                  "; give the old values, or another --state");
    return kExitConflict;
  }
  return reply.code() == 0 ? -1 : fail_reply(reply);
}

int RunJob::start() {
  const std::string bytes = spec_.SerializeAsString();
  if (const Status s = write_atomic(state_.spec_path(), bytes); !s.ok()) return fail(s);
  const Status s = service_.start_worker(slots_);
  return s.ok() ? -1 : fail(s);
}

void RunJob::look() {
  const pb::Reply reply =
      session_.ask(status_request(spec_.job().name()), {.tries = 1, .total_ms = kAskMs});
  // A coordinator whose disk is stuck answers later.
  if (reply.code() != 0 || reply.jobs_size() != 1) return;
  view_.show(reply.jobs(0));
  job_code_ = exit_code_of_job(reply.jobs(0));
}

void RunJob::watch() {
  for (;;) {
    look();
    if (job_code_ >= 0 || service_.worker_ended()) return;
    hear_signals();
    signals_.wait(kPollMs);
  }
}

void RunJob::hear_signals() {
  while (const int signal = signals_.take()) {
    const bool first = stop_signal_ == 0;
    if (first) stop_signal_ = signal;
    view_.say(signal_name(signal) +
              (first ? ": the ranks write a checkpoint and leave; once more ends them at once"
                     : ": the ranks are killed"));
    service_.stop_worker(first);
  }
}

// Its ranks are gone by then, and what it had to tell is recorded.
void RunJob::end_worker() {
  if (stop_signal_ == 0) service_.stop_worker(true);
  while (!service_.worker_ended()) {
    hear_signals();
    signals_.wait(kPollMs / 5);
  }
}

// Old checkpoints are removed in the background; the result shows those that are kept.
void RunJob::wait_for_retention() {
  const auto keep = static_cast<int64_t>(std::max(1U, spec_.checkpoint().keep_latest_k()));
  pb::Request request;
  request.mutable_checkpoints()->set_job(spec_.job().name());
  SystemClock clock;
  const int64_t end_ms = clock.monotonic_ms() + kRetentionMs;
  while (clock.monotonic_ms() < end_ms) {
    const pb::Reply reply = session_.ask(request, {.tries = 1, .total_ms = kAskMs});
    const auto& rows = reply.checkpoints();
    const auto kept = std::count_if(rows.begin(), rows.end(), [](const pb::CheckpointStatus& row) {
      return row.state() == "COMMITTED";
    });
    if (reply.code() != 0 || kept <= keep) return;
    signals_.wait(kPollMs / 5);
  }
}

int RunJob::end() {
  if (job_code_ < 0) look();
  wait_for_retention();
  look();
  if (job_code_ < 0 && stop_signal_ != 0)
    view_.say("run stopped: " + signal_name(stop_signal_) +
              "; the same command goes on from the newest checkpoint");
  const bool stopped = service_.stop();
  const Result<RunView> view = load_run_view(state_);
  if (!view.ok()) return fail(view.status());
  RunInfo run = view->run;
  if (exit_code_of_run(run) < 0) run.state = "STOPPED";
  complete_from_history(state_, &run);
  if (run.state == "FAILED")
    view_.say("logs of the ranks: " + state_.logs_folder(run.spec.job().name(), run.epoch));
  print_run_result(state_, run, args_.output);
  const std::string trouble = service_.worker_trouble();
  if (!trouble.empty()) print_message(trouble);
  int code = exit_code_of_run(run);
  if (code < 0) code = stop_signal_ != 0 ? 128 + stop_signal_ : kExitInternal;
  if (!stopped) {
    print_message("the coordinator did not stop, its disk may be stuck; ending at once");
    ::_exit(finish_output(code));
  }
  return code;
}

}  // namespace swax
