#include "worker/agent/core/internal.h"

namespace swax::agent {
namespace {

void on_started(Context& ctx) {
  load_outbox(ctx.state);
  ctx.state.heard_ms = ctx.now();
  say_hello(ctx);
}

void on_tick(Context& ctx) {
  tick_session(ctx);
  tick_attempts(ctx);
  tick_watchdog(ctx);
  tick_proxies(ctx);
  tick_outbox(ctx);
  tick_leaving(ctx);
}

// What ranks and the coordinator said during a pause of this process waits unread: nobody was
// silent.
void grant_pause(Context& ctx) {
  State& state = ctx.state;
  const int64_t gap_ms = ctx.now() - state.last_event_ms;
  state.last_event_ms = ctx.now();
  if (gap_ms <= ctx.config.pause_ms) return;
  state.heard_ms += gap_ms;
  for (auto& [job, attempt] : state.attempts) {
    attempt.since_ms += gap_ms;
    for (auto& [rank, r] : attempt.ranks) r.heard_ms += gap_ms;
  }
}

struct Dispatch {
  Context& ctx;
  void operator()(const Started&) const { on_started(ctx); }
  void operator()(const Tick&) const { on_tick(ctx); }
  void operator()(const FromCoordinator& e) const { on_coordinator(ctx, e.envelope); }
  void operator()(const NonceRead& e) const { on_nonce(ctx, e); }
  void operator()(const Prepared& e) const { on_prepared(ctx, e); }
  void operator()(const RankSaid& e) const { on_rank_said(ctx, e); }
  void operator()(const RankClosed& e) const { on_rank_closed(ctx, e); }
  void operator()(const RankHalted& e) const { on_rank_halted(ctx, e); }
  void operator()(const LauncherExited& e) const { on_launcher_exited(ctx, e); }
  void operator()(const Swept& e) const { on_swept(ctx, e); }
  void operator()(const LogCut& e) const { on_log_cut(ctx, e); }
  void operator()(const StopSignal& e) const { on_stop_signal(ctx, e.checkpoint); }
  void operator()(const ProxyAsks& e) const { on_proxy_asks(ctx, e); }
  void operator()(const RemoteEnded& e) const { on_remote_ended(ctx, e); }
};

}  // namespace

std::vector<Command> step(State& state, const Config& config, const Event& event) {
  std::vector<Command> out;
  Context ctx{.state = state, .config = config, .event = event, .out = out};
  grant_pause(ctx);
  std::visit(Dispatch{ctx}, event.body);
  if (ctx.flush) flush_reports(ctx);
  return out;
}

}  // namespace swax::agent
