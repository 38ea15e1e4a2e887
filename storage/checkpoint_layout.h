// Names, small files and the chunk index of a checkpoint folder: what writing, committing and
// reading share. Opens no database. Internal to storage. Threads: pure functions and file reads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/hash.h"
#include "proto/base/status.h"
#include "proto/checkpoint.pb.h"
#include "storage/checkpoint_store.h"

namespace swax {

constexpr uint32_t kCheckpointVersion = 1;
constexpr std::string_view kCommittedFile = "COMMITTED";
constexpr std::string_view kBadFile = "BAD";
constexpr std::string_view kDeletingPrefix = "deleting-";

// Paths of one rank inside the checkpoint folder.
struct RankPaths {
  RankPaths(const std::string& folder, uint32_t rank);
  std::string db_name;  // "rank-00000.db"
  std::string db;
  std::string shard;  // the ShardManifest; there when the rank's part is durable
  std::string stage;  // SST files before they are ingested
  std::string lock;   // held while the rank writes
};

Result<uint64_t> element_count(const pb::CheckpointTensor& tensor);  // kInvalidArgument
Hash128 chunk_hash(const pb::CheckpointChunk& chunk);
Hash128 chunk_table_root(const pb::ShardManifest& shard);

// What every file of a database is: SST files by size, the others by content, LOCK not at all.
Result<std::vector<pb::CheckpointFile>> describe_db_files(const std::string& db_folder);
// kDataLoss names the file that is missing, foreign, of another size or content.
Status check_db_files(const std::string& db_folder, const pb::ShardManifest& shard);

struct ShardFile {
  pb::ShardManifest manifest;
  Hash128 hash;  // of the whole file
};
// rank-NNNNN.shard, checked against itself and against what the rank reported. kDataLoss.
Result<ShardFile> read_shard_file(const std::string& folder, const CheckpointName& name,
                                  uint32_t world_size, const pb::RankShard& reported);

// COMMITTED. kNotFound: not there. kDataLoss: damaged or of another checkpoint.
Result<pb::CheckpointManifest> read_committed(const std::string& ckpt_root,
                                              const CheckpointName& name);

struct ChunkRef {
  uint64_t begin = 0;
  uint64_t count = 0;
  uint32_t rank = 0;
  Hash128 hash;
};
using ChunkIndex = std::vector<std::vector<ChunkRef>>;  // by tensor, then by rising begin
// kFailedPrecondition when the chunks do not cover every tensor exactly once, naming the tensor and
// the first element that is missing, double or outside.
Result<ChunkIndex> index_chunks(const pb::CheckpointManifest& manifest,
                                const std::vector<pb::ShardManifest>& shards);

}  // namespace swax
