#include "worker/train/checkpointer.h"

#include <algorithm>
#include <cstring>

#include "proto/base/clock.h"
#include "proto/base/files.h"
#include "proto/base/log.h"
#include "proto/base/text.h"

namespace swax {
namespace {

// What flags say of a save or a commit that is over. The greatest of all ranks counts.
enum Failure : int64_t { kNone, kNoRoom, kOther };

int64_t failure_of(bool over, const Status& result) {
  if (!over || result.ok()) return kNone;
  return result.code() == Code::kResourceExhausted ? kNoRoom : kOther;
}

}  // namespace

Checkpointer::Checkpointer(RankContext& rank, Fsdp& fsdp, const StateTable& table,
                           const CheckpointerOptions& options, ReportSink* sink)
    : rank_(rank), fsdp_(fsdp), table_(table), options_(options), sink_(sink) {}

Result<std::unique_ptr<Checkpointer>> Checkpointer::create(RankContext& rank, Fsdp& fsdp,
                                                           const StateTable& table,
                                                           const CheckpointerOptions& options,
                                                           ReportSink* sink) {
  std::unique_ptr<Checkpointer> self(new Checkpointer(rank, fsdp, table, options, sink));
  for (Block& block : self->staging_) {
    SWAX_ASSIGN(
        block, make_block(rank.backend, DType::kF32, {fsdp.shard_elements()}, MemoryKind::kPinned));
  }
  SWAX_ASSIGN(self->copy_, rank.backend.make_stream());
  self->sums_.resize(table.tensors());
  self->mine_.resize(sizeof(Durable) + sizeof(DigestSums) * self->sums_.size());
  self->all_.resize(self->mine_.size() * rank.shard.size());
  self->thread_ = std::thread([p = self.get()] { p->background(); });
  return self;
}

Checkpointer::~Checkpointer() {
  if (!thread_.joinable()) return;
  post(Work::kQuit);
  thread_.join();
}

int64_t Checkpointer::staging_bytes() const {
  int64_t bytes = 0;
  for (const Block& block : staging_) bytes += block.buffer.bytes();
  return bytes;
}

void Checkpointer::post(Work work) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });  // a discard may still run; it is short
    SWAX_CHECK(work_ == Work::kNone);
    work_ = work;
    busy_ = work != Work::kQuit;
  }
  changed_.notify_all();
}

void Checkpointer::background() {
  for (;;) {
    Work work = Work::kNone;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return work_ != Work::kNone; });
      work = work_;
      work_ = Work::kNone;
    }
    if (work == Work::kQuit) return;
    Status result;
    if (work == Work::kWrite) result = write();
    if (work == Work::kCommit) result = commit();
    if (work == Work::kDiscard) result = discard();
    {
      std::lock_guard lock(mutex_);
      result_ = std::move(result);
      busy_ = false;
    }
    changed_.notify_all();
  }
}

// What a failed save left. A folder with COMMITTED is never removed, whatever the commit said.
Status Checkpointer::discard() {
  const std::string folder = join_path(options_.ckpt_root, discard_.folder());
  if (path_exists(join_path(folder, "COMMITTED"))) return ok();
  return remove_tree(folder);
}

Status Checkpointer::copy_state() {
  Backend& backend = rank_.backend;
  backend.wait(*copy_, backend.record(rank_.compute));
  const Tensor from[kStateKinds] = {fsdp_.master(), fsdp_.adam_m(), fsdp_.adam_v()};
  for (int kind = 0; kind < kStateKinds; ++kind)
    SWAX_TRY(backend.copy(*copy_, staging_[kind].tensor, from[kind]));
  copied_ = backend.record(*copy_);
  return ok();
}

Status Checkpointer::begin(int64_t step, double loss) {
  SWAX_CHECK(idle());
  if (discarding_) {
    discarding_ = false;
    // Rank 0 may still be removing what the failed save left: nobody writes there before.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
    lock.unlock();
    SWAX_TRY(rank_.shard.barrier());
  }
  SWAX_TRY(copy_state());
  step_ = step;
  loss_ = loss;
  phase_ = Phase::kSaving;
  post(Work::kWrite);
  return ok();
}

Status Checkpointer::write() {
  SWAX_TRY(rank_.backend.sync(*copy_));
  table_.digest({staging_[0].tensor.f32(), staging_[1].tensor.f32(), staging_[2].tensor.f32()},
                sums_);
  std::vector<ShardRange> ranges;
  const int count = static_cast<int>(table_.shape().tensors.size());
  for (int kind = 0; kind < kStateKinds; ++kind) {
    for (const StatePiece& piece : table_.pieces())
      ranges.push_back({.tensor_id = static_cast<uint32_t>(kind * count + piece.tensor),
                        .begin = static_cast<uint64_t>(piece.tensor_begin),
                        .data = {staging_[kind].tensor.f32() + piece.flat_begin,
                                 static_cast<size_t>(piece.elements)}});
  }
  ShardWriteOptions write_options;
  write_options.ckpt_root = options_.ckpt_root;
  write_options.name = {static_cast<uint64_t>(step_), options_.epoch};
  write_options.rank = static_cast<uint32_t>(rank_.shard.rank());
  write_options.world_size = static_cast<uint32_t>(rank_.shard.size());
  SWAX_ASSIGN(shard_, write_shard(write_options, ranges));
  return ok();
}

void Checkpointer::fill_flags(StepFlags& flags) {
  std::lock_guard lock(mutex_);
  if (phase_ == Phase::kSaving) {
    flags[StepFlags::kSaving] = busy_ ? 1 : 0;
    flags[StepFlags::kSaveFailed] = failure_of(!busy_, result_);
  }
  if (phase_ == Phase::kCommitting && rank_.shard.rank() == 0) {
    flags[StepFlags::kCommitting] = busy_ ? 1 : 0;
    flags[StepFlags::kCommitFailed] = failure_of(!busy_, result_);
  }
}

Status Checkpointer::settle(const StepFlags& agreed) {
  const bool save_over = phase_ == Phase::kSaving && agreed[StepFlags::kSaving] == 0;
  const bool commit_over = phase_ == Phase::kCommitting && agreed[StepFlags::kCommitting] == 0;
  if (save_over && agreed[StepFlags::kSaveFailed] == 0 && options_.report_durable) {
    report_durable();
    phase_ = Phase::kIdle;
    failures_ = 0;
    no_room_ = false;
    saved_step_ = step_;
    return ok();
  }
  if (save_over && agreed[StepFlags::kSaveFailed] == 0) {
    SWAX_TRY(gather_durable());
    phase_ = Phase::kCommitting;
    if (rank_.shard.rank() == 0) post(Work::kCommit);
    return ok();
  }
  if (!save_over && !commit_over) return ok();
  phase_ = Phase::kIdle;
  if (commit_over && agreed[StepFlags::kCommitFailed] == 0) {
    failures_ = 0;
    no_room_ = false;
    saved_step_ = step_;
    return ok();
  }
  return settle_failure(agreed[save_over ? StepFlags::kSaveFailed : StepFlags::kCommitFailed]);
}

Status Checkpointer::settle_failure(int64_t kind) {
  no_room_ = kind == kNoRoom;
  if (!no_room_) ++failures_;
  std::string reason = "another rank's shard was not written";
  {
    std::lock_guard lock(mutex_);
    if (!result_.ok()) reason = result_.to_string();
  }
  log_warn("train", "checkpoint failed",
           {{"step", step_}, {"reason", reason}, {"in_a_row", failures_}});
  if (sink_) sink_->event("checkpoint_failed", step_, reason);
  discard_ = {static_cast<uint64_t>(step_), options_.epoch};
  discarding_ = true;
  if (rank_.shard.rank() == 0) post(Work::kDiscard);
  if (failures_ >= kSaveFailuresMax)
    return resource_exhausted(to_text(failures_) +
                              " checkpoints in a row failed, the last at step " + to_text(step_) +
                              ": " + reason);
  return ok();
}

Status Checkpointer::gather_durable() {
  Durable durable{};
  durable.chunks = shard_.chunks();
  durable.bytes = shard_.bytes();
  SWAX_CHECK(shard_.root_xxh3().size() < sizeof durable.root_xxh3);
  SWAX_CHECK(shard_.path().size() < sizeof durable.path);
  std::memcpy(durable.root_xxh3, shard_.root_xxh3().data(), shard_.root_xxh3().size());
  std::memcpy(durable.path, shard_.path().data(), shard_.path().size());
  std::memcpy(mine_.data(), &durable, sizeof durable);
  std::memcpy(mine_.data() + sizeof durable, sums_.data(), sums_.size() * sizeof(DigestSums));
  return rank_.shard.all_gather_host(mine_, all_);
}

// What of the manifest needs no other rank.
pb::CheckpointManifest Checkpointer::base_manifest() const {
  pb::CheckpointManifest manifest;
  manifest.set_format_version(1);
  manifest.set_job(options_.job);
  manifest.set_step(static_cast<uint64_t>(step_));
  manifest.set_epoch(options_.epoch);
  manifest.set_world_size(static_cast<uint32_t>(rank_.shard.size()));
  manifest.set_numeric_id(options_.numeric_id);
  manifest.set_spec_hash(options_.spec_hash);
  manifest.set_fingerprint(options_.fingerprint);
  manifest.set_build_id(options_.build_id);
  manifest.set_tokens_seen(static_cast<uint64_t>(step_ * options_.tokens_per_step));
  manifest.set_loss(loss_);
  return manifest;
}

void Checkpointer::report_durable() {
  pb::RankDurable report;
  report.set_step(static_cast<uint64_t>(step_));
  report.set_world_size(static_cast<uint32_t>(rank_.shard.size()));
  *report.mutable_shard() = shard_;
  for (const DigestSums& sum : sums_) {
    report.add_digest_sums(sum.sum0);
    report.add_digest_sums(sum.sum1);
  }
  if (rank_.shard.rank() == 0) {
    *report.mutable_base() = base_manifest();
    // Names, shapes and ids of the tensors; their digests are the sums of all ranks' parts.
    const std::vector<DigestSums> none(sums_.size());
    for (pb::CheckpointTensor& tensor : table_.manifest_tensors(none))
      *report.mutable_base()->add_tensors() = std::move(tensor);
  }
  options_.report_durable(report);
}

Status Checkpointer::commit() {
  std::vector<DigestSums> sums(sums_.size());
  pb::CheckpointManifest manifest;
  for (int rank = 0; rank < rank_.shard.size(); ++rank) {
    const std::byte* base = all_.data() + rank * mine_.size();
    Durable durable;
    std::memcpy(&durable, base, sizeof durable);
    std::vector<DigestSums> part(sums.size());
    std::memcpy(part.data(), base + sizeof durable, part.size() * sizeof(DigestSums));
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i].sum0 += part[i].sum0;
      sums[i].sum1 += part[i].sum1;
    }
    pb::RankShard& shard = *manifest.add_ranks();
    shard.set_rank(static_cast<uint32_t>(rank));
    shard.set_path(durable.path);
    shard.set_chunks(durable.chunks);
    shard.set_bytes(durable.bytes);
    shard.set_root_xxh3(durable.root_xxh3);
  }
  SystemClock clock;
  manifest.MergeFrom(base_manifest());
  manifest.set_committed_ms(clock.wall_ms());
  for (pb::CheckpointTensor& tensor : table_.manifest_tensors(sums))
    *manifest.add_tensors() = std::move(tensor);
  manifest.set_run_digest(table_.run_digest(sums, step_).hex());
  SWAX_TRY(commit_checkpoint(options_.ckpt_root, manifest));
  if (sink_) sink_->event("checkpoint_committed", step_, manifest.run_digest());
  // The checkpoint stands from here on: trouble with older ones is said, it does not undo this one.
  const auto retired = retire_checkpoints(options_.ckpt_root, options_.keep);
  if (!retired.ok()) {
    log_warn("train", "older checkpoints not removed", {{"reason", retired.status().message()}});
    if (sink_) sink_->event("retention_failed", step_, retired.status().message());
    return ok();
  }
  for (const CheckpointName& name : *retired)
    if (sink_) sink_->event("checkpoint_retired", static_cast<int64_t>(name.step), name.folder());
  return ok();
}

}  // namespace swax
