#include "storage/checkpoint_layout.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"
#include "storage/byte_order.h"
#include "storage/container.h"

namespace swax {
namespace {

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kEpochMark = ".a";
constexpr int64_t kSmallFileBytesMax = 256 * kMiB;

std::string padded(uint64_t value, size_t digits) {
  std::string text = to_text(value);
  if (text.size() < digits) text.insert(0, digits - text.size(), '0');
  return text;
}

bool parse_number(std::string_view text, uint64_t* value) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), *value);
  return !text.empty() && end.ec == std::errc{} && end.ptr == text.data() + text.size();
}

Status lost(const std::string& path, const std::string& what) {
  return data_loss(path + ": " + what);
}

// What is not there, or is something else, is lost. That a read failed for another reason (a mount
// that is away, no descriptors, no right) says nothing about the bytes.
Status missing_is_lost(const Status& status) {
  const bool gone = status.code() == Code::kNotFound || status.code() == Code::kInvalidArgument;
  return gone ? data_loss(status.message()) : status;
}

std::string number(uint64_t value) { return to_text(value); }

Status check_report(const std::string& path, const CheckpointName& name, uint32_t world_size,
                    const pb::RankShard& reported, const pb::ShardManifest& shard) {
  uint64_t bytes = 0;
  for (const pb::CheckpointChunk& chunk : shard.chunks()) bytes += chunk.count() * sizeof(float);
  const std::string root = chunk_table_root(shard).hex();
  const struct {
    const char* field;
    uint64_t have;
    uint64_t want;
  } numbers[] = {
      {"format_version", shard.format_version(), kCheckpointVersion},
      {"step", shard.step(), name.step},
      {"epoch", shard.epoch(), name.epoch},
      {"rank", shard.rank(), reported.rank()},
      {"world_size", shard.world_size(), world_size},
      {"chunks", static_cast<uint64_t>(shard.chunks_size()), reported.chunks()},
      {"bytes", shard.bytes(), reported.bytes()},
      {"sum of the chunks", bytes, shard.bytes()},
  };
  for (const auto& n : numbers) {
    if (n.have != n.want) {
      return lost(path,
                  std::string(n.field) + "=" + number(n.have) + ": must be " + number(n.want));
    }
  }
  if (root != shard.root_xxh3()) return lost(path, "its root is not that of its chunk table");
  if (root != reported.root_xxh3()) {
    return lost(path, "root_xxh3 is " + root + ", reported was " + printable(reported.root_xxh3()));
  }
  return ok();
}

Status check_tensor_cover(const pb::CheckpointTensor& tensor, std::vector<ChunkRef>* chunks) {
  SWAX_ASSIGN(const uint64_t elements, element_count(tensor));
  std::sort(chunks->begin(), chunks->end(),
            [](const ChunkRef& a, const ChunkRef& b) { return a.begin < b.begin; });
  uint64_t covered = 0;
  const auto refuse = [&](const char* what) {
    return failed_precondition("tensor " + printable(tensor.name()) + ": element " +
                               number(covered) + " of " + number(elements) + " is " + what);
  };
  for (const ChunkRef& chunk : *chunks) {
    if (chunk.begin > covered) return refuse("in no shard");
    if (chunk.begin < covered) {
      covered = chunk.begin;
      return refuse("in two shards");
    }
    if (chunk.count == 0 || chunk.count > elements - covered) return refuse("in a wrong chunk");
    covered += chunk.count;
  }
  return covered == elements ? ok() : refuse("in no shard");
}

}  // namespace

std::string CheckpointName::folder() const {
  return std::string(kStepPrefix) + padded(step, 9) + std::string(kEpochMark) + to_text(epoch);
}

Result<CheckpointName> parse_checkpoint_name(std::string_view folder) {
  CheckpointName name;
  const size_t mark = folder.find(kEpochMark);
  if (folder.starts_with(kStepPrefix) && mark != std::string_view::npos &&
      parse_number(folder.substr(kStepPrefix.size(), mark - kStepPrefix.size()), &name.step) &&
      parse_number(folder.substr(mark + kEpochMark.size()), &name.epoch) &&
      name.folder() == folder) {
    return name;
  }
  return invalid_argument("\"" + printable(folder) + "\": must be step-NNNNNNNNN.aE");
}

RankPaths::RankPaths(const std::string& folder, uint32_t rank) {
  const std::string base = "rank-" + padded(rank, 5);
  db_name = base + ".db";
  db = join_path(folder, db_name);
  shard = join_path(folder, base + ".shard");
  stage = join_path(folder, base + ".stage");
  lock = join_path(folder, base + ".lock");
}

Result<uint64_t> element_count(const pb::CheckpointTensor& tensor) {
  constexpr uint64_t kElementsMax = uint64_t{1} << 60;
  uint64_t count = 1;
  for (const uint64_t extent : tensor.shape()) {
    if (extent != 0 && count > kElementsMax / extent) {
      return invalid_argument("tensor " + printable(tensor.name()) + ": too many elements");
    }
    count *= extent;
  }
  if (tensor.dtype() != "f32") {
    return invalid_argument("tensor " + printable(tensor.name()) +
                            ": dtype=" + printable(tensor.dtype()) + ": must be f32");
  }
  return count;
}

Hash128 chunk_hash(const pb::CheckpointChunk& chunk) {
  return {chunk.xxh3_high(), chunk.xxh3_low()};
}

Hash128 chunk_table_root(const pb::ShardManifest& shard) {
  Hasher128 hasher;
  for (const pb::CheckpointChunk& chunk : shard.chunks()) {
    char row[20 + kHashBytes];
    put_le<uint32_t>(row, chunk.tensor_id());
    put_le<uint64_t>(row + 4, chunk.begin());
    put_le<uint64_t>(row + 12, chunk.count());
    put_hash(row + 20, chunk_hash(chunk));
    hasher.update(row, sizeof row);
  }
  return hasher.digest();
}

Result<std::vector<pb::CheckpointFile>> describe_db_files(const std::string& db_folder) {
  SWAX_ASSIGN(const std::vector<std::string> names, list_dir(db_folder));
  std::vector<pb::CheckpointFile> files;
  for (const std::string& name : names) {
    if (name == "LOCK") continue;
    const std::string path = join_path(db_folder, name);
    pb::CheckpointFile& file = files.emplace_back();
    file.set_name(name);
    SWAX_ASSIGN(const int64_t bytes, file_bytes(path));
    file.set_bytes(static_cast<uint64_t>(bytes));
    if (name.ends_with(".sst")) continue;
    SWAX_ASSIGN(const std::string content, read_file(path, kSmallFileBytesMax));
    file.set_xxh3_128(xxh3_128(content).hex());
  }
  return files;
}

Status check_db_files(const std::string& db_folder, const pb::ShardManifest& shard) {
  Result<std::vector<pb::CheckpointFile>> found = describe_db_files(db_folder);
  if (!found.ok()) return missing_is_lost(found.status());
  std::map<std::string, const pb::CheckpointFile*> by_name;
  for (const pb::CheckpointFile& file : *found) by_name[file.name()] = &file;
  for (const pb::CheckpointFile& want : shard.files()) {
    const std::string path = join_path(db_folder, want.name());
    const auto it = by_name.find(want.name());
    if (it == by_name.end()) return lost(path, "missing");
    const pb::CheckpointFile& have = *it->second;
    if (have.bytes() != want.bytes()) {
      return lost(path, number(have.bytes()) + " bytes: must be " + number(want.bytes()));
    }
    if (have.xxh3_128() != want.xxh3_128()) {
      return lost(path, "XXH3-128 is " + have.xxh3_128() + ": must be " + want.xxh3_128());
    }
    by_name.erase(it);
  }
  // A foreign log would be replayed, a foreign MANIFEST or SST could be taken for ours.
  if (!by_name.empty()) {
    return lost(join_path(db_folder, by_name.begin()->first), "does not belong to the checkpoint");
  }
  return ok();
}

Result<ShardFile> read_shard_file(const std::string& folder, const CheckpointName& name,
                                  uint32_t world_size, const pb::RankShard& reported) {
  const RankPaths paths(folder, reported.rank());
  Result<std::string> bytes = read_file(paths.shard, kContainerBytesMax);
  if (!bytes.ok()) return missing_is_lost(bytes.status());
  if (reported.path() != paths.db_name) {
    return lost(paths.shard, "path=" + printable(reported.path()) + ": must be " + paths.db_name);
  }
  const Result<std::string_view> payload = decode_container(kShardKind, *bytes);
  if (!payload.ok()) return payload.status().with_context(paths.shard);
  ShardFile file;
  file.hash = xxh3_128(*bytes);
  if (!file.manifest.ParseFromArray(payload->data(), static_cast<int>(payload->size()))) {
    return lost(paths.shard, "does not parse");
  }
  SWAX_TRY(check_report(paths.shard, name, world_size, reported, file.manifest));
  return file;
}

Result<pb::CheckpointManifest> read_committed(const std::string& ckpt_root,
                                              const CheckpointName& name) {
  const std::string path = join_path(join_path(ckpt_root, name.folder()), kCommittedFile);
  SWAX_ASSIGN(const std::string bytes, read_file(path, kContainerBytesMax));
  const Result<std::string_view> payload = decode_container(kCommittedKind, bytes);
  if (!payload.ok()) return payload.status().with_context(path);
  pb::CheckpointManifest manifest;
  if (!manifest.ParseFromArray(payload->data(), static_cast<int>(payload->size()))) {
    return lost(path, "does not parse");
  }
  if (manifest.format_version() != kCheckpointVersion) {
    return lost(path, "format_version=" + number(manifest.format_version()) + ": must be " +
                          number(kCheckpointVersion));
  }
  if (manifest.step() != name.step || manifest.epoch() != name.epoch) {
    return lost(path,
                "is of step " + number(manifest.step()) + ", epoch " + number(manifest.epoch()));
  }
  return manifest;
}

Result<ChunkIndex> index_chunks(const pb::CheckpointManifest& manifest,
                                const std::vector<pb::ShardManifest>& shards) {
  ChunkIndex index(static_cast<size_t>(manifest.tensors_size()));
  for (const pb::ShardManifest& shard : shards) {
    for (const pb::CheckpointChunk& chunk : shard.chunks()) {
      if (chunk.tensor_id() >= index.size()) {
        return failed_precondition("rank " + number(shard.rank()) + ": a chunk of tensor " +
                                   number(chunk.tensor_id()) + ": the table has " +
                                   number(index.size()));
      }
      index[chunk.tensor_id()].push_back(
          {chunk.begin(), chunk.count(), shard.rank(), chunk_hash(chunk)});
    }
  }
  for (int t = 0; t < manifest.tensors_size(); ++t) {
    if (manifest.tensors(t).id() != static_cast<uint32_t>(t)) {
      return invalid_argument("tensor " + printable(manifest.tensors(t).name()) +
                              ": id=" + number(manifest.tensors(t).id()) + ": must be its place " +
                              to_text(t));
    }
    SWAX_TRY(check_tensor_cover(manifest.tensors(t), &index[static_cast<size_t>(t)]));
  }
  return index;
}

}  // namespace swax
