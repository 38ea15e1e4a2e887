#include <algorithm>

#include "proto/base/failpoint.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/checkpoint_layout.h"
#include "storage/checkpoint_store.h"
#include "storage/container.h"

namespace swax {
namespace {

Status check_ranks(const pb::CheckpointManifest& manifest) {
  const int ranks = manifest.ranks_size();
  if (ranks == 0 || static_cast<uint32_t>(ranks) != manifest.world_size()) {
    return invalid_argument("world_size=" + to_text(uint64_t{manifest.world_size()}) +
                            ": the manifest lists " + to_text(ranks) + " ranks");
  }
  for (int i = 0; i < ranks; ++i) {
    if (manifest.ranks(i).rank() != static_cast<uint32_t>(i)) {
      return invalid_argument("rank " + to_text(uint64_t{manifest.ranks(i).rank()}) +
                              ": stands at place " + to_text(i));
    }
  }
  return ok();
}

// A repeated commit is the same commit, whenever it was made.
bool same_content(pb::CheckpointManifest a, pb::CheckpointManifest b) {
  a.clear_committed_ms();
  b.clear_committed_ms();
  return a.SerializeAsString() == b.SerializeAsString();
}

// Reads what each rank left, checks it against its report and against the files that stand there,
// and adds the digest of rank-NNNNN.shard to the report. Opens no database.
Result<std::vector<pb::ShardManifest>> collect_shards(const std::string& folder,
                                                      const CheckpointName& name,
                                                      pb::CheckpointManifest* manifest) {
  std::vector<pb::ShardManifest> shards;
  for (pb::RankShard& reported : *manifest->mutable_ranks()) {
    SWAX_ASSIGN(ShardFile file, read_shard_file(folder, name, manifest->world_size(), reported));
    SWAX_TRY(check_db_files(join_path(folder, reported.path()), file.manifest));
    reported.set_shard_xxh3(file.hash.hex());
    shards.push_back(std::move(file.manifest));
  }
  return shards;
}

}  // namespace

Status commit_checkpoint(const std::string& ckpt_root, const pb::CheckpointManifest& wanted) {
  pb::CheckpointManifest manifest = wanted;
  manifest.set_format_version(kCheckpointVersion);
  const CheckpointName name{manifest.step(), manifest.epoch()};
  const std::string folder = join_path(ckpt_root, name.folder());
  SWAX_TRY(check_ranks(manifest).with_context("checkpoint " + folder));
  if (path_exists(join_path(folder, kBadFile))) {
    return failed_precondition("checkpoint " + folder + ": is marked bad");
  }
  SWAX_ASSIGN(const std::vector<pb::ShardManifest> shards, collect_shards(folder, name, &manifest));
  const Result<ChunkIndex> index = index_chunks(manifest, shards);
  if (!index.ok()) return index.status().with_context("checkpoint " + folder);

  const std::string path = join_path(folder, kCommittedFile);
  if (path_exists(path)) {
    SWAX_ASSIGN(const pb::CheckpointManifest old, read_committed(ckpt_root, name));
    if (!same_content(old, manifest)) {
      return already_exists("checkpoint " + folder + ": is committed with other content");
    }
    SWAX_TRY(sync_dir(ckpt_root));  // the commit before may have failed at this
    return sync_dir(folder);
  }
  // The folder's own name must be there before anything says that it counts.
  SWAX_TRY(sync_dir(ckpt_root));
  SWAX_TRY(write_atomic(path, encode_container(kCommittedKind, manifest.SerializeAsString())));
  SWAX_FAILPOINT("checkpoint.committed_written");
  return ok();
}

}  // namespace swax
