#include "coordinator/core/internal.h"

namespace swax::coord {
namespace {

// What volatile state a running attempt and a waiting job need at the start of a process.
void on_started(Context& ctx) {
  Volatile& vol = ctx.state.vol;
  vol.resumed_ms = ctx.now();
  vol.return_by_ms = ctx.now() + ctx.config.reattach_ms;
  for (const auto& [name, job] : ctx.state.durable.jobs) {
    if (ctx.state.durable.held.contains(name)) continue;
    if (job.attempt_live) vol.live[name].started_ms = ctx.now();
    if (job.state == JobState::kBackoff) vol.retry_at_ms[name] = ctx.now() + job.retry_delay_ms;
    retire_old(ctx, name);
    if (!job_ended(job.state) && job.epoch > 0)
      ctx.out.commands.emplace_back(FindCommitted{.job = name});
  }
}

void on_tick(Context& ctx) {
  tick_workers(ctx);
  tick_attempts(ctx);
  if (ctx.now() - ctx.state.vol.last_reconcile_ms >= ctx.config.reconcile_ms) {
    ctx.state.vol.last_reconcile_ms = ctx.now();
    tick_checkpoints(ctx);
    for (Command& command : reconcile(ctx.state, ctx.config, ""))
      ctx.out.commands.push_back(std::move(command));
  }
  schedule(ctx);
  tick_growth(ctx);
}

void on_noted(Context& ctx, const Noted& noted) {
  const Job* job = find_job(ctx.state, noted.job);
  if (job == nullptr) return;
  pb::JobRecord r;
  *r.mutable_noted() = noted.note;
  record(ctx, noted.job, std::move(r));
}

}  // namespace

Output step(State& state, const Config& config, const Event& event) {
  Output out;
  Context ctx{.state = state, .config = config, .event = event, .out = out};
  grant_pause(state, config, event.now_ms);
  if (std::holds_alternative<Started>(event.body)) {
    on_started(ctx);
  } else if (std::holds_alternative<Tick>(event.body)) {
    on_tick(ctx);
  } else if (const auto* message = std::get_if<Message>(&event.body)) {
    on_message(ctx, *message);
  } else if (const auto* written = std::get_if<CommittedWritten>(&event.body)) {
    on_committed(ctx, *written);
  } else if (const auto* retired = std::get_if<Retired>(&event.body)) {
    on_retired(ctx, *retired);
  } else if (const auto* noted = std::get_if<Noted>(&event.body)) {
    on_noted(ctx, *noted);
  }
  return out;
}

}  // namespace swax::coord
