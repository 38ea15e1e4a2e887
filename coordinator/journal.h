// What the coordinator knows, on disk. One Kv:
//   meta/cluster_id, meta/epoch   of this state; the epoch counts starts
//   job/<job>                     the jobs there are; a job's records stand or fall alone
//   rec/<job>/<be64 n>            JobRecord number n
//   req/<id>                      "<body hash> <job>": the answer to a request
//   taken/<state_id>              highest report of a worker that made a record
//   step/<job>/<be64 step>        StepRecord; not synced
// Batches are collected by add() and written by one synced commit(). A batch that could not be
// written stays and is written by the next commit(); until then nothing of it may be told.
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/types.h"
#include "proto/base/status.h"
#include "storage/kv.h"

namespace swax::coord {

using VisitRecord = std::function<bool(const pb::JobRecord&)>;

// For readers beside the coordinator or after it, which open the Kv read-only.
Result<std::vector<std::string>> recorded_jobs(Kv& kv);
// Folds the records of a job into `durable` and shows each one to `visit` (may be empty) until it
// returns false. kDataLoss: a gap, or a record that cannot be read; those before it are folded.
Status read_job(Kv& kv, const std::string& job, Durable* durable, const VisitRecord& visit);

class Journal {
 public:
  // Reads or makes the cluster id and counts the epoch up, synced. kDataLoss, kInternal, as Kv.
  static Result<std::unique_ptr<Journal>> open(std::unique_ptr<Kv> kv);
  const std::string& cluster_id() const { return cluster_id_; }
  uint64_t epoch() const { return epoch_; }
  uint64_t commits() const { return commits_; }

  // Folds everything stored into `durable`. A job with a gap or an unreadable record is held; only
  // a damaged list of jobs is an error.
  Status recover(Durable* durable);

  void add(const Output& output);
  bool pending() const { return !batch_.empty(); }
  Status commit();

  // Stores steps. A step that stands there from another attempt with other bits is returned as a
  // note for the job's history.
  std::vector<Noted> store_steps(const std::vector<StoreStep>& steps);

  Status visit_records(const std::string& job, uint64_t from, const VisitRecord& visit);
  using VisitStep = std::function<bool(const pb::StepRecord&)>;
  Status visit_steps(const std::string& job, uint64_t from, const VisitStep& visit);

 private:
  explicit Journal(std::unique_ptr<Kv> kv) : kv_(std::move(kv)) {}
  Status start();
  Status recover_answers(Durable* durable);

  std::unique_ptr<Kv> kv_;
  std::string cluster_id_;
  uint64_t epoch_ = 0;
  uint64_t commits_ = 0;
  std::vector<KvWrite> batch_;
};

}  // namespace swax::coord
