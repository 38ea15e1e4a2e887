// A rank that says nothing for too long in its phase hangs: the event names rank and phase, then
// the attempt is killed. A step is compared with steps of the same attention window only.
#include <algorithm>
#include <tuple>

#include "jobs/schedule.h"
#include "proto/base/text.h"
#include "worker/agent/core/internal.h"

namespace swax::agent {
namespace {

constexpr int64_t kCloseMs = 2000;  // mpirun has ended -> its ranks' sockets close

// Steps done so far is also the number of the step in work, from 0.
int64_t train_limit_ms(const Config& config, const Attempt& attempt, const RankState& rank) {
  const pb::JobSpec& spec = attempt.start.spec();
  const auto step = static_cast<int64_t>(rank.step);
  if (step < total_steps(spec)) {
    const auto known = attempt.slowest_step_ms.find(attention_window(spec, step));
    if (known != attempt.slowest_step_ms.end())
      return std::max(config.train_floor_ms, config.train_factor * known->second);
  }
  int64_t slowest = 0;
  for (const auto& [window, ms] : attempt.slowest_step_ms) slowest = std::max(slowest, ms);
  return std::max(config.launch_limit_ms, config.train_factor * slowest);
}

void hang(Context& ctx, Attempt& attempt, uint32_t rank, const RankState& state) {
  attempt.first_rank = static_cast<int32_t>(rank);
  attempt.first_phase = state.phase;
  const std::string text = "rank " + to_text(uint64_t{rank}) + " said nothing for " +
                           duration_text(ctx.now() - state.heard_ms) + " in phase " + state.phase +
                           (state.halted ? ": its process is stopped" : "");
  pb::AttemptReport r;
  pb::EventRecord& event = *r.mutable_event();
  event.set_kind("hang");
  event.set_epoch(attempt.epoch);
  event.set_step(state.step);
  event.set_text(text);
  report(ctx, attempt.job, attempt.epoch, std::move(r));
  kill(ctx, attempt, "hang", text);
}

bool runs(const RankState& rank) { return rank.connected && !rank.closed; }

void watch_ranks(Context& ctx, Attempt& attempt) {
  const bool silent = std::any_of(attempt.ranks.begin(), attempt.ranks.end(), [&](const auto& r) {
    return runs(r.second) &&
           ctx.now() - r.second.heard_ms > silence_limit_ms(ctx.config, attempt, r.second);
  });
  if (!silent) return;
  const auto* behind = furthest_behind(attempt);
  hang(ctx, attempt, behind->first, behind->second);
}

// Daemons on other nodes are asked for through the coordinator: while it is away, ranks that wait
// for theirs are not to blame.
bool waits_for_coordinator(Context& ctx, Attempt& attempt) {
  const bool alone = attempt.start.ranks_size() == static_cast<int>(attempt.ranks.size());
  if (ctx.state.registered || alone || attempt.phase == Phase::kPreparing) return false;
  bool waits = false;
  for (auto& [rank, state] : attempt.ranks) {
    if (state.phase != "launching") continue;
    state.heard_ms = ctx.now();
    waits = true;
  }
  if (waits) attempt.since_ms = ctx.now();
  return waits;
}

void watch(Context& ctx, Attempt& attempt) {
  const int64_t age_ms = ctx.now() - attempt.since_ms;
  if (attempt.launcher_code >= 0) {
    if (age_ms > kCloseMs) conclude(ctx, attempt);
    return;
  }
  if (attempt.phase == Phase::kPreparing) {
    if (age_ms > ctx.config.load_limit_ms)
      kill(ctx, attempt, "launch_failed", "data sets were not there in time");
    return;
  }
  if (waits_for_coordinator(ctx, attempt)) return;
  const bool all_came = std::all_of(attempt.ranks.begin(), attempt.ranks.end(),
                                    [](const auto& r) { return r.second.connected; });
  if (!all_came) {
    if (age_ms > ctx.config.launch_limit_ms)
      kill(ctx, attempt, "launch_failed",
           "not all ranks came up within " + duration_text(ctx.config.launch_limit_ms));
    return;
  }
  if (!all_closed(attempt)) return watch_ranks(ctx, attempt);
  int64_t closed_ms = 0;
  for (const auto& [rank, state] : attempt.ranks) closed_ms = std::max(closed_ms, state.heard_ms);
  if (ctx.now() - closed_ms > ctx.config.leave_limit_ms) conclude(ctx, attempt);
}

}  // namespace

int64_t silence_limit_ms(const Config& config, const Attempt& attempt, const RankState& rank) {
  if (rank.phase == "launching") return config.launch_limit_ms;
  if (rank.phase == "load" || rank.phase == "warmup") return config.load_limit_ms;
  if (rank.phase == "save") return config.save_limit_ms;
  if (rank.phase == "validate") return config.validate_limit_ms;
  if (rank.phase == "leaving") return config.leave_limit_ms;
  return train_limit_ms(config, attempt, rank);
}

const std::pair<const uint32_t, RankState>* furthest_behind(const Attempt& attempt) {
  const auto place = [](const RankState& rank) {
    return std::tuple(!rank.halted, rank.step, rank.heard_ms);
  };
  const std::pair<const uint32_t, RankState>* behind = nullptr;
  for (const auto& entry : attempt.ranks)
    if (runs(entry.second) && (behind == nullptr || place(entry.second) < place(behind->second)))
      behind = &entry;
  return behind;
}

void on_rank_halted(Context& ctx, const RankHalted& halted) {
  Attempt* attempt = find_attempt(ctx.state, halted.job, halted.epoch);
  if (attempt == nullptr) return;
  const auto rank = attempt->ranks.find(halted.rank);
  if (rank != attempt->ranks.end()) rank->second.halted = halted.halted;
}

void tick_watchdog(Context& ctx) {
  for (auto& [job, attempt] : ctx.state.attempts)
    if (attempt.phase != Phase::kKilling && attempt.phase != Phase::kEnded) watch(ctx, attempt);
}

}  // namespace swax::agent
