// Reports leave in the order of their indexes and stay until they are acknowledged. A message is a
// run of the outbox and names the report before it (`after`), so that the receiver sees every hole.
#include <algorithm>

#include "worker/agent/core/internal.h"

namespace swax::agent {
namespace {

constexpr int kMessagesMax = 4;  // at once; the rest follows the acknowledgement

// Only step reports may be lost, the oldest first.
void drop_steps(Context& ctx) {
  State& state = ctx.state;
  while (state.outbox_steps.size() > ctx.config.outbox_steps_max) {
    const uint64_t oldest = *state.outbox_steps.begin();
    state.outbox_steps.erase(state.outbox_steps.begin());
    state.outbox.erase(oldest);
    if (oldest <= state.saved_through) state.dropped.push_back(oldest);
    ++state.steps_dropped;
  }
}

void save(Context& ctx) {
  State& state = ctx.state;
  SaveOutbox save;
  for (auto it = state.outbox.upper_bound(state.saved_through); it != state.outbox.end(); ++it)
    save.add.push_back(it->second);
  if (save.add.empty() && state.acknowledged <= state.forgotten && state.dropped.empty()) return;
  save.drop = std::move(state.dropped);
  state.dropped.clear();
  save.drop_through = state.acknowledged;
  save.next_report = state.next_report;
  state.forgotten = state.acknowledged;
  state.saved_through = state.next_report - 1;
  ctx.out.emplace_back(std::move(save));
}

// False: nothing is left to send.
bool send_run(Context& ctx) {
  State& state = ctx.state;
  auto it = state.outbox.upper_bound(state.sent_through);
  if (it == state.outbox.end()) return false;
  pb::Envelope e;
  pb::AttemptReports& reports = *e.mutable_attempt_reports();
  if (it != state.outbox.begin()) reports.set_after(std::prev(it)->first);
  uint64_t bytes = 0;
  for (; it != state.outbox.end(); ++it) {
    bytes += it->second.ByteSizeLong();
    if (bytes > ctx.config.send_bytes_max && !reports.reports().empty()) break;
    *reports.add_reports() = it->second;
    state.sent_through = it->first;
  }
  state.sent_ms = ctx.now();
  send(ctx, std::move(e));
  return true;
}

}  // namespace

const pb::AttemptReport& report(Context& ctx, const std::string& job, uint64_t epoch,
                                pb::AttemptReport r) {
  State& state = ctx.state;
  r.set_index(state.next_report++);
  r.set_job(job);
  r.set_epoch(epoch);
  r.set_wall_ms(ctx.event.wall_ms);
  const bool step = r.has_step();
  const auto it = state.outbox.emplace(r.index(), std::move(r)).first;
  if (step) {
    state.outbox_steps.insert(it->first);
    drop_steps(ctx);
  } else {
    ctx.flush = true;
  }
  return it->second;
}

void flush_reports(Context& ctx) {
  save(ctx);
  if (!ctx.state.registered) return;
  for (int i = 0; i < kMessagesMax; ++i)
    if (!send_run(ctx)) return;
}

void tick_outbox(Context& ctx) {
  State& state = ctx.state;
  if (!state.outbox.empty() && ctx.now() - state.sent_ms >= ctx.config.resend_ms)
    state.sent_through = 0;
  flush_reports(ctx);
  ctx.flush = false;
}

void on_acknowledged(Context& ctx, const pb::ReportsAcknowledged& acknowledged) {
  State& state = ctx.state;
  const uint64_t index = std::min<uint64_t>(acknowledged.index(), state.next_report - 1);
  if (index > state.acknowledged) {
    state.acknowledged = index;
    state.outbox.erase(state.outbox.begin(), state.outbox.upper_bound(index));
    state.outbox_steps.erase(state.outbox_steps.begin(), state.outbox_steps.upper_bound(index));
    state.sent_through = std::max(state.sent_through, index);
    state.sent_ms = ctx.now();
    ctx.flush = true;
  }
  for (const pb::AttemptRef& ref : acknowledged.ended()) {
    const Attempt* attempt = find_attempt(state, ref.job(), ref.epoch());
    if (attempt != nullptr && attempt->phase == Phase::kEnded) state.attempts.erase(ref.job());
  }
}

void load_outbox(State& state) {
  state.outbox_steps.clear();
  for (const auto& [index, r] : state.outbox)
    if (r.has_step()) state.outbox_steps.insert(index);
  if (!state.outbox.empty())
    state.next_report = std::max(state.next_report, state.outbox.rbegin()->first + 1);
  state.saved_through = state.next_report - 1;
}

bool end_is_queued(const State& state, const std::string& job, uint64_t epoch) {
  return std::any_of(state.outbox.begin(), state.outbox.end(), [&](const auto& entry) {
    return entry.second.has_ended() && entry.second.job() == job && entry.second.epoch() == epoch;
  });
}

void report_kept(Context& ctx, Attempt& attempt) {
  for (pb::AttemptReport& kept : attempt.kept)
    if (!ctx.state.outbox.contains(kept.index()))
      kept = report(ctx, attempt.job, attempt.epoch, kept);
}

}  // namespace swax::agent
