// mpirun's daemons on other nodes: a launch proxy on the lead asks, the coordinator relays, the
// member starts the orted. Requests are repeated until the ranks are there; the member starts each
// proxy's daemon once.
#include <algorithm>

#include "proto/base/text.h"
#include "worker/agent/core/internal.h"

namespace swax::agent {
namespace {

constexpr int kRefused = 255;

// One program named orted, and no shell beside what mpirun itself writes in front of it.
bool is_orted(std::string_view command) {
  const auto words = split(command, ' ');
  return std::count_if(words.begin(), words.end(), [](std::string_view word) {
           const size_t slash = word.rfind('/');
           return (slash == std::string_view::npos ? word : word.substr(slash + 1)) == "orted";
         }) == 1;
}

void send_launch(Context& ctx, const Attempt& attempt, uint64_t id, Proxy& proxy) {
  proxy.sent_ms = ctx.now();
  if (!ctx.state.registered) return;
  pb::Envelope e;
  pb::LaunchRemote& launch = *e.mutable_launch_remote();
  launch.set_job(attempt.job);
  launch.set_epoch(attempt.epoch);
  launch.set_target(proxy.target);
  launch.set_proxy(id);
  launch.set_command(proxy.command);
  send(ctx, std::move(e));
}

void send_exited(Context& ctx, const std::string& job, uint64_t epoch, const std::string& lead,
                 uint64_t proxy, int exit_code, std::string reason) {
  pb::Envelope e;
  pb::RemoteExited& exited = *e.mutable_remote_exited();
  exited.set_job(job);
  exited.set_epoch(epoch);
  exited.set_lead(lead);
  exited.set_proxy(proxy);
  exited.set_exit_code(exit_code);
  exited.set_reason(std::move(reason));
  send(ctx, std::move(e));
}

bool live(const Attempt* attempt) {
  return attempt != nullptr &&
         (attempt->phase == Phase::kLaunching || attempt->phase == Phase::kRunning);
}

}  // namespace

void on_proxy_asks(Context& ctx, const ProxyAsks& asks) {
  Attempt* attempt = find_attempt(ctx.state, asks.job, asks.epoch);
  if (!live(attempt) || !attempt->lead) {
    ctx.out.emplace_back(ProxyDone{.proxy = asks.proxy,
                                   .exit_code = kRefused,
                                   .reason = "no such attempt is being launched here"});
    return;
  }
  Proxy& proxy = attempt->proxies[asks.proxy];
  proxy.target = asks.target;
  proxy.command = asks.command;
  send_launch(ctx, *attempt, asks.proxy, proxy);
}

void on_launch_remote(Context& ctx, const pb::LaunchRemote& launch) {
  if (launch.target() != ctx.config.node) return;
  Attempt* attempt = find_attempt(ctx.state, launch.job(), launch.epoch());
  // Not yet started here: START is on the way, and the request comes again.
  if (!live(attempt) || attempt->lead || attempt->remotes.contains(launch.proxy())) return;
  if (!is_orted(launch.command()))
    return send_exited(ctx, launch.job(), launch.epoch(), attempt->start.lead(), launch.proxy(),
                       kRefused, "only mpirun's daemon is started for others");
  attempt->remotes.insert(launch.proxy());
  attempt->daemons.insert(launch.proxy());
  ctx.out.emplace_back(RunRemote{.launch = launch, .lead = attempt->start.lead()});
}

void on_remote_ended(Context& ctx, const RemoteEnded& ended) {
  send_exited(ctx, ended.job, ended.epoch, ended.lead, ended.proxy, ended.exit_code, ended.reason);
  Attempt* attempt = find_attempt(ctx.state, ended.job, ended.epoch);
  if (attempt == nullptr) return;
  attempt->daemons.erase(ended.proxy);
  if (live(attempt) && nothing_runs(*attempt)) conclude(ctx, *attempt);
}

void on_remote_exited(Context& ctx, const pb::RemoteExited& exited) {
  Attempt* attempt = find_attempt(ctx.state, exited.job(), exited.epoch());
  if (attempt == nullptr || attempt->proxies.erase(exited.proxy()) == 0) return;
  ctx.out.emplace_back(ProxyDone{
      .proxy = exited.proxy(), .exit_code = exited.exit_code(), .reason = exited.reason()});
}

void tick_proxies(Context& ctx) {
  for (auto& [job, attempt] : ctx.state.attempts) {
    if (!live(&attempt) || attempt.step_reported) continue;
    for (auto& [id, proxy] : attempt.proxies)
      if (ctx.now() - proxy.sent_ms >= ctx.config.resend_ms) send_launch(ctx, attempt, id, proxy);
  }
}

void drop_proxies(Context& ctx, Attempt& attempt, const std::string& why) {
  for (const auto& [id, proxy] : attempt.proxies)
    ctx.out.emplace_back(ProxyDone{.proxy = id, .exit_code = kRefused, .reason = why});
  attempt.proxies.clear();
}

}  // namespace swax::agent
