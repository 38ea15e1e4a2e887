// Checkpoints of one job: <store>/jobs/<job>/ckpt/step-NNNNNNNNN.aE/{rank-NNNNN.db,
// rank-NNNNN.shard, COMMITTED}. Byte layouts: storage/FORMAT.md. One small RocksDB per (step,
// writer rank), built by SstFileWriter + ingest, immutable and opened read-only ever after;
// rank-NNNNN.shard repeats its manifest with the digests of its small files, so that committing
// opens no database and a damaged MANIFEST never reaches RocksDB. A checkpoint exists when
// COMMITTED (manifest + XXH3-128, written by tmp + fsync + rename + directory fsync) is there;
// nothing else proves anything. Tensors are addressed by (tensor, element range): any number of
// ranks loads what any number of ranks wrote. Order: all ranks durable -> COMMITTED -> the caller's
// record -> retention. Nothing is deleted before the newer checkpoint is committed; the newest
// verified one is never deleted. Failpoints: checkpoint.save_begun, checkpoint.sst_finished,
// checkpoint.ingested, checkpoint.durable, checkpoint.committed_written, checkpoint.retention_half.
// Threads: ShardWriter belongs to one thread (the background writer); the free functions may be
// called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "proto/checkpoint.pb.h"

namespace swax {

constexpr int64_t kCheckpointChunkBytes =
    4 * 1024 * 1024;  // value size; from 16 MiB on writing gets slower
constexpr int64_t kCheckpointSstBytes = 512LL * 1024 * 1024;

struct CheckpointName {
  uint64_t step = 0;
  uint64_t epoch = 0;
  std::string folder() const;                               // "step-000012000.a1"
  auto operator<=>(const CheckpointName&) const = default;  // by step, then epoch
};
Result<CheckpointName> parse_checkpoint_name(std::string_view folder);

// A run of elements of one tensor that this rank writes. f32.
struct ShardRange {
  uint32_t tensor_id = 0;
  uint64_t begin = 0;
  std::span<const float> data;
};

struct ShardWriteOptions {
  std::string ckpt_root;  // <store>/jobs/<job>/ckpt
  CheckpointName name;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  // Everything is read again and compared before the rank counts as durable: whatever is committed
  // has been verified, so retention, which keeps the newest `keep`, always keeps verified ones.
  bool read_back = true;
};

// Writes and syncs one rank's database, two SST files at a time (a second thread, 32 MiB of memory
// each). Ranges must come in rising (tensor_id, begin). Checks free space first (>= 1.1 x the
// bytes). On failure the rank's partial folder is removed (or left for the sweep when the process
// dies). Returns what DURABLE reports. kInvalidArgument (ranges), kAlreadyExists (committed
// already), kFailedPrecondition (another writer of this rank is at work), kResourceExhausted (disk
// full).
Result<pb::RankShard> write_shard(const ShardWriteOptions& options,
                                  std::span<const ShardRange> ranges);

// Writes COMMITTED; RankShard.shard_xxh3 is filled in. Again with the same content: ok, with other
// content: kAlreadyExists. Fails (kDataLoss) when a rank's shard is missing or its manifest differs
// from what `manifest.ranks` says, or (kFailedPrecondition) when the ranges of all ranks do not
// cover every tensor exactly once.
// An error while the folder is synced (the last thing done) leaves a whole COMMITTED, which every
// reader takes; only a power cut may still undo it. The caller, who was told that it failed,
// commits again or goes on from the one before; nothing is lost either way, for retention comes
// after an ok.
Status commit_checkpoint(const std::string& ckpt_root, const pb::CheckpointManifest& manifest);

struct CheckpointEntry {
  CheckpointName name;
  bool committed = false;  // COMMITTED present and whole
  std::string problem;     // why not, or why it is marked bad
  // Of reading COMMITTED. kNotFound: not committed. kDataLoss: damaged, and not yet marked bad.
  // kOk: committed or marked bad. Others: it could not be read now.
  Code read = Code::kOk;
  pb::CheckpointManifest manifest;  // when committed
};
// Newest first. A folder that cannot be read is an entry with a problem, never an error.
Result<std::vector<CheckpointEntry>> list_checkpoints(const std::string& ckpt_root);

// Read access to one committed checkpoint. Every chunk read is checked against the XXH3-128 of its
// shard manifest, every shard manifest against COMMITTED. kDataLoss names file, tensor and reason.
class CheckpointReader {
 public:
  static Result<std::unique_ptr<CheckpointReader>> open(const std::string& ckpt_root,
                                                        const CheckpointName& name);
  virtual ~CheckpointReader() = default;
  virtual const pb::CheckpointManifest& manifest() const = 0;
  virtual int tensor_id(std::string_view name) const = 0;  // -1 when absent
  // Fills out with elements [begin, begin + out.size()) of the tensor.
  virtual Status read(uint32_t tensor_id, uint64_t begin, std::span<float> out) = 0;
};

// Reads everything and checks every digest, the tensor digests included. progress may be empty.
Status verify_checkpoint(
    const std::string& ckpt_root, const CheckpointName& name,
    const std::function<void(int64_t bytes_done, int64_t bytes_total)>& progress);

// Marks a checkpoint bad (writes BAD with the reason); it is never chosen again and never deleted
// by retention.
Status mark_bad(const std::string& ckpt_root, const CheckpointName& name, std::string_view reason);

// Keeps the newest `keep` committed checkpoints that are not bad; removes older committed ones and
// returns their names. A removal first renames the folder to "deleting-..." (synced), so a
// half-removed folder is never taken for a checkpoint.
Result<std::vector<CheckpointName>> retire_checkpoints(const std::string& ckpt_root, int keep);

// Removes what will never be committed: uncommitted folders of epochs < `live_epoch`, and of that
// epoch those of steps < `live_step` (saves while no coordinator was there to commit them),
// "deleting-..." folders. Never a folder with COMMITTED or BAD.
Status sweep_checkpoints(const std::string& ckpt_root, uint64_t live_epoch, uint64_t live_step = 0);

}  // namespace swax
