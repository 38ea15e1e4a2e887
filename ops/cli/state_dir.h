// The state folder of one run: where everything lies, and read-only views of it for every verb.
//   run.lock                flock of the `swax run` that works here
//   run.log                 what its coordinator and its worker say
//   coordinator/            the coordinator's state: the run's records are in its kv
//   worker/                 the worker's state
//   spec.pb                 resolved JobSpec, binary, for `generate`
//   store/data/DIGEST/      data sets
//   store/jobs/NAME/        ckpt/: checkpoints; records/aE.log: RankReport records of attempt E,
//                           written by its rank 0; logs/aE/rank-R.log: what a rank says;
//                           logs/aE/{mpirun,srun}.log: what its launcher says; attempts/: temporary
// The state of a `swax coordinator` has the same parts in other places: kv and lock in it, the
// store in it or where its --store says. Readers need no lock and may look at any time, also while
// the run goes on. Threads: plain values and pure functions on the file system.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/status.h"
#include "proto/job.pb.h"
#include "proto/record.pb.h"

namespace swax {

class StateDir {
 public:
  StateDir() = default;
  explicit StateDir(std::string root) : root_(std::move(root)) {}
  // Of a coordinator; an empty store: ROOT/store.
  static StateDir of_service(std::string root, std::string store);
  const std::string& root() const { return root_; }
  bool is_service() const { return service_; }
  std::string lock_path() const;
  std::string log_path() const;
  std::string coordinator_folder() const;
  std::string db_folder() const;  // the coordinator's records
  std::string worker_folder() const;
  std::string spec_path() const;
  std::string store_folder() const;
  std::string data_folder() const;  // its subfolders are named by the digest of the data set
  std::string job_folder(std::string_view job) const;
  std::string checkpoints_folder(std::string_view job) const;
  std::string records_folder(std::string_view job) const;
  std::string records_path(std::string_view job, uint64_t epoch) const;
  std::string logs_folder(std::string_view job, uint64_t epoch) const;

 private:
  std::string root_;
  bool service_ = false;
  std::string store_;  // empty: in the root
};

std::string default_state_folder(std::string_view job);  // "./runs/NAME"
std::string attempt_name(uint64_t epoch);                // "a7"

// kNotFound: no folder, or no run in it. The path is made absolute and free of links.
Result<StateDir> open_state_dir(const std::string& path);
// The same of either kind of folder. `store`: of a service, empty: in it; kInvalidArgument: given
// for a run.
Result<StateDir> open_job_state(const std::string& path, const std::string& store);

// True while a `swax run` or a coordinator holds the folder's lock.
bool run_is_active(const StateDir& state);

struct RunInfo {
  pb::JobSpec spec;  // resolved
  std::string numeric_id, spec_hash;
  // RUNNING | STOPPED (not ended, nobody works on it; typed again it goes on) | SUCCEEDED | FAILED
  // | CANCELLED | HELD (a record cannot be read; the rest is what those before it say).
  std::string state;
  std::string reason;          // of an end, or why the next attempt waits
  uint64_t epoch = 0;          // newest attempt
  uint64_t progress_step = 0;  // highest step that an end or a commit told of
  // Of the end; empty or 0: not known (zero bits: no loss and no bits-per-byte is exactly 0).
  std::string digest;
  uint64_t loss_bits = 0, validation_bpb_bits = 0;
  double tokens_per_s = 0.0;
};

struct RunView {
  RunInfo run;
  std::vector<pb::EventRecord> events;  // in order
  bool active = false;                  // a `swax run` works on it
  std::string held;                     // HELD: which record cannot be read, and why
};
// Of the named job; without a name of the run, which is the first job ever, or of a service's only
// job. kNotFound: no run or no such job; kInvalidArgument: a service has several; kDataLoss: not
// even the first record can be read, which is named.
Result<RunView> load_run_view(const StateDir& state, const std::string& job = "");

// Attempts that left a record log, rising.
Result<std::vector<uint64_t>> recorded_epochs(const StateDir& state, std::string_view job);

// Calls visit for each report of one record log until it returns false. A torn tail ends it
// silently, as a log that is still being written looks the same. kNotFound: no such log; kDataLoss:
// a damaged record, named; what stood before it has been visited.
Status visit_reports(const StateDir& state, std::string_view job, uint64_t epoch,
                     const std::function<bool(const pb::RankReport&)>& visit);

// The steps of a run as they count: for each step the record of the newest attempt that made it, in
// order. Damaged logs are left out from the damage on and named in `problems`.
struct StepHistory {
  std::vector<pb::StepRecord> steps;
  std::vector<pb::ValidationRecord> validations;
  std::vector<std::string> problems;
};
Result<StepHistory> load_step_history(const StateDir& state, std::string_view job);

// Tokens per second over the newest steps; 0: unknown.
double newest_rate(const std::vector<pb::StepRecord>& steps);

// Of a run without a result: fills step, loss, validation and speed in from the step history.
void complete_from_history(const StateDir& state, RunInfo* run);

}  // namespace swax
