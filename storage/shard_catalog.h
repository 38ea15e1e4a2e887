// A data set: one immutable folder of token shards plus a small RocksDB ("manifest.db") with its
// DatasetManifest, written once by whoever builds it, opened read-only by all. Digest rules:
// proto/shard.proto. Threads: DatasetReader may be used by one thread.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "proto/base/hash.h"
#include "proto/base/status.h"
#include "proto/shard.pb.h"
#include "storage/token_shard.h"

namespace swax {

Hash128 dataset_digest(const pb::DatasetManifest& manifest);
// Sets manifest.digest, writes it into folder/manifest.db, syncs. The shards must stand in the
// folder already.
Status write_dataset_manifest(const std::string& folder, pb::DatasetManifest* manifest);
Result<pb::DatasetManifest> read_dataset_manifest(const std::string& folder);  // checks the digest

// One split of a data set as a single sequence of tokens (shards concatenated in manifest order).
class DatasetReader {
 public:
  // expected_digest empty: not compared. Sizes of all shards are checked at open.
  static Result<std::unique_ptr<DatasetReader>> open(const std::string& folder,
                                                     std::string_view split,
                                                     std::string_view expected_digest);
  virtual ~DatasetReader() = default;
  virtual const pb::DatasetManifest& manifest() const = 0;
  virtual uint64_t tokens() const = 0;
  virtual Status read(uint64_t begin, std::span<int32_t> out) = 0;  // may cross shard borders
  // starts[i] = 1 when the token at begin + i is the first of its document.
  virtual Status document_starts(uint64_t begin, std::span<uint8_t> starts) = 0;
};

Status verify_dataset(const std::string& folder);  // every shard, every block, every digest

}  // namespace swax
