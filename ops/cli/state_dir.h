// The state folder of one run: where everything lies, and read-only views of it for every verb.
//   run.lock                flock of the `swax run` that works here
//   run.db/                 key-value store: key "run" RunRecord, "event/<be64>" EventRecord,
//                           "tail/<be64 epoch>" how far the attempt's record log was taken over
//   spec.pb                 resolved JobSpec, binary, for the ranks
//   records/aE.log          RankReport records of attempt E, written by its rank 0
//   logs/aE/rank-R.log      what a rank says; logs/aE/mpirun.log: what its launcher says
//   attempts/aE/            temporary: sockets and shared memory of attempt E; gone when it ended
//   store/data/DIGEST/      data sets; store/jobs/NAME/ckpt/: checkpoints
// Readers need no lock and may look at any time, also while the run goes on.
// Threads: plain values and pure functions on the file system.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/status.h"
#include "proto/record.pb.h"

namespace swax {

class StateDir {
 public:
  StateDir() = default;
  explicit StateDir(std::string root) : root_(std::move(root)) {}
  const std::string& root() const { return root_; }
  std::string lock_path() const;
  std::string db_folder() const;
  std::string spec_path() const;
  std::string records_folder() const;
  std::string records_path(uint64_t epoch) const;
  std::string logs_folder(uint64_t epoch) const;
  std::string rank_log_path(uint64_t epoch, int rank) const;
  std::string mpirun_log_path(uint64_t epoch) const;
  std::string attempts_folder() const;
  std::string attempt_folder(uint64_t epoch) const;
  std::string store_folder() const;
  std::string data_folder() const;  // its subfolders are named by the digest of the data set
  std::string checkpoints_folder(std::string_view job) const;

 private:
  std::string root_;
};

std::string default_state_folder(std::string_view job);  // "./runs/NAME"
std::string attempt_name(uint64_t epoch);                // "a7"

// Keys of run.db.
constexpr std::string_view kRunKey = "run";
constexpr std::string_view kEventPrefix = "event/";
constexpr std::string_view kTailPrefix = "tail/";
std::string event_key(uint64_t sequence);
std::string tail_key(uint64_t epoch);

// kNotFound: no folder, or no run in it. The path is made absolute and free of links.
Result<StateDir> open_state_dir(const std::string& path);

// True while a `swax run` holds the folder's lock.
bool run_is_active(const StateDir& state);
// RUNNING | STOPPED (not ended, nobody works on it; typed again it goes on) | SUCCEEDED | FAILED |
// CANCELLED.
std::string shown_state(const pb::RunRecord& run, bool active);

struct RunView {
  pb::RunRecord run;
  std::vector<pb::EventRecord> events;  // in order
  bool active = false;
  std::string state;  // shown_state
};
// kNotFound: no run; kDataLoss: damaged bytes, named.
Result<RunView> load_run_view(const StateDir& state);

// Attempts that left a record log, rising.
Result<std::vector<uint64_t>> recorded_epochs(const StateDir& state);

// Calls visit for each report of one record log until it returns false. A torn tail ends it
// silently, as a log that is still being written looks the same. kNotFound: no such log; kDataLoss:
// a damaged record, named; what stood before it has been visited.
Status visit_reports(const StateDir& state, uint64_t epoch,
                     const std::function<bool(const pb::RankReport&)>& visit);

// The steps of a run as they count: for each step the record of the newest attempt that made it, in
// order. Damaged logs are left out from the damage on and named in `problems`.
struct StepHistory {
  std::vector<pb::StepRecord> steps;
  std::vector<pb::ValidationRecord> validations;
  std::vector<std::string> problems;
};
Result<StepHistory> load_step_history(const StateDir& state);

}  // namespace swax
