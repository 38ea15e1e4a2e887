// What must hold, whatever fails. The oracle knows the truth of the world: the synced journal, the
// processes that run and the files that lie in the store. It keeps its own account of every job
// from the journal and never asks the cores. Checkers by name:
//   one_attempt_per_slot      a node never runs more ranks than slots, nor two epochs of one job
//   placement_durable         nothing starts that is not in the synced journal
//   old_epoch_refused         a node begins rising epochs of a job only, each once
//   submit_kept               an acknowledged submit stays
//   records_without_gaps      numbers of a job's records count up; a restart loses none of them
//   terminal_final            an end is the last word but for resume
//   commit_complete           COMMITTED: all ranks' shards of one epoch, which is the live one
//   retention                 a checkpoint goes only when `keep` newer ones stay, one recorded
//   budget                    restarts since a commit, attempts without progress stay in limits
//   growth                    only who has fewer ranks than asked leaves for more, not soon again
//   bits                      every step and result has the bits of the spec
//   calm                      attempts end early only where more than the coordinator failed
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>

#include "proto/control.pb.h"
#include "tests/sim/disk.h"
#include "tests/sim/jobs.h"

namespace swax::sim {

constexpr int64_t kShrinkAfterMs = 5'000, kGrowAfterMs = 5'000;

class Oracle {
 public:
  Oracle(World& world, const Swarm& swarm, const SimJobs& jobs, uint32_t slots)
      : world_(world), swarm_(swarm), jobs_(jobs), slots_(slots) {}

  // Journal.
  void on_durable(const Batch& batch);
  void on_replay(const coord::Durable& durable);
  // Processes.
  void on_begin(const std::string& node, const pb::StartAttempt& start);
  void on_rank_started(const std::string& node, const std::string& job, uint64_t epoch,
                       uint32_t rank);
  void on_rank_ended(const std::string& node, const std::string& job, uint64_t epoch,
                     uint32_t rank);
  size_t ranks_running() const { return ranks_running_; }
  // Store.
  void on_commit(const std::string& job, uint64_t step, uint64_t epoch,
                 const std::map<uint32_t, uint64_t>& shards, uint32_t world_size);
  // newer: committed ones that stay in the store.
  void on_removed(const std::string& job, uint64_t step, int newer, int keep);
  // Clients and history.
  void on_submit_acknowledged(const std::string& job);
  void on_step(const std::string& job, const pb::StepRecord& step);
  bool ended(const std::string& job) const;
  std::string state(const std::string& job) const;
  void at_end();  // results against what must come out
  uint64_t commits() const { return commits_; }
  uint64_t attempts() const { return attempts_; }
  uint64_t growths() const { return growths_; }

 private:
  struct Account {
    uint64_t records = 0;
    std::map<uint64_t, pb::AttemptPlaced> placed;
    uint64_t live_epoch = 0;  // 0: none
    std::set<std::pair<uint64_t, uint64_t>> committed;
    uint64_t failures = 0, streak = 0, progress_step = 0, commit_epoch = 0;
    std::string end, digest;
    bool cancel_asked = false;
    int64_t grown_ms = INT64_MIN / 2;  // when it was last asked to leave for more ranks
  };
  void take(const pb::JobRecord& record);
  void take_placed(const std::string& job, Account& account, const pb::AttemptPlaced& placed);
  void take_finished(const std::string& job, Account& account, const pb::AttemptFinished& finished);
  void take_growing(const std::string& job, Account& account, const pb::EventNoted& noted);
  bool failed(bool wrong, std::string_view checker, const std::string& text);

  World& world_;
  const Swarm& swarm_;
  const SimJobs& jobs_;
  const uint32_t slots_;
  std::map<std::string, Account> accounts_;
  std::map<std::pair<std::string, std::string>, uint64_t> begun_;  // (node, job) -> epoch
  std::map<std::string, std::set<std::tuple<std::string, uint64_t, uint32_t>>> running_;
  std::set<std::string> acknowledged_;
  size_t ranks_running_ = 0;
  uint64_t commits_ = 0, attempts_ = 0, growths_ = 0;
};

}  // namespace swax::sim
