#include <algorithm>

#include "coordinator/core/internal.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

constexpr uint32_t kSlotsMax = 65536;

bool good_name(std::string_view name) {
  if (name.empty() || name.size() > 63) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

struct Refusal {
  std::string text;
  bool final = false;
};

std::optional<Refusal> refuse(const Context& ctx, const pb::Envelope& e, const Worker* holder) {
  const pb::Hello& hello = e.hello();
  if (!good_name(e.node()))
    return Refusal{"worker name " + printable(e.node()) + ": must match [A-Za-z0-9._-]{1,63}",
                   true};
  if (hello.slots() > kSlotsMax)
    return Refusal{"slots=" + to_text(uint64_t{hello.slots()}) + ": must be 0..65536", true};
  if (holder != nullptr && holder->state_id != hello.state_id() && !holder->lost)
    return Refusal{"another worker holds the name " + e.node() + " (host " +
                       printable(holder->host) + "): give this one another name, or wait until " +
                       "that one is lost",
                   false};
  if (holder != nullptr && holder->state_id == hello.state_id() &&
      e.incarnation() < holder->incarnation)
    return Refusal{"a later start of worker " + e.node() + " is registered", true};
  if (hello.store_nonce() != ctx.config.store_nonce)
    return Refusal{hello.store_nonce().empty()
                       ? std::string()
                       : "the worker does not see the coordinator's store at " + ctx.config.store +
                             ": mount it at this path on every node",
                   false};
  return {};
}

void send_welcome(Context& ctx, uint64_t peer, const pb::Envelope& to,
                  const std::optional<Refusal>& refusal) {
  Worker stranger;
  stranger.node = to.node();
  stranger.incarnation = to.incarnation();
  stranger.peer = peer;
  pb::Envelope e;
  pb::Welcome& welcome = *e.mutable_welcome();
  welcome.set_heartbeat_ms(static_cast<uint32_t>(ctx.config.heartbeat_ms));
  welcome.set_lost_ms(static_cast<uint32_t>(ctx.config.lost_ms));
  welcome.set_store(ctx.config.store);
  welcome.set_store_nonce_file(ctx.config.store_nonce_file);
  welcome.set_accepted(!refusal);
  if (refusal) {
    welcome.set_refusal(refusal->text);
    welcome.set_final(refusal->final);
  }
  send_to(ctx, stranger, std::move(e));
}

// What was read right after a pause may have been sent before its sender turned away.
void hear(const Context& ctx, Worker& worker) {
  worker.heard_ms = ctx.now();
  if (ctx.now() - ctx.state.vol.resumed_ms >= ctx.config.heartbeat_ms) worker.away = false;
}

void take_attempts(Worker& worker,
                   const google::protobuf::RepeatedPtrField<pb::RunningAttempt>& attempts) {
  if (attempts.empty() && worker.attempts.empty()) return;
  worker.attempts.clear();
  for (const pb::RunningAttempt& a : attempts) worker.attempts[{a.job(), a.epoch()}] = a;
}

// What the report of a worker says about attempts: progress, and ends that it may forget.
void look_at_attempts(Context& ctx, const Worker& worker) {
  for (const auto& [key, attempt] : worker.attempts) {
    const Job* job = find_job(ctx.state, key.first);
    const bool current = job != nullptr && job->attempt_live && job->epoch == key.second;
    if (!current && attempt.phase() == "ended") tell_ended(ctx, worker, key.first, key.second);
    AttemptLive* live = find_live(ctx.state, key.first);
    if (!current || live == nullptr) continue;
    live->step = std::max(live->step, attempt.step());
    if (worker.node == job->lead) live->phase = attempt.phase();
  }
}

void on_hello(Context& ctx, uint64_t peer, const pb::Envelope& e) {
  auto& workers = ctx.state.vol.workers;
  const auto it = workers.find(e.node());
  const Worker* holder = it == workers.end() ? nullptr : &it->second;
  if (const auto refusal = refuse(ctx, e, holder)) return send_welcome(ctx, peer, e, refusal);
  const bool same = holder != nullptr && holder->state_id == e.hello().state_id() &&
                    holder->incarnation == e.incarnation();
  if (same && e.sequence() <= holder->sequence) return;  // an old copy of what was heard before
  if (holder != nullptr && holder->peer != peer)
    ctx.out.commands.emplace_back(ForgetPeer{.peer = holder->peer});
  Worker& worker = workers[e.node()];
  worker.node = e.node();
  worker.state_id = e.hello().state_id();
  worker.build_id = e.hello().build_id();
  worker.host = e.hello().host();
  worker.incarnation = e.incarnation();
  worker.slots = e.hello().slots();
  worker.memory_bytes = e.hello().memory_bytes();
  worker.peer = peer;
  worker.sequence = e.sequence();
  hear(ctx, worker);
  worker.lost = false;
  take_attempts(worker, e.hello().attempts());
  send_welcome(ctx, peer, e, {});
  look_at_attempts(ctx, worker);
  for (Command& command : reconcile(ctx.state, ctx.config, worker.node))
    ctx.out.commands.push_back(std::move(command));
}

// Everything that should run there, whether the worker reports it yet or not: its START may be on
// the way. Attempts of held jobs are left alone: nothing is known of what they should be.
void fill_wanted(const Context& ctx, const Worker& worker, pb::HeartbeatReply* reply) {
  const auto add = [reply](const std::string& job, uint64_t epoch) {
    pb::AttemptRef& ref = *reply->add_wanted();
    ref.set_job(job);
    ref.set_epoch(epoch);
  };
  for (const auto& [name, live] : ctx.state.vol.live) {
    const Job& job = ctx.state.durable.jobs.at(name);
    if (wanted(ctx.state, job, worker.node)) add(name, job.epoch);
  }
  if (ctx.state.durable.held.empty()) return;
  for (const auto& [key, attempt] : worker.attempts)
    if (ctx.state.durable.held.contains(key.first)) add(key.first, key.second);
}

void on_heartbeat(Context& ctx, Worker& worker, const pb::Envelope& e) {
  if (e.sequence() <= worker.sequence) return;
  worker.sequence = e.sequence();
  worker.lost = false;
  take_attempts(worker, e.heartbeat().attempts());
  look_at_attempts(ctx, worker);
  pb::Envelope reply;
  fill_wanted(ctx, worker, reply.mutable_heartbeat_reply());
  send_to(ctx, worker, std::move(reply));
}

void on_goodbye(Context& ctx, const std::string& node) {
  for (const std::string& name : std::set<std::string>(ctx.state.durable.active)) {
    const Job* job = find_job(ctx.state, name);
    if (job == nullptr || !job->attempt_live || !hosts(*job, node)) continue;
    NodeEnd end;
    end.result = "node_lost";
    end.report.set_reason("worker " + node + " left");
    end_node(ctx, name, node, std::move(end));
  }
  const auto it = ctx.state.vol.workers.find(node);
  ctx.out.commands.emplace_back(ForgetPeer{.peer = it->second.peer});
  ctx.state.vol.workers.erase(it);
}

void refuse_remote(Context& ctx, const Worker& lead, const pb::LaunchRemote& launch,
                   std::string why) {
  pb::Envelope e;
  pb::RemoteExited& exited = *e.mutable_remote_exited();
  exited.set_job(launch.job());
  exited.set_epoch(launch.epoch());
  exited.set_lead(lead.node);
  exited.set_proxy(launch.proxy());
  exited.set_exit_code(255);
  exited.set_reason(std::move(why));
  send_to(ctx, lead, std::move(e));
}

void on_launch_remote(Context& ctx, const Worker& lead, const pb::LaunchRemote& launch) {
  const Job* job = find_job(ctx.state, launch.job());
  if (job == nullptr || job->epoch != launch.epoch() || !wanted(ctx.state, *job, lead.node) ||
      job->lead != lead.node)
    return refuse_remote(ctx, lead, launch, "the attempt is not current");
  if (!hosts(*job, launch.target()))
    return refuse_remote(ctx, lead, launch, "no member " + printable(launch.target()));
  const auto target = ctx.state.vol.workers.find(launch.target());
  // Not back yet after our start; the lead asks again.
  if (target == ctx.state.vol.workers.end()) return;
  pb::Envelope e;
  *e.mutable_launch_remote() = launch;
  send_to(ctx, target->second, std::move(e));
}

void on_remote_exited(Context& ctx, const pb::RemoteExited& exited) {
  const auto lead = ctx.state.vol.workers.find(exited.lead());
  if (lead == ctx.state.vol.workers.end()) return;
  pb::Envelope e;
  *e.mutable_remote_exited() = exited;
  send_to(ctx, lead->second, std::move(e));
}

void on_worker_message(Context& ctx, Worker& worker, const pb::Envelope& e) {
  hear(ctx, worker);
  switch (e.body_case()) {
    case pb::Envelope::kHeartbeat:
      return on_heartbeat(ctx, worker, e);
    case pb::Envelope::kAttemptReports:
      return on_reports(ctx, worker, e.attempt_reports());
    case pb::Envelope::kLaunchRemote:
      return on_launch_remote(ctx, worker, e.launch_remote());
    case pb::Envelope::kRemoteExited:
      return on_remote_exited(ctx, e.remote_exited());
    case pb::Envelope::kGoodbye:
      return on_goodbye(ctx, worker.node);
    default:
      return;
  }
}

}  // namespace

void on_message(Context& ctx, const Message& message) {
  const pb::Envelope& e = message.envelope;
  if (e.body_case() == pb::Envelope::kRequest) return on_request(ctx, message);
  if (e.body_case() == pb::Envelope::kHello) return on_hello(ctx, message.peer, e);
  if (e.node().empty()) return;
  const auto it = ctx.state.vol.workers.find(e.node());
  const bool known = it != ctx.state.vol.workers.end() && it->second.peer == message.peer &&
                     it->second.incarnation == e.incarnation();
  if (known) return on_worker_message(ctx, it->second, e);
  Worker stranger;
  stranger.node = e.node();
  stranger.incarnation = e.incarnation();
  stranger.peer = message.peer;
  pb::Envelope reply;
  reply.mutable_who_are_you();
  send_to(ctx, stranger, std::move(reply));
}

void tick_workers(Context& ctx) {
  auto& workers = ctx.state.vol.workers;
  for (auto it = workers.begin(); it != workers.end();) {
    Worker& worker = it->second;
    const int64_t silent_ms = ctx.now() - worker.heard_ms;
    if (silent_ms > ctx.config.lost_ms && !may_return(ctx, worker.node)) worker.lost = true;
    if (silent_ms > ctx.config.forget_ms) {
      ctx.out.commands.emplace_back(ForgetPeer{.peer = worker.peer});
      it = workers.erase(it);
    } else {
      ++it;
    }
  }
}

// Messages that came in during a pause of this process wait unread: nobody was silent.
void grant_pause(State& state, const Config& config, int64_t now_ms) {
  Volatile& vol = state.vol;
  const int64_t gap_ms = now_ms - vol.last_event_ms;
  vol.last_event_ms = now_ms;
  if (gap_ms <= config.pause_ms) return;
  // Shorter ones no worker takes for our end.
  const bool long_gap = gap_ms > config.lost_ms - 2 * config.heartbeat_ms;
  // Who found us silent opened new connections, each after a wait that is never longer than the
  // silence before it; then a HELLO takes a moment.
  const int64_t return_ms =
      std::min(config.reattach_ms, gap_ms + config.lost_ms + 2 * config.heartbeat_ms);
  if (long_gap) {
    vol.resumed_ms = now_ms;
    vol.return_by_ms += gap_ms;
  }
  for (auto& [node, worker] : vol.workers) {
    if (long_gap) {
      worker.away = true;
      worker.return_by_ms = std::max(worker.return_by_ms, now_ms + return_ms);
    }
    if (!worker.lost) worker.heard_ms += gap_ms;
  }
  for (auto& [job, live] : vol.live) {
    live.started_ms += gap_ms;
    live.room_since_ms += gap_ms;
  }
}

}  // namespace swax::coord
