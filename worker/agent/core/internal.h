// Shared by the files of this folder; not for others.
#pragma once

#include <string>
#include <vector>

#include "worker/agent/core/core.h"

namespace swax::agent {

struct Context {
  State& state;
  const Config& config;
  const Event& event;
  std::vector<Command>& out;
  bool flush = false;  // reports that should not wait for the next tick
  int64_t now() const { return event.now_ms; }
};

// session.cc
void send(Context& ctx, pb::Envelope envelope);
void say_hello(Context& ctx);
void on_coordinator(Context& ctx, const pb::Envelope& envelope);
void on_nonce(Context& ctx, const NonceRead& read);
void on_stop_signal(Context& ctx, bool checkpoint);
void tick_session(Context& ctx);
void tick_leaving(Context& ctx);

// outbox.cc
// Gives the report its index and stamp and queues it. Returns it for who keeps a copy.
const pb::AttemptReport& report(Context& ctx, const std::string& job, uint64_t epoch,
                                pb::AttemptReport r);
void flush_reports(Context& ctx);
void tick_outbox(Context& ctx);
void on_acknowledged(Context& ctx, const pb::ReportsAcknowledged& acknowledged);
void load_outbox(State& state);  // what follows from the durable part
bool end_is_queued(const State& state, const std::string& job, uint64_t epoch);
void report_kept(Context& ctx, Attempt& attempt);  // again, what is not in the outbox

// attempts.cc
std::string launcher_name(const Attempt& attempt);  // mpirun or srun
Attempt* find_attempt(State& state, const std::string& job, uint64_t epoch);
void on_start(Context& ctx, const pb::StartAttempt& start);
void on_stop(Context& ctx, const pb::StopAttempt& stop);
void on_wanted(Context& ctx, const pb::HeartbeatReply& reply);
void on_prepared(Context& ctx, const Prepared& prepared);
void on_swept(Context& ctx, const Swept& swept);
void on_log_cut(Context& ctx, const LogCut& cut);
void ask_stop(Context& ctx, Attempt& attempt);
// The first call decides result and reason; the processes go, and Swept ends the attempt.
void kill(Context& ctx, Attempt& attempt, std::string result, std::string reason);
void tick_attempts(Context& ctx);  // stop grace, repeated kills, slow launcher

// ranks.cc
void on_rank_said(Context& ctx, const RankSaid& said);
void on_rank_closed(Context& ctx, const RankClosed& closed);
void on_launcher_exited(Context& ctx, const LauncherExited& exited);
bool all_closed(const Attempt& attempt);
bool nothing_runs(const Attempt& attempt);  // all ranks closed, and mpirun or its daemon has ended
// The launcher or all ranks are gone: decides the result and sweeps.
void conclude(Context& ctx, Attempt& attempt);

// watchdog.cc
void on_rank_halted(Context& ctx, const RankHalted& halted);
void tick_watchdog(Context& ctx);
// Of the ranks that run here: the one whose process is stopped, that has done the fewest steps, or
// was silent first. All others wait for it. nullptr: none runs.
const std::pair<const uint32_t, RankState>* furthest_behind(const Attempt& attempt);
int64_t silence_limit_ms(const Config& config, const Attempt& attempt, const RankState& rank);

// remote.cc
void on_proxy_asks(Context& ctx, const ProxyAsks& asks);
void on_remote_ended(Context& ctx, const RemoteEnded& ended);
void on_launch_remote(Context& ctx, const pb::LaunchRemote& launch);
void on_remote_exited(Context& ctx, const pb::RemoteExited& exited);
void tick_proxies(Context& ctx);
void drop_proxies(Context& ctx, Attempt& attempt, const std::string& why);

}  // namespace swax::agent
