#include "coordinator/checkpoint_files.h"

#include "jobs/state_digest.h"
#include "proto/base/clock.h"
#include "proto/base/files.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "storage/checkpoint_store.h"

namespace swax::coord {
namespace {

Status check_reports(const WriteCommitted& command) {
  const std::string what = "checkpoint of " + command.job + " at step " + to_text(command.step);
  if (command.ranks.empty() || !command.ranks[0].has_base())
    return invalid_argument(what + ": rank 0 did not say what the checkpoint is");
  const pb::CheckpointManifest& base = command.ranks[0].base();
  if (base.job() != command.job || base.step() != command.step || base.epoch() != command.epoch)
    return invalid_argument(what + ": rank 0 reports another one");
  const size_t sums = 2 * static_cast<size_t>(base.tensors_size());
  for (size_t rank = 0; rank < command.ranks.size(); ++rank) {
    const pb::RankDurable& durable = command.ranks[rank];
    const std::string who = what + ", rank " + to_text(uint64_t{rank});
    if (durable.shard().rank() != rank || durable.world_size() != command.ranks.size() ||
        durable.step() != command.step)
      return invalid_argument(who + ": the report belongs to another gang or step");
    if (static_cast<size_t>(durable.digest_sums_size()) != sums)
      return invalid_argument(who + ": " + to_text(durable.digest_sums_size()) +
                              " digest sums, expected " + to_text(uint64_t{sums}));
  }
  return ok();
}

uint64_t bytes_of(const pb::CheckpointManifest& manifest) {
  uint64_t bytes = 0;
  for (const pb::RankShard& shard : manifest.ranks()) bytes += shard.bytes();
  return bytes;
}

void take_manifest(const pb::CheckpointManifest& manifest, CommittedWritten* written) {
  written->digest = manifest.run_digest();
  written->bytes = bytes_of(manifest);
  written->committed_ms = manifest.committed_ms();
  written->world_size = manifest.world_size();
}

}  // namespace

Result<pb::CheckpointManifest> build_manifest(const WriteCommitted& command, int64_t committed_ms) {
  SWAX_TRY(check_reports(command));
  pb::CheckpointManifest manifest = command.ranks[0].base();
  manifest.set_world_size(static_cast<uint32_t>(command.ranks.size()));
  manifest.set_committed_ms(committed_ms);
  manifest.clear_ranks();
  for (const pb::RankDurable& durable : command.ranks) *manifest.add_ranks() = durable.shard();
  StateDigest digest;
  for (int id = 0; id < manifest.tensors_size(); ++id) {
    uint64_t sum0 = 0, sum1 = 0;
    for (const pb::RankDurable& durable : command.ranks) {
      sum0 += durable.digest_sums(2 * id);
      sum1 += durable.digest_sums(2 * id + 1);
    }
    pb::CheckpointTensor& tensor = *manifest.mutable_tensors(id);
    tensor.set_digest0(sum0);
    tensor.set_digest1(sum1);
    std::vector<int64_t> shape;
    for (const uint64_t dim : tensor.shape()) shape.push_back(static_cast<int64_t>(dim));
    digest.add(tensor.name(), shape, sum0, sum1);
  }
  manifest.set_run_digest(digest.finish(static_cast<int64_t>(command.step)).hex());
  return manifest;
}

CheckpointFiles::CheckpointFiles(std::string store, std::function<void(EventBody)> done)
    : store_(std::move(store)), done_(std::move(done)), thread_([this] { run(); }) {}

CheckpointFiles::~CheckpointFiles() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void CheckpointFiles::post(Work work) {
  const std::scoped_lock lock(mutex_);
  work_.push_back(std::move(work));
  changed_.notify_all();
}

void CheckpointFiles::run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || !work_.empty(); });
    if (stopped_) return;
    const Work work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    if (const auto* write_command = std::get_if<WriteCommitted>(&work)) {
      done_(write(*write_command));
    } else if (const auto* retention = std::get_if<Retention>(&work)) {
      done_(retire(*retention));
    } else {
      for (CommittedWritten& found : find(std::get<FindCommitted>(work))) done_(std::move(found));
    }
  }
}

std::string CheckpointFiles::root(const std::string& job) const {
  return join_path(store_, "jobs/" + job + "/ckpt");
}

CommittedWritten CheckpointFiles::write(const WriteCommitted& command) const {
  CommittedWritten written;
  written.job = command.job;
  written.step = command.step;
  written.epoch = command.epoch;
  SystemClock clock;
  const Result<pb::CheckpointManifest> manifest = build_manifest(command, clock.wall_ms());
  const Status status =
      manifest.ok() ? commit_checkpoint(root(command.job), *manifest) : manifest.status();
  written.ok = status.ok();
  if (!status.ok()) {
    log_warn("coordinator", "checkpoint not committed",
             {{"job", command.job}, {"step", command.step}, {"reason", status.message()}});
    written.error = status.message();
    return written;
  }
  // What attempts before this one left half written, and older saves of this one: commits go
  // forward.
  if (const Status swept = sweep_checkpoints(root(command.job), command.epoch, command.step);
      !swept.ok())
    log_warn("coordinator", "leftovers of saves not removed",
             {{"job", command.job}, {"reason", swept.message()}});
  take_manifest(*manifest, &written);
  return written;
}

std::vector<CommittedWritten> CheckpointFiles::find(const FindCommitted& command) const {
  std::vector<CommittedWritten> all;
  const Result<std::vector<CheckpointEntry>> entries = list_checkpoints(root(command.job));
  if (!entries.ok()) {
    log_warn("coordinator", "checkpoints could not be listed",
             {{"job", command.job}, {"reason", entries.status().message()}});
    return all;
  }
  for (const CheckpointEntry& entry : *entries) {
    if (!entry.committed || !entry.problem.empty()) continue;
    CommittedWritten& found = all.emplace_back();
    found.job = command.job;
    found.step = entry.name.step;
    found.epoch = entry.name.epoch;
    found.found = true;
    take_manifest(entry.manifest, &found);
  }
  return all;
}

// A process that died between the removal and its record left records of checkpoints that are gone:
// these count as removed too.
Retired CheckpointFiles::retire(const Retention& retention) const {
  const std::string& job = retention.command.job;
  Retired retired;
  retired.job = job;
  const Result<std::vector<CheckpointName>> removed =
      retire_checkpoints(root(job), retention.command.keep);
  if (!removed.ok())
    log_warn("coordinator", "old checkpoints not removed",
             {{"job", job}, {"reason", removed.status().message()}});
  if (!is_directory(root(job))) return retired;
  for (const SaveKey& key : retention.known) {
    const CheckpointName name{.step = key.first, .epoch = key.second};
    if (!path_exists(join_path(root(job), name.folder()))) retired.removed.push_back(key);
  }
  return retired;
}

}  // namespace swax::coord
