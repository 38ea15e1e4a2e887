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

struct Dispatch {
  Context& ctx;
  void operator()(const Started&) const { on_started(ctx); }
  void operator()(const Tick&) const { on_tick(ctx); }
  void operator()(const FromCoordinator& e) const { on_coordinator(ctx, e.envelope); }
  void operator()(const NonceRead& e) const { on_nonce(ctx, e); }
  void operator()(const Prepared& e) const { on_prepared(ctx, e); }
  void operator()(const RankSaid& e) const { on_rank_said(ctx, e); }
  void operator()(const RankClosed& e) const { on_rank_closed(ctx, e); }
  void operator()(const LauncherExited& e) const { on_launcher_exited(ctx, e); }
  void operator()(const Swept& e) const { on_swept(ctx, e); }
  void operator()(const StopSignal& e) const { on_stop_signal(ctx, e.checkpoint); }
  void operator()(const ProxyAsks& e) const { on_proxy_asks(ctx, e); }
  void operator()(const RemoteEnded& e) const { on_remote_ended(ctx, e); }
};

}  // namespace

std::vector<Command> step(State& state, const Config& config, const Event& event) {
  std::vector<Command> out;
  Context ctx{.state = state, .config = config, .event = event, .out = out};
  std::visit(Dispatch{ctx}, event.body);
  if (ctx.flush) flush_reports(ctx);
  return out;
}

}  // namespace swax::agent
