#include "tests/sim/oracle.h"

#include <algorithm>
#include <bit>

#include "coordinator/core/core.h"
#include "proto/base/text.h"

namespace swax::sim {
namespace {

std::string attempt_text(const std::string& job, uint64_t epoch) {
  return job + " attempt " + to_text(epoch);
}

bool same_placement(const pb::AttemptPlaced& placed, const pb::StartAttempt& start) {
  if (placed.lead() != start.lead() || placed.ranks_size() != start.ranks_size()) return false;
  for (int i = 0; i < placed.ranks_size(); ++i)
    if (placed.ranks(i).rank() != start.ranks(i).rank() ||
        placed.ranks(i).node() != start.ranks(i).node())
      return false;
  return true;
}

// Ends that only a fault of a worker, a rank or the network explains.
bool infrastructure(const std::string& result) {
  return result == "node_lost" || result == "launch_failed" || result == "signal" ||
         result == "hang";
}

bool own_end(const std::string& result) { return result == "user_error" || result == "hang"; }

}  // namespace

bool Oracle::failed(bool wrong, std::string_view checker, const std::string& text) {
  if (wrong) world_.violation(checker, text);
  return wrong;
}

void Oracle::on_durable(const Batch& batch) {
  for (const pb::JobRecord& record : batch.records) {
    world_.mix(record.SerializeAsString());
    if (world_.tracing())
      world_.trace("record " + coord::history_event(record).ShortDebugString().substr(0, 200) +
                   " of " + record.job());
    take(record);
  }
}

void Oracle::take(const pb::JobRecord& r) {
  Account& account = accounts_[r.job()];
  if (failed(r.number() != account.records + 1, "records_without_gaps",
             r.job() + " record " + to_text(uint64_t{r.number()}) + " follows " +
                 to_text(account.records)))
    return;
  account.records = r.number();
  const bool after_end = r.has_resumed() || r.has_retired() || r.has_noted() || r.has_bad();
  failed(!account.end.empty() && !after_end, "terminal_final",
         r.job() + " changes after " + account.end + ": " + r.ShortDebugString());
  if (r.has_placed()) take_placed(r.job(), account, r.placed());
  if (r.has_finished()) take_finished(r.job(), account, r.finished());
  if (r.has_noted() && r.noted().kind() == "growing") take_growing(r.job(), account, r.noted());
  if (r.has_stop_asked()) account.cancel_asked = true;
  if (r.has_result()) account.digest = r.result().digest();
  if (r.has_job_finished()) account.end = r.job_finished().state();
  if (r.has_committed()) {
    ++commits_;
    account.committed.emplace(r.committed().step(), r.committed().epoch());
    account.failures = account.streak = 0;
    account.commit_epoch = r.committed().epoch();
    account.progress_step = std::max(account.progress_step, uint64_t{r.committed().step()});
  }
  if (!r.has_resumed()) return;
  account.end.clear();
  account.digest.clear();
  account.cancel_asked = false;
  account.failures = account.streak = 0;
}

void Oracle::take_placed(const std::string& job, Account& account,
                         const pb::AttemptPlaced& placed) {
  ++attempts_;
  account.placed[placed.epoch()] = placed;
  account.live_epoch = placed.epoch();
  const pb::FaultTolerance& limits = jobs_.at(job).spec.fault_tolerance();
  failed(account.failures > limits.max_restarts(), "budget",
         attempt_text(job, placed.epoch()) + " starts after " + to_text(account.failures) +
             " restarts without a commit");
  failed(account.streak >= limits.max_no_progress(), "budget",
         attempt_text(job, placed.epoch()) + " starts after " + to_text(account.streak) +
             " attempts without progress");
}

void Oracle::take_finished(const std::string& job, Account& account,
                           const pb::AttemptFinished& finished) {
  account.live_epoch = 0;
  const bool progress =
      finished.step() > account.progress_step || account.commit_epoch == finished.epoch();
  account.progress_step = std::max(account.progress_step, uint64_t{finished.step()});
  if (finished.result() != "stopped" && finished.result() != "done") ++account.failures;
  if (progress) account.streak = 0;
  if (!progress && own_end(finished.result())) ++account.streak;
  failed(swarm_.workers_calm && infrastructure(finished.result()), "calm",
         attempt_text(job, finished.epoch()) + " ends with " + finished.result() + ": " +
             finished.reason());
}

void Oracle::take_growing(const std::string& job, Account& account, const pb::EventNoted& noted) {
  ++growths_;
  const std::string what = attempt_text(job, noted.epoch()) + " leaves for more ranks";
  const auto placed = account.placed.find(noted.epoch());
  const bool live = placed != account.placed.end() && noted.epoch() == account.live_epoch;
  failed(!live, "growth", what + ", but is not live");
  const auto asked = static_cast<int>(jobs_.at(job).spec.parallelism().ranks());
  failed(live && placed->second.ranks_size() >= asked, "growth", what + ", but has all");
  failed(world_.now() - account.grown_ms < kGrowAfterMs, "growth", what + " too soon again");
  account.grown_ms = world_.now();
}

void Oracle::on_replay(const coord::Durable& durable) {
  for (const auto& [job, why] : durable.held)
    failed(true, "records_without_gaps", job + " cannot be replayed: " + why);
  for (const auto& [name, account] : accounts_) {
    const auto it = durable.jobs.find(name);
    const uint64_t there = it == durable.jobs.end() ? 0 : it->second.records;
    failed(there != account.records, "records_without_gaps",
           name + " has " + to_text(there) + " records after a restart, " +
               to_text(account.records) + " were durable");
  }
  for (const std::string& job : acknowledged_)
    failed(!durable.jobs.contains(job), "submit_kept", job + " is gone after a restart");
}

void Oracle::on_begin(const std::string& node, const pb::StartAttempt& start) {
  uint64_t& epoch = begun_[{node, start.job()}];
  failed(start.epoch() <= epoch, "old_epoch_refused",
         node + " begins " + attempt_text(start.job(), start.epoch()) + " after attempt " +
             to_text(epoch));
  epoch = std::max(epoch, uint64_t{start.epoch()});
  const auto account = accounts_.find(start.job());
  const bool known = account != accounts_.end() && account->second.placed.contains(start.epoch());
  failed(!known || !same_placement(account->second.placed.at(start.epoch()), start),
         "placement_durable",
         node + " begins " + attempt_text(start.job(), start.epoch()) +
             ", which is not in the journal like this");
}

void Oracle::on_rank_started(const std::string& node, const std::string& job, uint64_t epoch,
                             uint32_t rank) {
  auto& here = running_[node];
  here.emplace(job, epoch, rank);
  ++ranks_running_;
  failed(here.size() > slots_, "one_attempt_per_slot",
         node + " runs " + to_text(uint64_t{here.size()}) + " ranks on " +
             to_text(uint64_t{slots_}) + " slots");
  const bool two = std::any_of(here.begin(), here.end(), [&](const auto& other) {
    return std::get<0>(other) == job && std::get<1>(other) != epoch;
  });
  failed(two, "one_attempt_per_slot", node + " runs two attempts of " + job);
}

void Oracle::on_rank_ended(const std::string& node, const std::string& job, uint64_t epoch,
                           uint32_t rank) {
  ranks_running_ -= running_[node].erase({job, epoch, rank});
}

void Oracle::on_commit(const std::string& job, uint64_t step, uint64_t epoch,
                       const std::map<uint32_t, uint64_t>& shards, uint32_t world_size) {
  const Account& account = accounts_[job];
  const std::string what = attempt_text(job, epoch) + " step " + to_text(step);
  if (world_.tracing()) world_.trace("COMMITTED " + what);
  failed(account.live_epoch != epoch, "commit_complete", what + " commits, but is not live");
  const auto placed = account.placed.find(epoch);
  const size_t ranks =
      placed == account.placed.end() ? 0 : static_cast<size_t>(placed->second.ranks_size());
  failed(shards.size() != ranks || world_size != ranks, "commit_complete",
         what + " commits with " + to_text(uint64_t{shards.size()}) + " of " +
             to_text(uint64_t{ranks}) + " shards");
  for (const auto& [rank, bits] : shards)
    failed(bits != jobs_.at(job).bits.at(step), "bits",
           what + " rank " + to_text(uint64_t{rank}) + " saved other bits");
}

void Oracle::on_removed(const std::string& job, uint64_t step, int newer, int keep) {
  const Account& account = accounts_[job];
  if (world_.tracing()) world_.trace("removed " + job + " step " + to_text(step));
  const bool recorded = std::any_of(account.committed.begin(), account.committed.end(),
                                    [step](const auto& c) { return c.first > step; });
  failed(newer < keep || !recorded, "retention",
         job + " loses the checkpoint of step " + to_text(step) + " while " + to_text(newer) +
             " newer ones stay" + (recorded ? "" : ", none of them recorded") + "; keep is " +
             to_text(keep));
}

void Oracle::on_submit_acknowledged(const std::string& job) {
  acknowledged_.insert(job);
  failed(!accounts_.contains(job), "submit_kept", job + " is acknowledged, but not durable");
}

void Oracle::on_step(const std::string& job, const pb::StepRecord& step) {
  const SimJob& model = jobs_.at(job);
  const bool same = step.step() <= model.steps() && step.loss_bits() == model.bits[step.step()];
  failed(!same, "bits", job + " step " + to_text(uint64_t{step.step()}) + " has other bits");
}

std::string Oracle::state(const std::string& job) const {
  const auto it = accounts_.find(job);
  return it == accounts_.end() ? "UNKNOWN" : it->second.end.empty() ? "ACTIVE" : it->second.end;
}

bool Oracle::ended(const std::string& job) const {
  const auto it = accounts_.find(job);
  return it != accounts_.end() && !it->second.end.empty();
}

void Oracle::at_end() {
  for (const auto& [name, job] : jobs_) {
    const Account& account = accounts_[name];
    const bool success = account.end == "SUCCEEDED";
    failed(success && account.digest != digest_text(job.bits.back()), "bits",
           name + " ends with digest " + account.digest);
    failed(success && job.kind != JobKind::kNormal, "bits", name + " cannot succeed");
    failed(swarm_.workers_calm && job.kind == JobKind::kNormal && job.cancel_ms < 0 && !success,
           "calm", name + " ends as " + account.end);
  }
}

}  // namespace swax::sim
