// Checkpointer::load: all ranks try the same candidates in the same order and agree on each
// verdict.
#include <algorithm>
#include <cstring>

#include "proto/base/log.h"
#include "proto/base/text.h"
#include "worker/train/checkpointer.h"

namespace swax {
namespace {

constexpr size_t kCandidatesMax = 64;
constexpr size_t kReasonBytes = 240;

struct Candidates {
  uint64_t count = 0;
  CheckpointName names[kCandidatesMax];
};

struct Verdict {
  int64_t code = 0;  // Code of this rank's attempt
  char reason[kReasonBytes] = {};
};

// What rank 0 sees, on every rank. `unreadable`: of rank 0 alone.
Result<Candidates> share_candidates(Collectives& group, const std::string& ckpt_root,
                                    std::vector<CheckpointEntry>* unreadable) {
  Candidates mine;
  Status listed;
  if (group.rank() == 0) {
    if (auto entries = list_checkpoints(ckpt_root); entries.ok()) {
      for (const CheckpointEntry& entry : *entries) {
        if (entry.read == Code::kDataLoss) {
          unreadable->push_back(entry);
        } else if (entry.read != Code::kOk && entry.read != Code::kNotFound) {
          listed = Status(entry.read, entry.problem);
        }
        if (entry.committed && entry.problem.empty() && mine.count < kCandidatesMax)
          mine.names[mine.count++] = entry.name;
      }
    } else if (entries.status().code() != Code::kNotFound) {
      listed = entries.status();
    }
    if (!listed.ok()) mine.count = kCandidatesMax + 1;
  }
  std::vector<Candidates> all(group.size());
  SWAX_TRY(group.all_gather_host(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(all))));
  SWAX_TRY(listed);
  if (all[0].count > kCandidatesMax) return unavailable("rank 0 could not list the checkpoints");
  return all[0];
}

// The worst verdict over ranks: ok only when every rank is.
Result<Verdict> agree_verdict(Collectives& group, const Status& status) {
  Verdict mine;
  mine.code = static_cast<int64_t>(status.code());
  std::strncpy(mine.reason, status.message().c_str(), kReasonBytes - 1);
  std::vector<Verdict> all(group.size());
  SWAX_TRY(group.all_gather_host(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(all))));
  for (const Verdict& v : all)
    if (v.code != 0) return v;
  return Verdict{};
}

bool damaged(Code code) { return code == Code::kDataLoss || code == Code::kNotFound; }

}  // namespace

Result<int64_t> Checkpointer::load() {
  Collectives& group = rank_.shard;
  std::vector<CheckpointEntry> unreadable;
  SWAX_ASSIGN(const Candidates candidates,
              share_candidates(group, options_.ckpt_root, &unreadable));
  for (const CheckpointEntry& entry : unreadable) call_bad(entry.name, entry.problem);
  for (uint64_t i = 0; i < candidates.count; ++i) {
    const CheckpointName name = candidates.names[i];
    SWAX_ASSIGN(const Verdict verdict, agree_verdict(group, try_load(name)));
    const Code code = static_cast<Code>(verdict.code);
    if (code == Code::kOk) {
      const Tensor to[kStateKinds] = {fsdp_.master(), fsdp_.adam_m(), fsdp_.adam_v()};
      for (int kind = 0; kind < kStateKinds; ++kind)
        SWAX_TRY(rank_.backend.copy(rank_.compute, to[kind], staging_[kind].tensor));
      SWAX_TRY(rank_.backend.sync(rank_.compute));
      fsdp_.weights_changed();
      step_ = saved_step_ = static_cast<int64_t>(name.step);
      return step_;
    }
    if (!damaged(code)) return Status(code, name.folder() + ": " + verdict.reason);
    call_bad(name, verdict.reason);
  }
  return int64_t{0};
}

// Said once: later lists name the mark. Rank 0 speaks for all.
void Checkpointer::call_bad(const CheckpointName& name, const std::string& reason) {
  log_warn("train", "checkpoint is damaged, taking the one before",
           {{"checkpoint", name.folder()}, {"reason", reason}});
  if (rank_.shard.rank() != 0) return;
  if (const Status s = mark_bad(options_.ckpt_root, name, reason); !s.ok())
    log_warn("train", "checkpoint could not be marked bad",
             {{"checkpoint", name.folder()}, {"reason", s.message()}});
  if (sink_)
    sink_->event("checkpoint_bad", static_cast<int64_t>(name.step), name.folder() + ": " + reason);
}

// Own pieces into staging memory, then the digests of whole tensors over all ranks against the
// manifest. A rank that cannot read still takes part in the exchange.
Status Checkpointer::try_load(const CheckpointName& name) {
  auto opened = CheckpointReader::open(options_.ckpt_root, name);
  Status status = opened.ok() ? ok() : opened.status();
  if (status.ok() && (*opened)->manifest().numeric_id() != options_.numeric_id)
    status = failed_precondition("checkpoint belongs to numeric_id " +
                                 (*opened)->manifest().numeric_id() + ", this run is " +
                                 options_.numeric_id);
  if (status.ok()) status = read_pieces(**opened);
  SWAX_ASSIGN(const Verdict verdict, agree_verdict(rank_.shard, status));
  if (verdict.code != 0)
    return status.ok() ? Status(static_cast<Code>(verdict.code), verdict.reason) : status;
  const pb::CheckpointManifest& manifest = (*opened)->manifest();
  if (manifest.fingerprint() != options_.fingerprint && rank_.shard.rank() == 0 && sink_)
    sink_->event("fingerprint_changed", static_cast<int64_t>(name.step),
                 manifest.fingerprint() + " -> " + options_.fingerprint);
  return check_digests(manifest);
}

Status Checkpointer::read_pieces(CheckpointReader& reader) {
  const int count = static_cast<int>(table_.shape().tensors.size());
  for (int kind = 0; kind < kStateKinds; ++kind) {
    float* flat = staging_[kind].tensor.f32();
    std::fill_n(flat, fsdp_.shard_elements(), 0.0F);
    for (const StatePiece& piece : table_.pieces()) {
      const int id = kind * count + piece.tensor;
      const int stored = reader.tensor_id(table_.name(id));
      if (stored < 0) return data_loss("tensor " + table_.name(id) + " is not in the checkpoint");
      SWAX_TRY(reader.read(static_cast<uint32_t>(stored), static_cast<uint64_t>(piece.tensor_begin),
                           {flat + piece.flat_begin, static_cast<size_t>(piece.elements)}));
    }
  }
  return ok();
}

Status Checkpointer::check_digests(const pb::CheckpointManifest& manifest) {
  table_.digest({staging(0), staging(1), staging(2)}, sums_);
  std::vector<DigestSums> all(sums_.size() * rank_.shard.size());
  SWAX_TRY(rank_.shard.all_gather_host(std::as_bytes(std::span(sums_)),
                                       std::as_writable_bytes(std::span(all))));
  std::vector<DigestSums> sums(sums_.size());
  for (size_t i = 0; i < all.size(); ++i) {
    sums[i % sums.size()].sum0 += all[i].sum0;
    sums[i % sums.size()].sum1 += all[i].sum1;
  }
  for (const pb::CheckpointTensor& t : manifest.tensors()) {
    if (t.id() >= sums.size()) return data_loss("tensor " + t.name() + " is unknown to this model");
    if (sums[t.id()] != DigestSums{t.digest0(), t.digest1()})
      return data_loss("digest of tensor " + t.name() + " differs");
  }
  const std::string digest = table_.run_digest(sums, static_cast<int64_t>(manifest.step())).hex();
  if (digest != manifest.run_digest())
    return data_loss("run digest is " + digest + ", the manifest says " + manifest.run_digest());
  return ok();
}

}  // namespace swax
