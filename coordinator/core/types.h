// The coordinator's core as plain data: events in, records and commands out (coordinator/core/core.h).
// Durable state is exactly the fold of the jobs' records; volatile state is what is known of workers and attempts now and is rebuilt
// from their messages after a restart. Ordered containers only; time is a field of the event (monotonic ms of the shell).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "proto/control.pb.h"
#include "proto/record.pb.h"

namespace swax::coord {

struct Config {
  int64_t heartbeat_ms = 1000;
  int64_t suspect_ms = 2000;           // two beats missed
  int64_t lost_ms = 5000;
  int64_t reattach_ms = 30000;         // after a start, workers of running attempts have this long to come back
  int64_t launch_ms = 120000;          // START sent -> first sign of life of the attempt
  int64_t tick_ms = 200;
  std::string cluster_id;
  std::string store;                   // absolute path
  std::string store_nonce, store_nonce_file;
};

// ---- durable ------------------------------------------------------------------------------------------------------------------------
enum class JobState { kQueued, kStarting, kRunning, kBackoff, kStopping, kHeld, kSucceeded, kFailed, kCancelled };
const char* job_state_name(JobState s);
bool job_ended(JobState s);

struct Checkpoint {
  uint64_t step = 0, epoch = 0;
  std::string state;                   // COMMITTED RETIRED BAD
  std::string digest;
  uint64_t bytes = 0;
  uint32_t world_size = 0;
  int64_t committed_ms = 0;
};

struct Job {
  std::string name;
  pb::JobSpec spec;
  std::string numeric_id, spec_hash, request_id;
  int32_t priority = 0;
  uint64_t order = 0;                  // age
  int64_t submitted_ms = 0;
  uint64_t records = 0;                // numbers used so far
  JobState state = JobState::kQueued;
  std::string reason;
  uint64_t epoch = 0;                  // newest attempt
  bool attempt_live = false;           // placed and not finished
  std::string lead;
  std::vector<pb::RankPlacement> ranks;
  uint64_t restarts_since_commit = 0, no_progress = 0;
  int64_t retry_delay_ms = 0;          // counted from when this process learned of the end
  uint64_t progress_step = 0;          // highest ever reported or committed
  std::map<std::pair<uint64_t, uint64_t>, Checkpoint> checkpoints;  // by (step, epoch)
  std::optional<pb::StopAsked> stop;
  std::optional<pb::RunResult> result;
};

struct Durable {
  uint64_t coordinator_epoch = 0;
  uint64_t next_order = 1;
  std::map<std::string, Job> jobs;
  std::map<std::string, std::string> held;      // job -> why its records cannot be read
  // request id -> (hash of the body, job). In the same batch as the job's record.
  struct Answer {
    std::string body_hash, job;
  };
  std::map<std::string, Answer> requests;
};

// ---- volatile -----------------------------------------------------------------------------------------------------------------------
struct Worker {
  std::string node, state_id, build_id, host;
  uint64_t incarnation = 0;
  uint32_t slots = 0;
  uint64_t peer = 0;                   // the shell's handle of its connection
  int64_t heard_ms = 0;
  bool lost = false;
  std::map<std::pair<std::string, uint64_t>, pb::RunningAttempt> attempts;  // as it reports them
};

struct AttemptLive {                   // of the newest epoch of a job
  int64_t started_ms = 0;              // START first sent, or this process started
  bool acknowledged = false;           // some worker reported it
  bool done_reported = false;
  uint64_t step = 0;
  std::string phase;
  pb::StepRecord last_step;
  std::optional<pb::ValidationRecord> last_validation;
  // Saves under way: step -> rank -> its report. Complete when all ranks of this epoch are in.
  std::map<uint64_t, std::map<uint32_t, pb::RankDurable>> durable;
  std::set<uint64_t> committing;       // steps whose COMMITTED file the shell is writing
};

struct Volatile {
  std::map<std::string, Worker> workers;
  std::map<std::string, AttemptLive> live;      // by job
  std::map<std::string, int64_t> retry_at_ms;   // jobs in BACKOFF
  std::map<std::string, bool> retiring;         // jobs whose retention the shell is running
  int64_t started_ms = 0;
  int64_t last_tick_ms = 0;
};

struct State {
  Durable durable;
  Volatile vol;
};

// ---- events ---------------------------------------------------------------------------------------------------------------------------
struct Started {};                               // first event of a process, after replay
struct Tick {};
struct Message {                                 // from a peer, already decoded and checked for size and cluster
  uint64_t peer = 0;
  pb::Envelope envelope;
  std::string body_hash;                         // of the request's bytes
};
struct CommittedWritten {                        // the shell has written COMMITTED (or could not)
  std::string job;
  uint64_t step = 0, epoch = 0;
  bool ok = true;
  std::string error;
  std::string digest;
  uint64_t bytes = 0;
  int64_t committed_ms = 0;
  uint32_t world_size = 0;
};
struct Retired {                                 // the shell has run retention
  std::string job;
  std::vector<std::pair<uint64_t, uint64_t>> removed;  // (step, epoch)
};
struct Noted {                                   // the shell saw something for the job's history: becomes an EventNoted record
  std::string job;
  pb::EventNoted note;                           // kind "diverged": a recomputed step has other bits
};
using EventBody = std::variant<Started, Tick, Message, CommittedWritten, Retired, Noted>;
struct Event {
  int64_t now_ms = 0;                            // monotonic
  int64_t wall_ms = 0;                           // for stamps in records only; never compared
  EventBody body;
};

// ---- commands -------------------------------------------------------------------------------------------------------------------------
struct Send {                                    // to a peer; may be lost
  uint64_t peer = 0;
  pb::Envelope envelope;
};
struct WriteCommitted {                          // write COMMITTED from these reports, then say CommittedWritten
  std::string job;
  uint64_t step = 0, epoch = 0;
  std::vector<pb::RankDurable> ranks;            // by rank
};
struct Retire {                                  // keep the newest `keep` committed checkpoints, then say Retired
  std::string job;
  int keep = 0;
};
struct StoreStep {                               // keep a step record under its job and step (not synced; history and comparison)
  std::string job;
  pb::StepRecord record;
};
struct ForgetPeer {
  uint64_t peer = 0;
};
using Command = std::variant<Send, WriteCommitted, Retire, StoreStep, ForgetPeer>;

struct RequestAnswer {                           // stored in the same batch as the records
  std::string request_id, body_hash, job;
};
struct Output {
  std::vector<pb::JobRecord> records;            // journal these, synced, before any command leaves
  std::vector<RequestAnswer> answers;
  std::vector<Command> commands;
};

}  // namespace swax::coord
