// Shared by the files of this folder; not for others. A function that decides something takes a
// Context, reads state, and changes durable state through record() only.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/core.h"

namespace swax::coord {

struct Context {
  State& state;
  const Config& config;
  const Event& event;
  Output& out;
  int64_t now() const { return event.now_ms; }
};

// context.cc
// Numbers, stamps and applies the record, and hands it out for the journal.
void record(Context& ctx, const std::string& job, pb::JobRecord r);
void note(Context& ctx, const std::string& job, std::string kind, uint64_t step, std::string text);
Job* find_job(State& state, const std::string& name);  // nullptr: unknown or held
AttemptLive* find_live(State& state, const std::string& job);
void address(State& state, const Config& config, const Worker& worker, pb::Envelope* envelope);
void send_to(Context& ctx, const Worker& worker, pb::Envelope envelope);  // addresses it
std::set<std::string> nodes_of(const Job& job);                           // of the newest attempt
bool hosts(const Job& job, std::string_view node);
bool reports(const Worker& worker, const std::string& job, uint64_t epoch);  // as running
// Not heard since this process started or was paused for long: it may be on its way back (workers
// that found us silent open new connections, further and further apart).
bool may_return(const Context& ctx, const std::string& node);
// Whether the attempt should go on there: live, not being killed, not over on any node.
bool wanted(const State& state, const Job& job, const std::string& node);

// membership.cc
void on_message(Context& ctx, const Message& message);
void tick_workers(Context& ctx);
void grant_pause(State& state, const Config& config, int64_t now_ms);

// attempts.cc
void on_reports(Context& ctx, Worker& worker, const pb::AttemptReports& reports);
void end_node(Context& ctx, const std::string& job, const std::string& node, NodeEnd end);
void tick_attempts(Context& ctx);  // lost nodes, deadlines, last calls
// Ends the attempt when every node's end is known (or the last call is over) and no commit is under
// way; then the job ends or waits for its next attempt.
void settle_attempt(Context& ctx, const std::string& job);
void finish_job(Context& ctx, const std::string& job, std::string state, std::string reason);
void tell_ended(Context& ctx, const Worker& worker, const std::string& job, uint64_t epoch);

// budget.cc
struct Verdict {
  std::string job_end;  // "", SUCCEEDED, FAILED or CANCELLED
  std::string reason;
  uint64_t restarts_since_commit = 0, no_progress = 0;
  int64_t delay_ms = 0;
};
Verdict judge_end(const Job& job, std::string_view result, std::string_view why, bool progressed);

// checkpoints.cc
void take_durable(Context& ctx, const Worker& worker, const std::string& job,
                  const pb::RankDurable& durable);
void on_committed(Context& ctx, const CommittedWritten& written);
void on_retired(Context& ctx, const Retired& retired);
void mark_checkpoint_bad(Context& ctx, const std::string& job, uint64_t step, std::string why);
bool commit_pending(const AttemptLive& live);
void tick_checkpoints(Context& ctx);  // commits that failed, retention that was lost
void retire_old(Context& ctx, const std::string& job);

// scheduler.cc
struct Taken {
  uint64_t slots = 0, bytes = 0;
};
using TakenByNode = std::map<std::string, Taken>;
// What can be given away now, for one pass over the queue.
struct Floor {
  std::set<std::string> builds;
  std::vector<const Worker*> workers;  // usable, and running only what they should
  TakenByNode taken;                   // what live attempts were given
};
Floor look_around(const Context& ctx);
TakenByNode needs_of(const Job& job, const std::vector<pb::RankPlacement>& ranks);
void take(const TakenByNode& needs, TakenByNode* taken);
// Empty: there is none.
std::vector<pb::RankPlacement> find_place(const Context& ctx, const Floor& floor, const Job& job,
                                          uint64_t ranks);
uint64_t ranks_asked(const Job& job);
// Whether any allowed number of ranks would fit the live workers, were nothing else running.
bool could_run(const State& state, const Job& job);
bool comes_before(const Job& a, const Job& b);
void schedule(Context& ctx);
// Memory that each of `ranks` ranks needs, by the plan of the job's submit; 0: not known.
uint64_t planned_bytes(const Job& job, uint64_t ranks);
// Why a queued job is not placed: one of the reasons of JobStatus.
std::string waiting_reason(const State& state, const Config& config, const Job& job,
                           int64_t now_ms);

// growth.cc
void tick_growth(Context& ctx);  // attempts that should leave for more ranks
const Growth* find_growth(const State& state, const std::string& job);
// Takes what is kept for the job, beyond what its attempt has.
void keep_room(const State& state, const Job& job, TakenByNode* taken);
void end_growth(Context& ctx, const Job& job, const AttemptLive& live, std::string_view result,
                bool progressed);

// requests.cc
void on_request(Context& ctx, const Message& message);

}  // namespace swax::coord
