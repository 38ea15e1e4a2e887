// The coordinator's core as plain data: events in, records and commands out (core.h). Durable state
// is exactly the fold of the jobs' records (and of what stands in their batches: answers and the
// positions in the agents' report streams); volatile state is what is known of workers and attempts
// now and is rebuilt from their messages after a restart. Ordered containers only; time is a field
// of the event (monotonic ms of the shell).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "proto/control.pb.h"
#include "proto/record.pb.h"

namespace swax::coord {

struct Config {
  int64_t heartbeat_ms = 1000;
  int64_t suspect_ms = 2000;         // two beats missed: no new work
  int64_t lost_ms = 5000;            // its attempts end
  int64_t reattach_ms = 30000;       // after a start, workers of running attempts have this long;
                                     // after a pause less, as it was shorter
  int64_t launch_ms = 120000;        // START first sent -> reported by every node of the attempt
  int64_t last_call_ms = 1000;       // after the first bad end of a node, others may tell theirs
  int64_t weak_call_ms = 5000;       // ... when that end was only a consequence of another one, or
                                     // a hang, for which all are to be heard
  int64_t reconcile_ms = 1000;       // commands are sent again until they are true
  int64_t pause_ms = 1000;           // a longer gap between events was a pause of this process
  int64_t shrink_after_ms = 30000;   // capacity below `ranks` for this long: fewer allowed ranks do
  int64_t grow_after_ms = 60000;     // room for more of the ranks that a smaller attempt asked for,
                                     // for this long: it saves and leaves for it (growth.cc)
  int64_t reserve_after_ms = 60000;  // a job that waits longer is not overtaken by smaller ones
  // So many come up together after a start: no job takes fewer ranks before they have, or before
  // expected_until_ms.
  uint64_t workers_expected = 0;
  int64_t expected_until_ms = 0;
  // The workers are taken away soon after leave_at_ms: an attempt that makes no step before it
  // could save nothing and is not begun. A start takes startup_ms, or as long as the longest here
  // did.
  int64_t leave_at_ms = INT64_MAX;
  int64_t startup_ms = 0;
  int64_t forget_ms = 3600000;  // a lost worker leaves the list
  uint64_t jobs_active_max = 10000;
  uint64_t noted_max = 1000;  // history events of an attempt between two commits; more are dropped
  int commit_tries_max = 5;   // of COMMITTED of one save
  std::string cluster_id;
  std::string store;  // absolute path
  std::string store_nonce, store_nonce_file;
};

// ---- durable ---------------------------------------------------------------------------------
enum class JobState {
  kQueued,
  kStarting,  // placed, no step yet
  kRunning,
  kBackoff,
  kStopping,  // cancel asked, its attempt not yet over
  kHeld,      // only in views: its records cannot be read
  kSucceeded,
  kFailed,
  kCancelled
};
const char* job_state_name(JobState s);
bool job_ended(JobState s);

struct Checkpoint {
  uint64_t step = 0, epoch = 0;
  std::string state;  // COMMITTED RETIRED BAD
  std::string digest;
  uint64_t bytes = 0;
  uint32_t world_size = 0;
  int64_t committed_ms = 0;
};
using SaveKey = std::pair<uint64_t, uint64_t>;  // (step, epoch)

struct Job {
  std::string name;
  pb::JobSpec spec;
  std::string numeric_id, spec_hash, request_id;
  int32_t priority = 0;
  uint64_t order = 0;  // age
  int64_t submitted_ms = 0;
  uint64_t records = 0;  // numbers used so far
  JobState state = JobState::kQueued;
  std::string reason;         // of the state: how the last attempt ended, why the job ended
  uint64_t epoch = 0;         // newest attempt
  bool attempt_live = false;  // placed and not finished
  std::string lead;
  std::vector<pb::RankPlacement> ranks;  // of the newest attempt
  uint64_t restarts_since_commit = 0, no_progress = 0;
  uint64_t launch_failures = 0;  // in a row
  int64_t retry_delay_ms = 0;    // in BACKOFF, counted from when this process learned of the end
  uint64_t progress_step = 0;    // highest ever reported at an end, or committed
  uint64_t progress_epoch = 0;   // newest attempt with a commit
  uint64_t changed_epoch = 0;  // newest attempt that was live when the spec changed: it has another
  std::map<SaveKey, Checkpoint> checkpoints;
  // Number of ranks -> bytes that each of them needs, as the submit said; empty: not known.
  std::map<uint64_t, uint64_t> plan;
  std::optional<pb::StopAsked> stop;
  std::optional<pb::RunResult> result;
};

struct Durable {
  uint64_t coordinator_epoch = 0;  // set by the shell, one higher at each start
  uint64_t next_order = 1;
  std::map<std::string, Job> jobs;
  std::set<std::string> active;             // jobs that have not ended and are not held
  std::map<std::string, std::string> held;  // job -> why its records cannot be read
  // request id -> (hash of the body, job). In the same batch as the job's record.
  struct Answer {
    std::string body_hash, job;
  };
  std::map<std::string, Answer> requests;
  // Worker's state_id -> highest index of its reports that made a record. In the same batch as
  // these records, so that a report sent again after a crash makes no second record.
  std::map<std::string, uint64_t> reports_taken;
};

// ---- volatile --------------------------------------------------------------------------------
struct Worker {
  std::string node, state_id, build_id, host;
  uint64_t incarnation = 0;
  uint32_t slots = 0;
  uint64_t memory_bytes = 0;  // of the node; 0: unknown
  uint64_t peer = 0;          // the shell's handle of its connection
  uint64_t sequence = 0;      // of its newest HELLO or heartbeat; older ones are ignored
  int64_t heard_ms = 0;
  bool away = false;         // no new word since the newest long pause of this process ...
  int64_t return_by_ms = 0;  // ... and until then it may be on its way back
  bool lost = false;
  std::map<std::pair<std::string, uint64_t>, pb::RunningAttempt> attempts;  // as it reports them
};

struct NodeEnd {       // how an attempt ended on one node
  std::string result;  // AttemptEnded.result, or node_lost
  pb::AttemptEnded report;
  uint64_t order = 0;  // of arrival
  int64_t come_ms = 0;
};

struct AttemptLive {       // of the newest epoch of a job
  int64_t started_ms = 0;  // START first sent, or this process started
  bool launched = false;   // every node has reported it
  uint64_t step = 0;       // highest reported
  std::string phase;
  pb::StepRecord last_step;
  std::map<std::string, NodeEnd> ends;  // by node
  int64_t bad_end_ms = -1;              // when the first end out of order came
  // Saves under way: step -> rank -> its report. Complete when all ranks of this epoch are in.
  std::map<uint64_t, std::map<uint32_t, pb::RankDurable>> durable;
  std::map<uint64_t, int> committing;  // step -> tries; the shell is writing COMMITTED; at most one
  std::map<uint64_t, int> commit_later;  // step -> tries so far; could not be written
  uint64_t noted = 0;                    // history events since the newest commit
  bool save_failed = false;              // the newest save that was told of
  uint64_t room_ranks = 0;               // fewer ranks than asked: so many could run now ...
  int64_t room_since_ms = 0;             // ... and since then at least so many
  uint64_t grow_to = 0;                  // it was asked to save and leave for so many; 0: was not
};

struct Growth {         // of a job that left, or leaves, for more ranks: growth.cc
  uint64_t times = 0;   // in a row
  uint64_t from = 0;    // ranks that it had before the newest one
  bool failed = false;  // what came of the newest one ended badly and without progress
  std::vector<pb::RankPlacement> places;  // kept for it until its next attempt is placed
};

struct Volatile {
  std::map<std::string, Worker> workers;            // by node
  std::map<std::string, AttemptLive> live;          // by job
  std::map<std::string, int64_t> retry_at_ms;       // jobs in BACKOFF
  std::map<std::string, int64_t> waiting_since_ms;  // jobs that found no place
  std::map<std::string, Growth> growths;            // by job
  std::string kept_for;    // the job that smaller ones must not overtake any more; empty: none
  int64_t startup_ms = 0;  // longest time from START to a first step
  std::map<std::string, std::string> blamed;      // job -> node of its last bad end
  std::set<std::string> retiring;                 // jobs whose retention the shell is running
  std::map<std::string, uint64_t> reports_taken;  // by state_id, also those without a record
  std::map<std::string, pb::ValidationRecord> last_validation;  // by job
  uint64_t sequence = 0;                                        // of our messages
  int64_t resumed_ms = 0;    // this process started, or its newest long pause ended
  int64_t return_by_ms = 0;  // until then workers that this process never heard may come back
  int64_t last_event_ms = 0;
  int64_t last_reconcile_ms = 0;
};

struct State {
  Durable durable;
  Volatile vol;
};

// ---- events ----------------------------------------------------------------------------------
struct Started {};  // first event of a process, after replay
struct Tick {};     // every 200 ms or so
struct Message {    // from a peer, already decoded and checked for size and cluster
  uint64_t peer = 0;
  pb::Envelope envelope;
  std::string body_hash;  // of the request's bytes
};
struct CommittedWritten {  // the shell has written COMMITTED (or could not); once per
                           // WriteCommitted. `found`: an answer to FindCommitted
  std::string job;
  uint64_t step = 0, epoch = 0;
  bool ok = true;
  std::string error;
  std::string digest;
  uint64_t bytes = 0;
  int64_t committed_ms = 0;
  uint32_t world_size = 0;
  bool found = false;
};
struct Retired {  // the shell has run retention; once per Retire
  std::string job;
  std::vector<SaveKey> removed;
};
struct Noted {  // the shell saw something worth a line of history (DIVERGED)
  std::string job;
  pb::EventNoted note;
};
using EventBody = std::variant<Started, Tick, Message, CommittedWritten, Retired, Noted>;
struct Event {
  int64_t now_ms = 0;   // monotonic
  int64_t wall_ms = 0;  // for stamps in records only; never compared
  EventBody body;
};

// ---- commands --------------------------------------------------------------------------------
struct Send {  // to a peer; may be lost
  uint64_t peer = 0;
  pb::Envelope envelope;
};
// Write COMMITTED from these reports, then say CommittedWritten. It may stand there already (a
// crash before the record): with the same ranks that is success.
struct WriteCommitted {
  std::string job;
  uint64_t step = 0, epoch = 0;
  std::vector<pb::RankDurable> ranks;  // by rank
};
struct Retire {  // keep the newest `keep` committed checkpoints, then say Retired
  std::string job;
  int keep = 0;
};
struct FindCommitted {  // say CommittedWritten of every whole COMMITTED that lies there
  std::string job;
};
struct StoreStep {  // keep a step record under its job and step (not synced); compare with what
  std::string job;  // stands there and say Noted{DIVERGED} when the bits differ
  pb::StepRecord record;
};
struct ForgetPeer {
  uint64_t peer = 0;
};
using Command = std::variant<Send, WriteCommitted, Retire, FindCommitted, StoreStep, ForgetPeer>;

struct RequestAnswer {  // stored in the same batch as the records
  std::string request_id, body_hash, job;
};
struct ReportsTaken {  // likewise
  std::string state_id;
  uint64_t index = 0;
};
struct Output {
  std::vector<pb::JobRecord> records;  // journal these, synced, before any command leaves
  std::vector<RequestAnswer> answers;
  std::vector<ReportsTaken> taken;
  std::vector<Command> commands;
};

}  // namespace swax::coord
