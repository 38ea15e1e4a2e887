#include <algorithm>

#include "proto/base/hash.h"
#include "proto/base/rng.h"
#include "worker/agent/core/internal.h"

namespace swax::agent {
namespace {

constexpr int64_t kTimesMaxMs = 600000;  // of what a coordinator may ask for
constexpr int64_t kHelloGapMs = 200;     // however often the coordinator asks
constexpr int64_t kBackoffMs = 500, kBackoffMsMax = 8000;
constexpr int kExitRefused = 78, kExitStopped = 99;

// Between half of `ms` and `ms`: workers that lost the coordinator together come back apart.
int64_t jittered(const Context& ctx, int64_t ms) {
  const uint64_t key = xxh3_64(ctx.config.node) ^ ctx.config.incarnation;
  const auto n = static_cast<uint32_t>(ctx.state.sequence);
  return ms - philox4x32(key, {n, 0, 0, 0})[0] % (ms / 2 + 1);
}

std::string phase_name(const Attempt& attempt) {
  if (attempt.phase == Phase::kEnded) return "ended";
  if (attempt.phase == Phase::kKilling) return "leaving";
  if (attempt.phase != Phase::kRunning) return "launching";
  return attempt.ranks.empty() ? "launching" : attempt.ranks.begin()->second.phase;
}

void add_attempts(const State& state,
                  google::protobuf::RepeatedPtrField<pb::RunningAttempt>* attempts) {
  for (const auto& [job, attempt] : state.attempts) {
    pb::RunningAttempt& running = *attempts->Add();
    running.set_job(job);
    running.set_epoch(attempt.epoch);
    running.set_phase(phase_name(attempt));
    uint64_t step = 0;
    for (const auto& [rank, r] : attempt.ranks) step = std::max(step, r.step);
    running.set_step(step);
  }
}

void send_heartbeat(Context& ctx) {
  ctx.state.beat_ms = ctx.now();
  pb::Envelope e;
  add_attempts(ctx.state, e.mutable_heartbeat()->mutable_attempts());
  send(ctx, std::move(e));
}

// Everything the coordinator may not know: it may be another process than the one that
// acknowledged.
void on_accepted(Context& ctx, const pb::Envelope& e) {
  State& state = ctx.state;
  const bool news = e.coordinator_epoch() != state.coordinator_epoch;
  state.registered = true;
  state.coordinator_epoch = e.coordinator_epoch();
  state.cluster_id = e.cluster_id();
  state.store = e.welcome().store();
  state.heartbeat_ms = std::min<int64_t>(e.welcome().heartbeat_ms(), kTimesMaxMs);
  state.lost_ms = std::min<int64_t>(e.welcome().lost_ms(), kTimesMaxMs);
  if (!news) return;
  state.control_sequence = 0;
  for (auto& [job, attempt] : state.attempts) report_kept(ctx, attempt);
  state.sent_through = 0;
  ctx.flush = true;
}

void on_welcome(Context& ctx, const pb::Envelope& e) {
  const pb::Welcome& welcome = e.welcome();
  if (welcome.accepted()) return on_accepted(ctx, e);
  State& state = ctx.state;
  if (state.registered && e.coordinator_epoch() == state.coordinator_epoch) return;
  if (welcome.final()) {
    ctx.out.emplace_back(Exit{.code = kExitRefused, .reason = welcome.refusal()});
    return;
  }
  state.registered = false;
  state.hello_due_ms = ctx.now() + jittered(ctx, 2 * ctx.config.heartbeat_ms);
  ctx.out.emplace_back(ReadNonce{.store = welcome.store(), .file = welcome.store_nonce_file()});
}

void ask_to_register(Context& ctx) {
  ctx.state.registered = false;
  if (ctx.now() - ctx.state.hello_ms >= kHelloGapMs) {
    say_hello(ctx);
  } else {
    ctx.state.hello_due_ms = std::min(ctx.state.hello_due_ms, ctx.state.hello_ms + kHelloGapMs);
  }
}

// START, STOP and HEARTBEAT_REPLY speak of the same thing: only the newest word counts.
bool newest_control(State& state, const pb::Envelope& e) {
  if (e.sequence() <= state.control_sequence) return false;
  state.control_sequence = e.sequence();
  return true;
}

void on_registered_message(Context& ctx, const pb::Envelope& e) {
  switch (e.body_case()) {
    case pb::Envelope::kHeartbeatReply:
      if (newest_control(ctx.state, e)) on_wanted(ctx, e.heartbeat_reply());
      return;
    case pb::Envelope::kStartAttempt:
      if (newest_control(ctx.state, e)) on_start(ctx, e.start_attempt());
      return;
    case pb::Envelope::kStopAttempt:
      if (newest_control(ctx.state, e)) on_stop(ctx, e.stop_attempt());
      return;
    case pb::Envelope::kReportsAcknowledged:
      return on_acknowledged(ctx, e.reports_acknowledged());
    case pb::Envelope::kLaunchRemote:
      return on_launch_remote(ctx, e.launch_remote());
    case pb::Envelope::kRemoteExited:
      return on_remote_exited(ctx, e.remote_exited());
    default:
      return;
  }
}

}  // namespace

void send(Context& ctx, pb::Envelope envelope) {
  envelope.set_cluster_id(ctx.state.cluster_id);
  envelope.set_coordinator_epoch(ctx.state.coordinator_epoch);
  envelope.set_node(ctx.config.node);
  envelope.set_incarnation(ctx.config.incarnation);
  envelope.set_sequence(++ctx.state.sequence);
  ctx.out.emplace_back(Send{.envelope = std::move(envelope)});
}

void say_hello(Context& ctx) {
  State& state = ctx.state;
  pb::Envelope e;
  pb::Hello& hello = *e.mutable_hello();
  hello.set_state_id(ctx.config.state_id);
  hello.set_slots(state.leaving ? 0 : ctx.config.slots);
  hello.set_build_id(ctx.config.build_id);
  hello.set_host(ctx.config.host);
  hello.set_pid(ctx.config.pid);
  hello.set_store_nonce(state.store_nonce);
  hello.set_memory_bytes(ctx.config.memory_bytes);
  add_attempts(state, hello.mutable_attempts());
  state.hello_ms = ctx.now();
  state.hello_due_ms = ctx.now() + jittered(ctx, 2 * ctx.config.heartbeat_ms);
  send(ctx, std::move(e));
}

// Messages of an older coordinator process, to another start of this agent or of another cluster
// change nothing; those of a newer process ask for HELLO first.
void on_coordinator(Context& ctx, const pb::Envelope& e) {
  State& state = ctx.state;
  if (e.node() != ctx.config.node || e.incarnation() != ctx.config.incarnation) return;
  if (e.coordinator_epoch() < state.coordinator_epoch) return;
  if (!state.cluster_id.empty() && e.cluster_id() != state.cluster_id) return;
  state.heard_ms = ctx.now();
  state.reconnects = 0;
  if (e.has_welcome()) return on_welcome(ctx, e);
  const bool unknown = e.has_who_are_you() || e.coordinator_epoch() > state.coordinator_epoch;
  if (unknown) return ask_to_register(ctx);
  if (state.registered) on_registered_message(ctx, e);
}

void on_nonce(Context& ctx, const NonceRead& read) {
  if (read.nonce.empty() || read.nonce == ctx.state.store_nonce) return;
  ctx.state.store_nonce = read.nonce;
  say_hello(ctx);
}

void tick_session(Context& ctx) {
  State& state = ctx.state;
  // A coordinator that has patience with us has a reason to be slow itself.
  if (ctx.now() - state.heard_ms > std::max(ctx.config.silent_ms, state.lost_ms)) {
    const int64_t wait_ms =
        std::min(kBackoffMsMax, kBackoffMs << std::min<uint64_t>(state.reconnects, 4));
    ++state.reconnects;
    state.registered = false;
    state.hello_due_ms = ctx.now() + jittered(ctx, wait_ms);
    state.heard_ms = state.hello_due_ms;
    ctx.out.emplace_back(Reconnect{});
    return;
  }
  if (!state.registered && ctx.now() >= state.hello_due_ms) return say_hello(ctx);
  const int64_t beat_ms = state.heartbeat_ms > 0 ? state.heartbeat_ms : ctx.config.heartbeat_ms;
  if (state.registered && ctx.now() - state.beat_ms >= beat_ms) send_heartbeat(ctx);
}

// From now on the coordinator gives this worker nothing: it offers no slots.
void on_stop_signal(Context& ctx, bool checkpoint) {
  State& state = ctx.state;
  state.leaving = checkpoint && state.leaving.value_or(true);
  state.leaving_ms = ctx.now();
  say_hello(ctx);
  for (auto& [job, attempt] : state.attempts) {
    if (*state.leaving) {
      ask_stop(ctx, attempt);
    } else {
      kill(ctx, attempt, "killed", "the worker was stopped");
    }
  }
}

void tick_leaving(Context& ctx) {
  State& state = ctx.state;
  if (!state.leaving) return;
  const bool running = std::any_of(state.attempts.begin(), state.attempts.end(),
                                   [](const auto& a) { return a.second.phase != Phase::kEnded; });
  if (running) state.leaving_ms = ctx.now();
  const bool told = state.outbox.empty() || ctx.now() - state.leaving_ms >= ctx.config.leave_ms;
  if (running || !told) return;
  pb::Envelope e;
  e.mutable_goodbye();
  send(ctx, std::move(e));
  ctx.out.emplace_back(Exit{.code = *state.leaving ? kExitStopped : 0, .reason = "stopped"});
}

}  // namespace swax::agent
