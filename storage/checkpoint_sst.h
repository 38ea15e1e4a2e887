// Builds the SST files of one rank's part of a checkpoint: hashes each chunk and writes it, several
// files at a time. One thread alone needs 0.6 CPU seconds per GiB (two hashes, two copies of every
// byte), which is less than the disk takes. Which chunk stands in which file follows from the
// chunks and sst_bytes alone, never from the number of builders. Keys, sentinels and options:
// storage/FORMAT.md. Internal to storage. Threads: build_sst_files starts its own and ends them
// before it returns.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/hash.h"
#include "proto/base/status.h"
#include "storage/checkpoint_store.h"

namespace rocksdb {
struct Options;
}  // namespace rocksdb

namespace swax {

struct DbChunk {
  uint32_t tensor_id = 0;
  uint64_t begin = 0;      // first element
  std::string_view bytes;  // 1 byte to kCheckpointChunkBytes; stays valid while files are built
  Hash128 xxh3 = {};       // of the bytes; filled in by build_sst_files
};

struct SstLimits {
  int64_t sst_bytes =
      kCheckpointSstBytes;  // a file is full when it holds that many bytes of values
  int builders = 2;         // files built at a time, at least 1; each takes about 32 MiB of memory
};

std::string chunk_key(uint32_t tensor_id, uint64_t begin);
rocksdb::Options shard_options();  // of the tables and of the database that takes them in

// Writes 0.sst, 1.sst, ... into the folder, each synced, and returns their paths in the order of
// the keys; without chunks, one file of two sentinels. The chunks come in rising (tensor, begin).
// The first error ends the building; files may be left behind then.
// kResourceExhausted (disk full), kDataLoss, kInternal. Failpoint: checkpoint.sst_finished.
Result<std::vector<std::string>> build_sst_files(const std::string& folder, const SstLimits& limits,
                                                 std::span<DbChunk> chunks);

}  // namespace swax
