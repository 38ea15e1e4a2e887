#include <algorithm>
#include <cstring>
#include <list>

#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/checkpoint_db.h"
#include "storage/checkpoint_layout.h"
#include "storage/checkpoint_store.h"

namespace swax {
namespace {

constexpr size_t kOpenDbsMax = 32;  // a database of 10 GB holds about 20 descriptors

class StoreReader final : public CheckpointReader {
 public:
  StoreReader(std::string folder, const CheckpointName& name, pb::CheckpointManifest manifest)
      : folder_(std::move(folder)), name_(name), manifest_(std::move(manifest)) {}

  Status load_shards();
  Status verify(const std::function<void(int64_t, int64_t)>& progress);
  const pb::CheckpointManifest& manifest() const override { return manifest_; }
  int tensor_id(std::string_view name) const override;
  Status read(uint32_t tensor_id, uint64_t begin, std::span<float> out) override;

 private:
  struct OpenDb {
    uint32_t rank;
    std::unique_ptr<ShardDbReader> db;
  };
  Result<ShardDbReader*> open_db(uint32_t rank);
  // Makes the chunk the current one.
  Status load_chunk(uint32_t tensor_id, const ChunkRef& chunk);
  Status verify_tensor(uint32_t tensor_id, const std::function<void(uint64_t bytes)>& advance);
  const std::string& tensor_name(uint32_t id) const {
    return manifest_.tensors(static_cast<int>(id)).name();
  }

  const std::string folder_;
  const CheckpointName name_;
  pb::CheckpointManifest manifest_;
  std::vector<pb::ShardManifest> shards_;
  ChunkIndex index_;
  std::list<OpenDb> open_;             // most recently used first
  const ChunkRef* current_ = nullptr;  // chunk of current_bytes_
  std::string_view current_bytes_;     // inside the first database of open_
};

Status StoreReader::load_shards() {
  for (const pb::RankShard& reported : manifest_.ranks()) {
    SWAX_ASSIGN(ShardFile file, read_shard_file(folder_, name_, manifest_.world_size(), reported));
    if (file.hash.hex() != reported.shard_xxh3()) {
      return data_loss(RankPaths(folder_, reported.rank()).shard + ": XXH3-128 is " +
                       file.hash.hex() + ", COMMITTED says " + printable(reported.shard_xxh3()));
    }
    shards_.push_back(std::move(file.manifest));
  }
  Result<ChunkIndex> index = index_chunks(manifest_, shards_);
  if (!index.ok()) return data_loss("checkpoint " + folder_ + ": " + index.status().message());
  index_ = std::move(*index);
  return ok();
}

int StoreReader::tensor_id(std::string_view name) const {
  for (const pb::CheckpointTensor& tensor : manifest_.tensors()) {
    if (tensor.name() == name) return static_cast<int>(tensor.id());
  }
  return -1;
}

Result<ShardDbReader*> StoreReader::open_db(uint32_t rank) {
  const auto it = std::find_if(open_.begin(), open_.end(),
                               [rank](const OpenDb& open) { return open.rank == rank; });
  if (it != open_.end()) {
    open_.splice(open_.begin(), open_, it);
    return open_.front().db.get();
  }
  const RankPaths paths(folder_, rank);
  const pb::ShardManifest& shard = shards_[rank];
  SWAX_TRY(check_db_files(paths.db, shard));
  SWAX_ASSIGN(auto db, ShardDbReader::open(paths.db));
  // The files are right; whether RocksDB also sees what is in them is another question.
  SWAX_ASSIGN(const std::string bytes, db->manifest_bytes());
  pb::ShardManifest stored;
  if (!stored.ParseFromString(bytes) || stored.root_xxh3() != shard.root_xxh3()) {
    return data_loss(paths.db + ": its manifest differs from " + paths.shard);
  }
  open_.push_front({rank, std::move(db)});
  if (open_.size() > kOpenDbsMax) open_.pop_back();
  return open_.front().db.get();
}

Status StoreReader::load_chunk(uint32_t tensor_id, const ChunkRef& chunk) {
  if (current_ == &chunk) return ok();
  current_ = nullptr;
  const std::string what =
      "tensor " + printable(tensor_name(tensor_id)) + ", elements from " + to_text(chunk.begin);
  SWAX_ASSIGN(ShardDbReader* const db, open_db(chunk.rank));
  const Result<std::string_view> bytes = db->chunk(tensor_id, chunk.begin);
  if (!bytes.ok()) return bytes.status().with_context(what);
  if (bytes->size() != chunk.count * sizeof(float)) {
    return data_loss(what + ": " + to_text(uint64_t{bytes->size()}) + " bytes stored for " +
                     to_text(chunk.count) + " elements");
  }
  const Hash128 computed = xxh3_128(*bytes);
  if (computed != chunk.hash) {
    return data_loss(what + ": rank " + to_text(uint64_t{chunk.rank}) + " in " + folder_ +
                     ": XXH3-128 stored " + chunk.hash.hex() + ", computed " + computed.hex());
  }
  current_ = &chunk;
  current_bytes_ = *bytes;
  return ok();
}

Status StoreReader::read(uint32_t tensor_id, uint64_t begin, std::span<float> out) {
  if (tensor_id >= index_.size()) {
    return invalid_argument("tensor " + to_text(uint64_t{tensor_id}) + ": the table has " +
                            to_text(uint64_t{index_.size()}));
  }
  const std::vector<ChunkRef>& chunks = index_[tensor_id];
  const uint64_t elements = chunks.empty() ? 0 : chunks.back().begin + chunks.back().count;
  if (begin > elements || out.size() > elements - begin) {
    return invalid_argument("tensor " + printable(tensor_name(tensor_id)) + ": elements [" +
                            to_text(begin) + ", " + to_text(begin + out.size()) +
                            "): must lie in [0, " + to_text(elements) + ")");
  }
  auto chunk = std::upper_bound(chunks.begin(), chunks.end(), begin,
                                [](uint64_t at, const ChunkRef& c) { return at < c.begin; });
  if (chunk != chunks.begin()) --chunk;
  for (; !out.empty(); ++chunk) {
    SWAX_TRY(load_chunk(tensor_id, *chunk));
    const uint64_t first = begin - chunk->begin;
    const size_t count = static_cast<size_t>(std::min<uint64_t>(out.size(), chunk->count - first));
    std::memcpy(out.data(), current_bytes_.data() + first * sizeof(float), count * sizeof(float));
    out = out.subspan(count);
    begin += count;
  }
  return ok();
}

Status StoreReader::verify_tensor(uint32_t tensor_id,
                                  const std::function<void(uint64_t bytes)>& advance) {
  const pb::CheckpointTensor& tensor = manifest_.tensors(static_cast<int>(tensor_id));
  const uint64_t name_hash = xxh3_64(tensor.name());
  uint64_t sums[2] = {0, 0};
  for (const ChunkRef& chunk : index_[tensor_id]) {
    SWAX_TRY(load_chunk(tensor_id, chunk));
    for (uint64_t i = 0; i < chunk.count; ++i) {
      uint32_t bits;
      std::memcpy(&bits, current_bytes_.data() + i * sizeof bits, sizeof bits);
      sums[0] += digest_mix(0, name_hash, chunk.begin + i, bits);
      sums[1] += digest_mix(1, name_hash, chunk.begin + i, bits);
    }
    advance(current_bytes_.size());
  }
  if (sums[0] == tensor.digest0() && sums[1] == tensor.digest1()) return ok();
  return data_loss("tensor " + printable(tensor.name()) + " in " + folder_ +
                   ": its digest is not the one that COMMITTED says");
}

Status StoreReader::verify(const std::function<void(int64_t, int64_t)>& progress) {
  int64_t total = 0;
  int64_t done = 0;
  for (const pb::RankShard& rank : manifest_.ranks()) {
    total += static_cast<int64_t>(rank.bytes());
    SWAX_TRY(open_db(rank.rank()));  // also of ranks that hold no data
  }
  const auto advance = [&](uint64_t bytes) {
    done += static_cast<int64_t>(bytes);
    if (progress) progress(done, total);
  };
  for (uint32_t t = 0; t < index_.size(); ++t) SWAX_TRY(verify_tensor(t, advance));
  return ok();
}

Result<std::unique_ptr<StoreReader>> open_reader(const std::string& ckpt_root,
                                                 const CheckpointName& name) {
  const std::string folder = join_path(ckpt_root, name.folder());
  Result<pb::CheckpointManifest> manifest = read_committed(ckpt_root, name);
  if (!manifest.ok()) return manifest.status().with_context("checkpoint " + name.folder());
  auto reader = std::make_unique<StoreReader>(folder, name, std::move(*manifest));
  SWAX_TRY(reader->load_shards());
  return reader;
}

}  // namespace

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::open(const std::string& ckpt_root,
                                                                 const CheckpointName& name) {
  SWAX_ASSIGN(std::unique_ptr<StoreReader> reader, open_reader(ckpt_root, name));
  return std::unique_ptr<CheckpointReader>(std::move(reader));
}

Status verify_checkpoint(const std::string& ckpt_root, const CheckpointName& name,
                         const std::function<void(int64_t, int64_t)>& progress) {
  SWAX_ASSIGN(const std::unique_ptr<StoreReader> reader, open_reader(ckpt_root, name));
  return reader->verify(progress);
}

}  // namespace swax
