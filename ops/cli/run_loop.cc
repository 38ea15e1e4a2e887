#include "ops/cli/run_loop.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>

#include "ops/cli/run_budget.h"
#include "ops/cli/run_result.h"
#include "proto/base/failpoint.h"
#include "proto/base/files.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "worker/agent/attempt_folder.h"
#include "worker/agent/mpirun.h"

namespace swax {
namespace {

constexpr int64_t kFollowMs = 100;
constexpr int64_t kAskAgainMs = 1000;  // a rank that was not ready may have missed the first
constexpr int64_t kLeaveMs = 120'000;  // for the checkpoint of ranks that were asked to leave
constexpr int64_t kSlowSteps = 20;     // a hang is this many times the slowest step, at least

std::string after_text(int64_t wait_ms) {
  return wait_ms == 0 ? "starting again at once" : "starting again in " + duration_text(wait_ms);
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + to_text(signal);
}

}  // namespace

RunLoop::RunLoop(RunSetup setup, RunJournal& journal, RunSignals& signals, RunProgress& view,
                 Clock& clock)
    : setup_(std::move(setup)),
      journal_(journal),
      signals_(signals),
      view_(view),
      clock_(clock),
      bits_(journal.run().spec().training().steps()) {}

ReportFollower RunLoop::follow() {
  return ReportFollower(setup_.state, journal_.run().epoch(), journal_, bits_, clock_,
                        [this](const pb::EventRecord& event) { view_.event(event); });
}

Result<int> RunLoop::go() {
  const bool open = journal_.attempt_is_open();
  const uint64_t epoch = journal_.run().epoch();
  for (const std::string& problem : bits_.load_before(setup_.state, open ? epoch : epoch + 1))
    view_.say("record log left out from its damage on: " + problem);
  if (open) {
    ReportFollower left = follow();
    left.poll();
    if (left.progress().done && left.progress().done->outcome() == "done") {
      // It ended before its run could say so.
      SWAX_TRY(take_over());
      return succeed(*left.progress().done);
    }
    SWAX_TRY(take_over());
  }
  for (;;) {
    hear_signals(nullptr);
    if (stop_signal_ != 0) return stopped();
    SWAX_TRY(begin_attempt());
    SWAX_ASSIGN(const Ended ended, attempt());
    SWAX_TRY(record_end(ended));
    if (!refused_.empty()) return failed_precondition(refused_);
    SWAX_ASSIGN(const int code, judge(ended));
    if (code >= 0) return code;
  }
}

Status RunLoop::take_over() {
  view_.event(journal_.add("attempt_ended", journal_.run().progress_step(),
                           "its `swax run` was killed", {{"kind", "abandoned"}}));
  return journal_.write(true);
}

Status RunLoop::begin_attempt() {
  pb::RunRecord& run = journal_.run();
  run.set_epoch(run.epoch() + 1);
  const std::string ranks = to_text(uint64_t{run.spec().parallelism().ranks()});
  view_.event(journal_.add("attempt_started", run.progress_step(),
                           ranks + (ranks == "1" ? " rank" : " ranks"), {{"ranks", ranks}}));
  SWAX_TRY(journal_.write(true));
  SWAX_FAILPOINT("run.attempt_recorded");
  return ok();
}

Result<std::unique_ptr<Gang>> RunLoop::launch() {
  const pb::RunRecord& run = journal_.run();
  const StateDir& state = setup_.state;
  const int ranks = static_cast<int>(run.spec().parallelism().ranks());
  const std::string epoch = to_text(uint64_t{run.epoch()});
  const std::string folder = state.attempt_folder(run.epoch());
  SWAX_TRY(make_attempt_folder(folder));
  SWAX_TRY(make_dirs(state.logs_folder(run.epoch())));
  SWAX_TRY(make_dirs(state.records_folder()));
  MpirunPlan plan;
  plan.mpirun = setup_.mpirun;
  plan.ranks = ranks;
  plan.session_folder = session_folder(folder);
  plan.root = ::geteuid() == 0;
  // The checkpoint writers and this process need a core now and then.
  plan.share_cores = ranks >= static_cast<int>(std::thread::hardware_concurrency());
  plan.program = {setup_.train_program, "train",   "--spec", state.spec_path(), "--state",
                  state.root(),         "--epoch", epoch,    "--ranks",         to_text(ranks)};
  for (const std::string& data : setup_.data.folders) {
    plan.program.push_back("--data");
    plan.program.push_back(data);
  }
  GangPlan gang;
  gang.ranks = ranks;
  gang.attempt_folder = folder;
  gang.launch.arguments = mpirun_arguments(plan);
  gang.launch.environment =
      rank_environment(current_environment(),
                       {"SWAX_JOB=" + run.spec().job().name(), "SWAX_STATE=" + state.root(),
                        "SWAX_EPOCH=" + epoch, "SWAX_WORKER=local", "OPENBLAS_NUM_THREADS=1"},
                       plan.root);
  gang.launch.output_path = state.mpirun_log_path(run.epoch());
  gang.launch.working_folder = state.root();
  return Gang::start(gang, clock_);
}

Result<RunLoop::Ended> RunLoop::attempt() {
  SWAX_ASSIGN(const std::unique_ptr<Gang> gang, launch());
  SWAX_FAILPOINT("run.launched");
  ReportFollower follower = follow();
  Ended ended;
  watch(gang.get(), &follower, &ended.hang);
  follower.poll();  // what was written up to the end
  ended.end = gang->end();
  ended.progress = follower.progress();
  return ended;
}

void RunLoop::watch(Gang* gang, ReportFollower* follower, bool* hang) {
  while (!gang->ended()) {
    gang->wait(kFollowMs, signals_.fd());
    follower->poll();
    const AttemptProgress& progress = follower->progress();
    view_.update(progress);
    hear_signals(gang);
    const bool other_build =
        progress.hello && !setup_.build_id.empty() && progress.hello->build_id() != setup_.build_id;
    if (other_build && refused_.empty()) {
      refused_ = setup_.train_program + " is of build " + progress.hello->build_id() +
                 ", this program of " + setup_.build_id + ": build both again";
      gang->kill(refused_);
    }
    const int64_t silent_ms = clock_.monotonic_ms() - progress.heard_ms;
    if (silent_ms > std::max(setup_.hang_ms, kSlowSteps * progress.slowest_step_ms)) {
      *hang = true;
      gang->kill("no report for " + duration_text(silent_ms));
    }
  }
}

void RunLoop::hear_signals(Gang* gang) {
  const int64_t now_ms = clock_.monotonic_ms();
  while (const int signal = signals_.take()) {
    if (stop_signal_ == 0) {
      stop_signal_ = signal;
      stop_ms_ = now_ms;
      if (gang != nullptr)
        view_.say(signal_name(signal) +
                  ": the ranks write a checkpoint and leave; once more ends "
                  "them at once");
    } else if (gang != nullptr) {
      gang->kill("ended by a second " + signal_name(signal));
    }
  }
  if (gang == nullptr || stop_signal_ == 0 || gang->ended()) return;
  if (now_ms - stop_ms_ > kLeaveMs)
    return gang->kill("no checkpoint within " + duration_text(kLeaveMs));
  if (asked_ms_ != 0 && now_ms - asked_ms_ < kAskAgainMs) return;
  asked_ms_ = now_ms;
  gang->ask_to_leave();
}

void RunLoop::pause(int64_t ms) {
  const int64_t end_ms = clock_.monotonic_ms() + ms;
  while (stop_signal_ == 0 && clock_.monotonic_ms() < end_ms) {
    pollfd p{.fd = signals_.fd(), .events = POLLIN, .revents = 0};
    ::poll(&p, 1, static_cast<int>(std::max<int64_t>(1, end_ms - clock_.monotonic_ms())));
    hear_signals(nullptr);
  }
}

Status RunLoop::record_end(const Ended& ended) {
  const GangEnd& end = ended.end;
  EventFields fields{{"kind", ended.hang ? "hang" : kind_name(end.kind)}};
  if (end.first_rank >= 0) fields.push_back({"first_rank", to_text(end.first_rank)});
  if (end.signal != 0) fields.push_back({"signal", signal_name(end.signal)});
  if (end.exit_code != 0) fields.push_back({"exit_code", to_text(end.exit_code)});
  if (ended.progress.divergences > 0)
    fields.push_back({"diverged_steps", to_text(ended.progress.divergences)});
  const uint64_t step = ended.progress.step ? ended.progress.step->step() : 0;
  const std::string text = end.reason.empty() ? kind_name(end.kind) : end.reason;
  view_.event(journal_.add("attempt_ended", step, text, fields));
  const std::string folder = setup_.state.attempt_folder(journal_.run().epoch());
  if (const Status s = remove_attempt_folder(folder); !s.ok())
    log_warn("run", "attempt folder not removed", {{"reason", s.message()}});
  SWAX_TRY(journal_.write(true));
  SWAX_FAILPOINT("run.attempt_end_recorded");
  return ok();
}

Result<int> RunLoop::judge(const Ended& ended) {
  const GangEnd& end = ended.end;
  const bool reported = ended.progress.done && ended.progress.done->outcome() == "done";
  if (end.kind == GangEnd::Kind::kDone && reported) return succeed(*ended.progress.done);
  if (end.kind == GangEnd::Kind::kNotFinite)
    return fail_job(end.reason.empty() ? "the loss or a gradient is not finite" : end.reason);
  if (end.kind == GangEnd::Kind::kBadInput) return fail_job(end.reason);
  if (stop_signal_ != 0) return stopped();
  const bool silent = end.kind == GangEnd::Kind::kDone;  // done, and no report says so
  AttemptFacts facts;
  facts.kind = silent ? GangEnd::Kind::kExit : end.kind;
  facts.hang = ended.hang;
  facts.progressed = ended.progress.progressed;
  const BudgetVerdict verdict = count_attempt(facts, &journal_.run());
  if (!verdict.again)
    return fail_job(verdict.exhausted +
                    "; the last one: " + (end.reason.empty() ? kind_name(end.kind) : end.reason));
  SWAX_TRY(journal_.write(true));
  view_.say(after_text(verdict.wait_ms));
  pause(verdict.wait_ms);
  return -1;
}

Result<int> RunLoop::succeed(const pb::DoneReport& done) {
  pb::RunRecord& run = journal_.run();
  run.set_state("SUCCEEDED");
  run.set_reason("");
  run.set_digest(done.digest());
  run.set_progress_step(std::max(run.progress_step(), done.step()));
  // An attempt that found everything done made no step and knows no loss.
  const auto known = [](uint64_t bits) {
    return bits != 0 && std::isfinite(std::bit_cast<double>(bits));
  };
  if (known(done.loss_bits())) run.set_loss_bits(done.loss_bits());
  if (known(done.validation_bpb_bits())) run.set_validation_bpb_bits(done.validation_bpb_bits());
  if (done.tokens_per_s() > 0.0) run.set_tokens_per_s(done.tokens_per_s());
  view_.event(journal_.add("run_ended", done.step(), "SUCCEEDED", {{"digest", done.digest()}}));
  SWAX_TRY(journal_.write(true));
  return kExitOk;
}

Result<int> RunLoop::fail_job(const std::string& reason) {
  pb::RunRecord& run = journal_.run();
  run.set_state("FAILED");
  run.set_reason(reason);
  view_.event(journal_.add("run_ended", run.progress_step(), "FAILED: " + reason));
  SWAX_TRY(journal_.write(true));
  view_.say("logs of the ranks: " + setup_.state.logs_folder(run.epoch()));
  return kExitJobFailed;
}

Result<int> RunLoop::stopped() {
  const std::string name = signal_name(stop_signal_);
  view_.event(journal_.add("run_stopped", journal_.run().progress_step(),
                           name + "; the same command goes on from the newest checkpoint",
                           {{"signal", name}}));
  SWAX_TRY(journal_.write(true));
  return 128 + stop_signal_;
}

}  // namespace swax
