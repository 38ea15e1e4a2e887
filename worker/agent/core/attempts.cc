#include <algorithm>

#include "proto/base/text.h"
#include "worker/agent/core/internal.h"

namespace swax::agent {
namespace {

uint32_t ranks_here(const Config& config, const pb::StartAttempt& start) {
  return static_cast<uint32_t>(
      std::count_if(start.ranks().begin(), start.ranks().end(),
                    [&config](const pb::RankPlace& r) { return r.node() == config.node; }));
}

uint64_t slots_used(const State& state) {
  uint64_t used = 0;
  for (const auto& [job, attempt] : state.attempts)
    if (attempt.phase != Phase::kEnded) used += attempt.ranks.size();
  return used;
}

uint64_t accepted_epoch(const State& state, const std::string& job) {
  const auto it = state.accepted.find(job);
  return it == state.accepted.end() ? 0 : it->second;
}

void accept_epoch(Context& ctx, const std::string& job, uint64_t epoch) {
  if (epoch <= accepted_epoch(ctx.state, job)) return;
  ctx.state.accepted[job] = epoch;
  SaveOutbox save;
  save.next_report = ctx.state.next_report;
  save.job = job;
  save.accepted_epoch = epoch;
  ctx.out.emplace_back(std::move(save));
}

// An attempt that is not running here and never will: the coordinator learns its end once more, or
// for the first time when it began under an earlier process of this agent, or never.
void ensure_ended(Context& ctx, const std::string& job, uint64_t epoch, std::string result,
                  std::string reason) {
  accept_epoch(ctx, job, epoch);
  if (end_is_queued(ctx.state, job, epoch)) return;
  pb::AttemptReport r;
  r.mutable_ended()->set_result(std::move(result));
  r.mutable_ended()->set_first_rank(-1);
  r.mutable_ended()->set_reason(std::move(reason));
  report(ctx, job, epoch, std::move(r));
}

void begin(Context& ctx, const pb::StartAttempt& start) {
  State& state = ctx.state;
  accept_epoch(ctx, start.job(), start.epoch());
  Attempt attempt;
  attempt.job = start.job();
  attempt.epoch = start.epoch();
  attempt.start = start;
  attempt.lead = start.lead() == ctx.config.node;
  attempt.since_ms = ctx.now();
  for (const pb::RankPlace& place : start.ranks())
    if (place.node() == ctx.config.node) attempt.ranks[place.rank()].heard_ms = ctx.now();
  state.attempts[start.job()] = std::move(attempt);
  ctx.out.emplace_back(Prepare{.start = start});
}

void end_attempt(Context& ctx, Attempt& attempt) {
  drop_proxies(ctx, attempt, "the attempt has ended");
  attempt.phase = Phase::kEnded;
  attempt.since_ms = ctx.now();
  pb::AttemptReport r;
  pb::AttemptEnded& ended = *r.mutable_ended();
  ended.set_result(attempt.result);
  ended.set_first_rank(attempt.first_rank);
  ended.set_reason(attempt.reason);
  ended.set_phase(attempt.first_phase);
  uint64_t step = 0;
  for (const auto& [rank, state] : attempt.ranks) step = std::max(step, state.step);
  ended.set_step(step);
  ended.set_exit_code(std::max(0, attempt.launcher_code));
  ended.set_signal(attempt.launcher_signal);
  const auto first = attempt.ranks.find(static_cast<uint32_t>(attempt.first_rank));
  if (attempt.first_rank >= 0 && first != attempt.ranks.end() && first->second.closed) {
    ended.set_exit_code(std::max(0, first->second.exit_code));
    ended.set_signal(first->second.signal);
  }
  if (attempt.behind) {
    const auto& [rank, state] = *attempt.behind;
    pb::RankEvidence& behind = *ended.mutable_behind();
    behind.set_rank(rank);
    behind.set_step(state.step);
    behind.set_phase(state.phase);
    behind.set_silent_ms(ctx.now() - state.heard_ms);
    behind.set_halted(state.halted);
  }
  attempt.kept.push_back(report(ctx, attempt.job, attempt.epoch, std::move(r)));
}

// A failing rank's line may not have carried its reason, or it had none yet. Of ranks that nobody
// saw fail, the first that left a reason is the one.
void take_failures(const std::vector<RankFailure>& failures, Attempt* attempt) {
  const bool in_order = attempt->result == "done" || attempt->result == "stopped" ||
                        attempt->result == "killed" || attempt->result == "hang";
  if (failures.empty() || in_order) return;
  if (attempt->first_rank < 0) {
    attempt->first_rank = static_cast<int32_t>(failures.front().rank);
    attempt->reason += "; rank " + to_text(uint64_t{failures.front().rank}) +
                       " left word: " + failures.front().text;
    return;
  }
  const auto first = attempt->ranks.find(static_cast<uint32_t>(attempt->first_rank));
  if (first == attempt->ranks.end() || !first->second.failure.empty()) return;
  for (const RankFailure& failure : failures)
    if (failure.rank == first->first) attempt->reason = failure.text;
}

void tell_log_loss(Context& ctx, const Attempt& attempt, int64_t rank, Attempt::LogLoss* loss) {
  loss->told = loss->dropped;
  pb::AttemptReport r;
  pb::EventRecord& event = *r.mutable_event();
  event.set_kind("log_dropped");
  event.set_epoch(attempt.epoch);
  event.set_text((rank < 0 ? launcher_name(attempt) : "rank " + to_text(rank)) +
                 " prints so much that " + bytes_text(loss->dropped) + " (" +
                 to_text(loss->dropped) +
                 " bytes) of its log are dropped; its beginning and its newest part are kept");
  report(ctx, attempt.job, attempt.epoch, std::move(r));
}

}  // namespace

Attempt* find_attempt(State& state, const std::string& job, uint64_t epoch) {
  const auto it = state.attempts.find(job);
  return it == state.attempts.end() || it->second.epoch != epoch ? nullptr : &it->second;
}

std::string launcher_name(const Attempt& attempt) {
  const std::string& name = attempt.start.spec().resources().launcher();
  return name.empty() ? "mpirun" : name;
}

void kill(Context& ctx, Attempt& attempt, std::string result, std::string reason) {
  if (attempt.phase == Phase::kKilling || attempt.phase == Phase::kEnded) return;
  if (attempt.result.empty()) {
    attempt.result = std::move(result);
    attempt.reason = std::move(reason);
  }
  attempt.phase = Phase::kKilling;
  attempt.since_ms = ctx.now();
  attempt.kill_ms = ctx.now();
  if (const auto* behind = furthest_behind(attempt)) attempt.behind = *behind;
  ctx.out.emplace_back(Kill{.job = attempt.job, .epoch = attempt.epoch});
}

void on_start(Context& ctx, const pb::StartAttempt& start) {
  State& state = ctx.state;
  const uint32_t mine = ranks_here(ctx.config, start);
  const uint64_t accepted = accepted_epoch(state, start.job());
  if (mine == 0 || start.epoch() < accepted) return;
  const auto it = state.attempts.find(start.job());
  Attempt* current = it == state.attempts.end() ? nullptr : &it->second;
  if (current != nullptr && current->epoch == start.epoch()) {
    if (current->phase == Phase::kEnded && !end_is_queued(state, start.job(), start.epoch()))
      report_kept(ctx, *current);
    return;
  }
  if (start.epoch() == accepted)
    return ensure_ended(ctx, start.job(), start.epoch(), "killed", "the node agent was restarted");
  if (state.leaving)
    return ensure_ended(ctx, start.job(), start.epoch(), "stopped", "the worker is leaving");
  if (current != nullptr && current->phase != Phase::kEnded) {
    kill(ctx, *current, "killed", "superseded by attempt " + to_text(uint64_t{start.epoch()}));
    state.waiting[start.job()] = start;
    return;
  }
  // What is being killed here needs its slots a little longer; START comes again.
  if (slots_used(state) + mine > ctx.config.slots) return;
  begin(ctx, start);
}

void on_stop(Context& ctx, const pb::StopAttempt& stop) {
  State& state = ctx.state;
  const auto waiting = state.waiting.find(stop.job());
  if (waiting != state.waiting.end() && waiting->second.epoch() <= stop.epoch())
    state.waiting.erase(waiting);
  Attempt* attempt = find_attempt(state, stop.job(), stop.epoch());
  if (attempt == nullptr) {
    if (stop.epoch() >= accepted_epoch(state, stop.job()))
      ensure_ended(ctx, stop.job(), stop.epoch(), "killed", "stopped before it ran here");
  } else if (attempt->phase == Phase::kEnded) {
    if (!end_is_queued(state, stop.job(), stop.epoch())) report_kept(ctx, *attempt);
  } else if (stop.mode() == pb::STOP_CHECKPOINT) {
    ask_stop(ctx, *attempt);
  } else {
    kill(ctx, *attempt, "killed", "stopped by the coordinator");
  }
}

void on_wanted(Context& ctx, const pb::HeartbeatReply& reply) {
  std::set<std::pair<std::string, uint64_t>> wanted;
  for (const pb::AttemptRef& ref : reply.wanted()) wanted.emplace(ref.job(), ref.epoch());
  for (auto& [job, attempt] : ctx.state.attempts)
    if (!wanted.contains({job, attempt.epoch}))
      kill(ctx, attempt, "killed", "the coordinator does not want it any more");
  std::erase_if(ctx.state.waiting, [&wanted](const auto& entry) {
    return !wanted.contains({entry.first, entry.second.epoch()});
  });
}

void on_prepared(Context& ctx, const Prepared& prepared) {
  Attempt* attempt = find_attempt(ctx.state, prepared.job, prepared.epoch);
  if (attempt == nullptr || attempt->phase != Phase::kPreparing) return;
  if (!prepared.ok)
    return kill(ctx, *attempt, prepared.retry ? "launch_failed" : "config_error", prepared.error);
  attempt->phase = Phase::kLaunching;
  attempt->since_ms = ctx.now();
  pb::AttemptReport r;
  r.mutable_launched();
  report(ctx, attempt->job, attempt->epoch, std::move(r));
  // mpirun asks for its daemons; srun's ranks come by themselves and must be expected.
  if (attempt->lead || launcher_name(*attempt) == "srun")
    ctx.out.emplace_back(Launch{.start = attempt->start});
}

void on_swept(Context& ctx, const Swept& swept) {
  Attempt* attempt = find_attempt(ctx.state, swept.job, swept.epoch);
  if (attempt == nullptr || attempt->phase != Phase::kKilling) return;
  take_failures(swept.failures, attempt);
  for (auto& [rank, loss] : attempt->log_loss)
    if (loss.dropped > loss.told) tell_log_loss(ctx, *attempt, rank, &loss);
  end_attempt(ctx, *attempt);
  const auto waiting = ctx.state.waiting.find(swept.job);
  if (waiting == ctx.state.waiting.end()) return;
  const pb::StartAttempt start = std::move(waiting->second);
  ctx.state.waiting.erase(waiting);
  on_start(ctx, start);
}

// Told when it has doubled, and at the end: a rank that prints for days is worth a line a day, not
// a second.
void on_log_cut(Context& ctx, const LogCut& cut) {
  Attempt* attempt = find_attempt(ctx.state, cut.job, cut.epoch);
  if (attempt == nullptr) return;
  Attempt::LogLoss& loss = attempt->log_loss[cut.rank];
  loss.dropped = std::max(loss.dropped, cut.dropped);
  if (loss.dropped > loss.told && loss.dropped >= 2 * loss.told)
    tell_log_loss(ctx, *attempt, cut.rank, &loss);
}

void ask_stop(Context& ctx, Attempt& attempt) {
  if (attempt.stop_ms || attempt.phase == Phase::kKilling || attempt.phase == Phase::kEnded) return;
  attempt.stop_ms = ctx.now();
  if (attempt.phase == Phase::kPreparing)
    return kill(ctx, attempt, "stopped", "stopped before it was launched");
  TellRank tell{.job = attempt.job, .epoch = attempt.epoch, .rank = -1, .message = {}};
  tell.message.set_stop(pb::STOP_CHECKPOINT);
  ctx.out.emplace_back(std::move(tell));
}

void tick_attempts(Context& ctx) {
  for (auto& [job, attempt] : ctx.state.attempts) {
    if (attempt.phase == Phase::kEnded) continue;
    if (attempt.phase == Phase::kKilling) {
      if (ctx.now() - attempt.kill_ms < ctx.config.kill_again_ms) continue;
      attempt.kill_ms = ctx.now();
      ctx.out.emplace_back(Kill{.job = job, .epoch = attempt.epoch});
      continue;
    }
    if (attempt.stop_ms && ctx.now() - *attempt.stop_ms >= ctx.config.stop_grace_ms)
      kill(ctx, attempt, "killed",
           "did not leave within " + duration_text(ctx.config.stop_grace_ms));
  }
}

}  // namespace swax::agent
