// The database of one (checkpoint, writer rank). Built once from SST files, immutable afterwards,
// read only ever after. Keys, values and options: storage/FORMAT.md. Internal to storage.
// Threads: an object belongs to one thread; several readers of one folder may exist.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/status.h"
#include "storage/checkpoint_sst.h"

namespace swax {

struct SstFile {
  std::string name;
  uint64_t bytes = 0;
};

// Errors of all functions: kResourceExhausted when the disk is full, else kInternal or kDataLoss.
// On an error the caller removes both folders.
class ShardDbWriter {
 public:
  // Neither folder may exist; both must lie on one file system (SST files are linked, not copied).
  static Result<std::unique_ptr<ShardDbWriter>> create(const std::string& db_folder,
                                                       const std::string& stage_folder);
  virtual ~ShardDbWriter() = default;
  // All chunks, once: builds SST files of them in the stage folder (checkpoint_sst.h says in which
  // order they must come), which fills in their digests, and moves the files into the database, in
  // one edit.
  virtual Result<std::vector<SstFile>> add_chunks(std::span<DbChunk> chunks,
                                                  const SstLimits& limits = {}) = 0;
  // The last record, synced.
  virtual Status put_manifest(std::string_view bytes) = 0;
  virtual Status close() = 0;
};

class ShardDbReader {
 public:
  // Never changes the folder. The caller has checked its files: RocksDB may answer OK or abort on
  // a damaged MANIFEST.
  static Result<std::unique_ptr<ShardDbReader>> open(const std::string& db_folder);
  virtual ~ShardDbReader() = default;
  virtual Result<std::string> manifest_bytes() = 0;  // kDataLoss when there is none
  // The view holds until the next call.
  virtual Result<std::string_view> chunk(uint32_t tensor_id, uint64_t begin) = 0;
};

}  // namespace swax
