#include <algorithm>

#include "proto/base/text.h"
#include "worker/agent/core/internal.h"

namespace swax::agent {
namespace {

constexpr int kDone = 0, kBadInput = 78, kNotFinite = 93, kLeft = 99;
constexpr int kSignalMax = 31;
constexpr int64_t kNsPerMs = 1'000'000;

struct End {
  std::string result, reason;
};

// The signal that an exit code stands for, or 0: 128 + n. Higher ones are other programs' own.
int signal_in(int exit_code) {
  return exit_code > 128 && exit_code <= 128 + kSignalMax ? exit_code - 128 : 0;
}

// What an exit code or signal means; who: "rank 3" or the launcher.
End end_of(int exit_code, int signal, const std::string& who, const std::string& failure) {
  if (signal == 0) signal = signal_in(exit_code);
  const std::string by_code = who + " ended with exit code " + to_text(exit_code);
  const std::string by_signal =
      who + " was killed by " + (signal != 0 ? "signal " + to_text(signal) : "a signal");
  const auto say = [&failure](const std::string& otherwise) {
    return failure.empty() ? otherwise : failure;
  };
  if (signal != 0) return {"signal", say(by_signal)};
  switch (exit_code) {
    case kDone:
      return {"done", ""};
    case kLeft:
      return {"stopped", "left on request"};
    case kNotFinite:
      return {"numeric", say("loss or gradient is not finite")};
    case kBadInput:
      return {"config_error", say(by_code)};
    case -1:  // unknown: a rank that fails by itself says why
      return failure.empty() ? End{"signal", by_signal} : End{"user_error", failure};
    default:
      return {"user_error", say(by_code)};
  }
}

// The code with which an attempt leaves when its ranks do not show theirs.
int orderly_code(const Attempt& attempt) {
  return (attempt.stop_ms || attempt.left) && !attempt.done ? kLeft : kDone;
}

bool orderly(const RankState& rank) {
  if (rank.signal != 0) return false;
  if (rank.exit_code == kDone || rank.exit_code == kLeft) return true;
  return rank.exit_code == -1 && rank.phase == "leaving";
}

void take_step(Context& ctx, Attempt& attempt, uint32_t rank, RankState& state,
               const pb::StepRecord& step) {
  state.step = std::max(state.step, uint64_t{step.step()});
  int64_t& slowest = attempt.slowest_step_ms[step.window()];
  const int64_t ms = step.step_ns() / kNsPerMs + 1;
  slowest = std::max(ms, slowest - slowest / 16);  // an old slow step is forgotten after a while
  attempt.step_reported = true;
  if (rank != 0) return;
  pb::AttemptReport r;
  *r.mutable_step() = step;
  report(ctx, attempt.job, attempt.epoch, std::move(r));
}

void take_durable(Context& ctx, Attempt& attempt, const pb::RankDurable& durable) {
  pb::AttemptReport r;
  *r.mutable_durable() = durable;
  attempt.kept.push_back(report(ctx, attempt.job, attempt.epoch, std::move(r)));
  std::set<uint64_t> steps;
  for (const pb::AttemptReport& kept : attempt.kept)
    if (kept.has_durable()) steps.insert(kept.durable().step());
  if (steps.size() <= 2) return;
  const uint64_t oldest_kept = *std::prev(steps.end(), 2);
  std::erase_if(attempt.kept, [oldest_kept](const pb::AttemptReport& kept) {
    return kept.has_durable() && kept.durable().step() < oldest_kept;
  });
}

void take_hello(Context& ctx, Attempt& attempt, uint32_t rank, RankState& state) {
  state.connected = true;
  if (attempt.phase == Phase::kLaunching) {
    attempt.phase = Phase::kRunning;
    attempt.since_ms = ctx.now();
  }
  if (!attempt.stop_ms) return;
  TellRank tell{.job = attempt.job,
                .epoch = attempt.epoch,
                .rank = static_cast<int32_t>(rank),
                .message = {}};
  tell.message.set_stop(pb::STOP_CHECKPOINT);
  ctx.out.emplace_back(std::move(tell));
}

void take_message(Context& ctx, Attempt& attempt, uint32_t rank, RankState& state,
                  const pb::RankMessage& m) {
  pb::AttemptReport r;
  switch (m.kind_case()) {
    case pb::RankMessage::kHello:
      return take_hello(ctx, attempt, rank, state);
    case pb::RankMessage::kPhase:
      state.phase = m.phase();
      return;
    case pb::RankMessage::kStep:
      return take_step(ctx, attempt, rank, state, m.step());
    case pb::RankMessage::kDurable:
      return take_durable(ctx, attempt, m.durable());
    case pb::RankMessage::kFailure:
      state.failure = m.failure();
      return;
    case pb::RankMessage::kValidation:
      *r.mutable_validation() = m.validation();
      break;
    case pb::RankMessage::kEvent:
      *r.mutable_event() = m.event();
      break;
    case pb::RankMessage::kDone:
      attempt.done = attempt.done || m.done().outcome() == "done";
      attempt.left = attempt.left || m.done().outcome() == "stopped";
      *r.mutable_done() = m.done();
      break;
    case pb::RankMessage::kReport:
      *r.mutable_hello() = m.report();
      break;
    case pb::RankMessage::KIND_NOT_SET:
      return;
  }
  report(ctx, attempt.job, attempt.epoch, std::move(r));
}

void refuse(Context& ctx, const RankSaid& said) {
  if (!said.message.has_hello()) return;
  TellRank tell{
      .job = said.job, .epoch = said.epoch, .rank = static_cast<int32_t>(said.rank), .message = {}};
  tell.message.set_refused("attempt " + to_text(said.epoch) + " of job " + said.job +
                           " does not run on this node");
  ctx.out.emplace_back(std::move(tell));
}

// Nothing but mpirun's code tells how it ended: a rank's own, a signal that took a rank, or what
// mpirun itself stumbled over.
void launcher_failed(Context& ctx, Attempt& attempt, const std::string& failure) {
  const int code = attempt.launcher_code;
  const bool by_rank = attempt.launcher_signal == 0 && signal_in(code) != 0;
  if (by_rank) attempt.launcher_signal = signal_in(code);
  End end =
      end_of(code, attempt.launcher_signal, by_rank ? "a rank" : launcher_name(attempt), failure);
  if (code > 128 && signal_in(code) == 0) end.result = "launch_failed";
  kill(ctx, attempt, end.result, end.reason);
}

}  // namespace

bool all_closed(const Attempt& attempt) {
  return std::all_of(attempt.ranks.begin(), attempt.ranks.end(),
                     [](const auto& rank) { return rank.second.closed; });
}

// A member that swept its daemon before mpirun is through would take the other nodes' ranks along.
bool nothing_runs(const Attempt& attempt) {
  const bool launcher_ended = attempt.lead ? attempt.launcher_code >= 0 : attempt.daemons.empty();
  return all_closed(attempt) && launcher_ended;
}

void on_rank_said(Context& ctx, const RankSaid& said) {
  Attempt* attempt = find_attempt(ctx.state, said.job, said.epoch);
  if (attempt == nullptr || attempt->phase == Phase::kPreparing || attempt->phase == Phase::kEnded)
    return refuse(ctx, said);
  const auto rank = attempt->ranks.find(said.rank);
  if (rank == attempt->ranks.end() || rank->second.closed) return refuse(ctx, said);
  rank->second.heard_ms = ctx.now();
  take_message(ctx, *attempt, said.rank, rank->second, said.message);
}

// The first rank that ends out of order is blamed, and the others, which wait for it, go at once.
void on_rank_closed(Context& ctx, const RankClosed& closed) {
  Attempt* attempt = find_attempt(ctx.state, closed.job, closed.epoch);
  if (attempt == nullptr || attempt->phase == Phase::kEnded) return;
  const auto it = attempt->ranks.find(closed.rank);
  if (it == attempt->ranks.end() || it->second.closed) return;
  RankState& rank = it->second;
  rank.closed = true;
  rank.exit_code = closed.exit_code;
  rank.signal = closed.signal;
  if (attempt->phase == Phase::kKilling) return;
  if (!orderly(rank) || !rank.connected) {
    attempt->first_rank = static_cast<int32_t>(closed.rank);
    attempt->first_phase = rank.phase;
    // Before it could say why: what it met may be gone at the next try.
    if (!rank.connected && rank.signal == 0)
      return kill(ctx, *attempt, "launch_failed",
                  "rank " + to_text(uint64_t{closed.rank}) + " ended before it reached its agent" +
                      (rank.exit_code >= 0 ? ", exit code " + to_text(rank.exit_code) : ""));
    const End end =
        end_of(rank.exit_code, rank.signal, "rank " + to_text(uint64_t{closed.rank}), rank.failure);
    return kill(ctx, *attempt, end.result, end.reason);
  }
  if (nothing_runs(*attempt)) conclude(ctx, *attempt);
}

void on_launcher_exited(Context& ctx, const LauncherExited& exited) {
  Attempt* attempt = find_attempt(ctx.state, exited.job, exited.epoch);
  if (attempt == nullptr || attempt->phase == Phase::kEnded) return;
  if (attempt->phase == Phase::kKilling) return;
  attempt->launcher_code = exited.signal != 0 ? 128 + exited.signal : exited.exit_code;
  attempt->launcher_signal = exited.signal;
  const bool none_came = std::none_of(attempt->ranks.begin(), attempt->ranks.end(),
                                      [](const auto& r) { return r.second.connected; });
  if (none_came)
    return kill(ctx, *attempt, "launch_failed",
                "no rank came up: " + launcher_name(*attempt) + " ended with exit code " +
                    to_text(attempt->launcher_code) +
                    (exited.log_tail.empty() ? "" : ": " + printable(exited.log_tail, 400)));
  // Ranks that are still open close in a moment and may say more; the watchdog does not wait long.
  attempt->since_ms = ctx.now();
  if (all_closed(*attempt)) conclude(ctx, *attempt);
}

// Only ranks that left in order come here, or those that mpirun left behind. They know best how it
// ended; mpirun often dislikes the way they leave, with codes of its own.
void conclude(Context& ctx, Attempt& attempt) {
  const bool all_left = std::all_of(attempt.ranks.begin(), attempt.ranks.end(), [](const auto& r) {
    return r.second.phase == "leaving" || r.second.closed;
  });
  const int launcher = attempt.launcher_code;
  const bool asked = attempt.stop_ms && launcher != kNotFinite && launcher != kBadInput;
  const bool told = all_left && (attempt.done || attempt.left || asked);
  int code = 0;
  std::string failure;
  for (const auto& [rank, state] : attempt.ranks) {
    if (code == 0 && state.closed) code = std::max(0, state.exit_code);
    if (failure.empty()) failure = state.failure;
  }
  if (code == 0 && launcher > 0 && !told) return launcher_failed(ctx, attempt, failure);
  const End end =
      end_of(code == 0 ? orderly_code(attempt) : code, 0, launcher_name(attempt), failure);
  kill(ctx, attempt, end.result, end.reason);
}

}  // namespace swax::agent
