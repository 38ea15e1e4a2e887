// The database of one (checkpoint, writer rank). Built once from SST files, immutable afterwards,
// read only ever after. Keys, values and options: storage/FORMAT.md. Internal to storage.
// Threads: an object belongs to one thread; several readers of one folder may exist.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/status.h"
#include "storage/checkpoint_store.h"

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
  // A new SST file begins when one holds sst_bytes of values.
  static Result<std::unique_ptr<ShardDbWriter>> create(const std::string& db_folder,
                                                       const std::string& stage_folder,
                                                       int64_t sst_bytes = kCheckpointSstBytes);
  virtual ~ShardDbWriter() = default;
  // In rising (tensor_id, begin); 1 byte to kCheckpointChunkBytes.
  virtual Status add_chunk(uint32_t tensor_id, uint64_t begin, std::string_view bytes) = 0;
  // Moves all SST files into the database, in one edit. No add_chunk afterwards.
  virtual Result<std::vector<SstFile>> ingest() = 0;
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
