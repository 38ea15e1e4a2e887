#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/failpoint.h"
#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "storage/checkpoint_db.h"
#include "storage/checkpoint_layout.h"
#include "storage/checkpoint_store.h"
#include "storage/container.h"

namespace swax {
namespace {

constexpr uint64_t kChunkElements = kCheckpointChunkBytes / sizeof(float);
constexpr int64_t kSmallFilesBytes = 1 * kMiB;  // MANIFEST, log, OPTIONS, rank-NNNNN.shard

std::string_view bytes_of(std::span<const float> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size_bytes()};
}

// The sum of the bytes.
Result<int64_t> check_request(const ShardWriteOptions& options,
                              std::span<const ShardRange> ranges) {
  if (options.rank >= options.world_size) {
    return invalid_argument("rank=" + to_text(uint64_t{options.rank}) + ": must be below " +
                            to_text(uint64_t{options.world_size}));
  }
  int64_t bytes = 0;
  const ShardRange* before = nullptr;
  for (const ShardRange& range : ranges) {
    if (before != nullptr && (range.tensor_id < before->tensor_id ||
                              (range.tensor_id == before->tensor_id &&
                               range.begin < before->begin + before->data.size()))) {
      return invalid_argument("ranges: tensor " + to_text(uint64_t{range.tensor_id}) +
                              ", element " + to_text(range.begin) +
                              ": must come behind the range before it");
    }
    bytes += static_cast<int64_t>(range.data.size_bytes());
    before = &range;
  }
  return bytes;
}

// One writer of a rank's part at a time: a second one would delete the first one's files as
// leftovers. The name goes with the lock, so a lock that was taken may be on a file without one.
class RankLock {
 public:
  static Result<RankLock> take(const std::string& path) {
    constexpr int kTries = 10;
    for (int i = 0; i < kTries; ++i) {
      SWAX_ASSIGN(Fd fd, lock_file(path));
      struct stat held {};
      if (fstat(fd.get(), &held) == 0 && held.st_nlink > 0) return RankLock(path, std::move(fd));
    }
    return failed_precondition("lock " + path + ": other writers come and go");
  }
  RankLock(RankLock&&) = default;
  ~RankLock() {
    if (fd_.valid()) unlink(path_.c_str());  // while it is held
  }

 private:
  RankLock(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  Fd fd_;
};

// What proves the part goes first.
Status remove_rank(const RankPaths& paths) {
  SWAX_TRY(remove_tree(paths.shard));
  SWAX_TRY(remove_tree(paths.stage));
  return remove_tree(paths.db);
}

Status check_free_space(const std::string& folder, int64_t bytes) {
  SWAX_ASSIGN(const int64_t free, free_bytes(folder));
  const int64_t want = bytes + bytes / 10 + kSmallFilesBytes;
  if (free >= want) return ok();
  return resource_exhausted("checkpoint in " + folder + ": " + bytes_text(free) +
                            " free: must be at least " + bytes_text(want));
}

std::vector<DbChunk> cut_into_chunks(std::span<const ShardRange> ranges) {
  std::vector<DbChunk> chunks;
  for (const ShardRange& range : ranges) {
    for (uint64_t done = 0; done < range.data.size(); done += kChunkElements) {
      const size_t count =
          static_cast<size_t>(std::min<uint64_t>(kChunkElements, range.data.size() - done));
      chunks.push_back({.tensor_id = range.tensor_id,
                        .begin = range.begin + done,
                        .bytes = bytes_of(range.data.subspan(done, count))});
    }
  }
  return chunks;
}

void add_chunk_table(std::span<const DbChunk> chunks, pb::ShardManifest* manifest) {
  for (const DbChunk& from : chunks) {
    pb::CheckpointChunk* const chunk = manifest->add_chunks();
    chunk->set_tensor_id(from.tensor_id);
    chunk->set_begin(from.begin);
    chunk->set_count(from.bytes.size() / sizeof(float));
    chunk->set_xxh3_high(from.xxh3.high);
    chunk->set_xxh3_low(from.xxh3.low);
    manifest->set_bytes(manifest->bytes() + from.bytes.size());
  }
  manifest->set_root_xxh3(chunk_table_root(*manifest).hex());
}

Status read_back(const std::string& db_folder, const pb::ShardManifest& manifest) {
  SWAX_ASSIGN(const auto db, ShardDbReader::open(db_folder));
  SWAX_ASSIGN(const std::string stored, db->manifest_bytes());
  if (stored != manifest.SerializeAsString()) {
    return data_loss(db_folder + ": gives back another manifest");
  }
  for (const pb::CheckpointChunk& chunk : manifest.chunks()) {
    SWAX_ASSIGN(const std::string_view bytes, db->chunk(chunk.tensor_id(), chunk.begin()));
    if (xxh3_128(bytes) != chunk_hash(chunk)) {
      return data_loss(db_folder + ": gives back another chunk of tensor " +
                       to_text(uint64_t{chunk.tensor_id()}));
    }
  }
  return ok();
}

// Builds the database and proves it with rank-NNNNN.shard, which is written last.
Result<pb::ShardManifest> build_rank(const ShardWriteOptions& options, const RankPaths& paths,
                                     std::span<const ShardRange> ranges) {
  pb::ShardManifest manifest;
  manifest.set_format_version(kCheckpointVersion);
  manifest.set_step(options.name.step);
  manifest.set_epoch(options.name.epoch);
  manifest.set_rank(options.rank);
  manifest.set_world_size(options.world_size);
  SWAX_ASSIGN(const auto db, ShardDbWriter::create(paths.db, paths.stage));
  std::vector<DbChunk> chunks = cut_into_chunks(ranges);
  SWAX_ASSIGN(const std::vector<SstFile> tables, db->add_chunks(chunks));
  add_chunk_table(chunks, &manifest);
  SWAX_FAILPOINT("checkpoint.ingested");
  for (const SstFile& table : tables) {
    pb::CheckpointFile* const file = manifest.add_files();
    file->set_name(table.name);
    file->set_bytes(table.bytes);
  }
  SWAX_TRY(remove_tree(paths.stage));
  SWAX_TRY(db->put_manifest(manifest.SerializeAsString()));
  SWAX_TRY(db->close());
  if (options.read_back) SWAX_TRY(read_back(paths.db, manifest));
  SWAX_TRY(sync_dir(paths.db));

  SWAX_ASSIGN(const std::vector<pb::CheckpointFile> files, describe_db_files(paths.db));
  manifest.clear_files();
  for (const pb::CheckpointFile& file : files) {
    SWAX_TRY(sync_file(join_path(paths.db, file.name())));
    *manifest.add_files() = file;
  }
  // Syncs the checkpoint folder, too, and with it the names of the database and the stage.
  SWAX_TRY(write_atomic(paths.shard, encode_container(kShardKind, manifest.SerializeAsString())));
  SWAX_FAILPOINT("checkpoint.durable");
  return manifest;
}

}  // namespace

Result<pb::RankShard> write_shard(const ShardWriteOptions& options,
                                  std::span<const ShardRange> ranges) {
  SWAX_ASSIGN(const int64_t bytes, check_request(options, ranges));
  const std::string folder = join_path(options.ckpt_root, options.name.folder());
  if (path_exists(join_path(folder, kCommittedFile))) {
    return already_exists("checkpoint " + folder + ": is committed");
  }
  SWAX_TRY(make_dirs(folder));
  const RankPaths paths(folder, options.rank);
  SWAX_ASSIGN(const RankLock lock, RankLock::take(paths.lock));
  SWAX_TRY(remove_rank(paths));  // of a writer that died
  SWAX_TRY(check_free_space(folder, bytes));
  SWAX_FAILPOINT("checkpoint.save_begun");
  const Result<pb::ShardManifest> manifest = build_rank(options, paths, ranges);
  if (!manifest.ok()) {
    if (const Status removed = remove_rank(paths); !removed.ok()) {
      log_warn("storage", "partial checkpoint left behind",
               {{"folder", folder}, {"why", removed.message()}});
    }
    return manifest.status().with_context("checkpoint " + folder);
  }
  pb::RankShard shard;
  shard.set_rank(options.rank);
  shard.set_path(paths.db_name);
  shard.set_chunks(static_cast<uint64_t>(manifest->chunks_size()));
  shard.set_bytes(manifest->bytes());
  shard.set_root_xxh3(manifest->root_xxh3());
  return shard;
}

}  // namespace swax
