// RocksDB's Status and log in our terms, for the files that see RocksDB: rocks_kv.cc (where this
// is implemented), checkpoint_sst.cc and checkpoint_db.cc. Internal to storage.
// Threads: the logger may be called from any thread.
#pragma once

#include <memory>
#include <string_view>

#include "proto/base/status.h"

namespace rocksdb {
class Logger;
class Status;
}  // namespace rocksdb

namespace swax {

// kNotFound, kDataLoss (corruption, missing file), kResourceExhausted (no space), kUnavailable
// (held by another process, busy), kFailedPrecondition (write to a read-only store), kInternal.
Status from_rocks(const rocksdb::Status& status, std::string_view what);

// Warnings and errors of RocksDB go to proto/base/log, the rest nowhere. With a logger given,
// RocksDB writes no LOG file, so that opening a database to read leaves its folder as it was.
std::shared_ptr<rocksdb::Logger> rocks_logger();

}  // namespace swax
