// RocksDB behind Kv, for small state that must survive: runs, records, data set manifests. WAL on,
// point-in-time recovery, checksums verified on every read. One writer process per folder
// (RocksDB's LOCK); readers may open read-only at any time. RocksDB's own "open OK" proves nothing
// about completeness (a cut MANIFEST opens with no keys): what must be complete carries its own
// counts and digests. RepairDB, best_efforts_recovery and mmap reads are never used.
#pragma once

#include <memory>
#include <string>

#include "storage/kv.h"

namespace swax {

enum class KvMode { kCreate, kOpen, kReadOnly };  // kCreate also opens an existing one

// kNotFound (kOpen, kReadOnly: no such store), kUnavailable (another process holds it), kDataLoss,
// kInternal.
Result<std::unique_ptr<Kv>> open_rocks_kv(const std::string& folder, KvMode mode);

// mallopt settings that RocksDB needs to write large values fast; called once at the start of main.
void configure_malloc_for_storage();

}  // namespace swax
