#include "storage/rocks_kv.h"

#include <malloc.h>
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/iterator.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "storage/rocks_status.h"

namespace swax {
namespace {

constexpr size_t kValueBytesMax = 64 * kMiB;

rocksdb::Slice slice(std::string_view text) { return {text.data(), text.size()}; }
std::string_view view(const rocksdb::Slice& s) { return {s.data(), s.size()}; }

// RocksDB has no code of its own for a lock that somebody holds.
bool lock_is_held(std::string_view message) {
  return message.find("lock hold by current process") != std::string_view::npos ||
         (message.find("While lock file") != std::string_view::npos &&
          message.find("Resource temporarily unavailable") != std::string_view::npos);
}

Code code_of(const rocksdb::Status& status, std::string_view message) {
  if (status.IsNotFound()) return Code::kNotFound;
  // EDQUOT and EFBIG come without the subcode of ENOSPC.
  if (status.IsNoSpace() || message.find("quota exceeded") != std::string_view::npos ||
      message.find("File too large") != std::string_view::npos) {
    return Code::kResourceExhausted;
  }
  if (status.IsCorruption() || status.IsPathNotFound()) return Code::kDataLoss;
  if (lock_is_held(message)) return Code::kUnavailable;
  if (status.IsBusy() || status.IsTryAgain() || status.IsTimedOut()) return Code::kUnavailable;
  for (const int error : {ESTALE, ETIMEDOUT, ENOTCONN, EHOSTDOWN, EHOSTUNREACH})  // a mount is away
    if (message.find(std::strerror(error)) != std::string_view::npos) return Code::kUnavailable;
  for (const int error : {EMFILE, ENFILE, ENOMEM})
    if (message.find(std::strerror(error)) != std::string_view::npos)
      return Code::kResourceExhausted;
  if (status.IsNotSupported()) return Code::kFailedPrecondition;
  if (message.find("No such file or directory") != std::string_view::npos) return Code::kDataLoss;
  return Code::kInternal;
}

class ForwardingLogger final : public rocksdb::Logger {
 public:
  ForwardingLogger() : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    Logv(rocksdb::InfoLogLevel::WARN_LEVEL, format, arguments);
  }
  void Logv(const rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    // HEADER_LEVEL is above every other level, but is only a dump of options.
    if (level < rocksdb::InfoLogLevel::WARN_LEVEL || level == rocksdb::InfoLogLevel::HEADER_LEVEL) {
      return;
    }
    char text[512];
    std::vsnprintf(text, sizeof text, format, arguments);
    log_debug("storage", "rocksdb", {{"says", std::string_view(text)}});
  }
};

// Options of the small state databases, each with its reason.
rocksdb::Options state_options(KvMode mode) {
  rocksdb::Options options;
  options.create_if_missing = mode == KvMode::kCreate;
  options.paranoid_checks = true;
  // A torn tail is dropped, damage before it is an error; kAbsoluteConsistency would refuse the
  // torn tail that every power cut may leave.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.track_and_verify_wals_in_manifest = true;  // a lost WAL file is an error, not a rollback
  options.write_buffer_size = 8 * kMiB;
  options.max_background_jobs = 2;
  options.allow_fallocate = false;  // would reserve several MiB for a few KiB of state
  options.manifest_preallocation_size = 64 * kKiB;
  options.compression = rocksdb::kNoCompression;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.info_log = rocks_logger();
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.block_cache = rocksdb::NewLRUCache(8 * kMiB);
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// Shared because a scan goes on with the database it began with while a write replaces it.
using Db = std::shared_ptr<rocksdb::DB>;

Result<Db> open_db(const std::string& folder, KvMode mode) {
  const rocksdb::Options options = state_options(mode);
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status = mode == KvMode::kReadOnly
                                     ? rocksdb::DB::OpenForReadOnly(options, folder, &raw)
                                     : rocksdb::DB::Open(options, folder, &raw);
  Db db(raw);
  if (!status.ok()) return from_rocks(status, "open " + folder);
  return db;
}

class RocksKv final : public Kv {
 public:
  RocksKv(std::string folder, Db db) : folder_(std::move(folder)), db_(std::move(db)) {}

  Result<std::string> get(std::string_view key) override {
    const std::shared_lock lock(mutex_);
    if (db_ == nullptr) return error_;
    std::string value;
    const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), slice(key), &value);
    if (!status.ok()) return from_rocks(status, "get " + printable(key) + " from " + folder_);
    return value;
  }

  Status write(const std::vector<KvWrite>& batch, bool sync) override {
    rocksdb::WriteBatch writes;
    for (const KvWrite& item : batch) {
      if (item.value && item.value->size() > kValueBytesMax) {
        return invalid_argument("value of " + printable(item.key) + ": " +
                                to_text(uint64_t{item.value->size()}) + " bytes: must be at most " +
                                to_text(uint64_t{kValueBytesMax}));
      }
      const rocksdb::Status status =
          item.value ? writes.Put(item.key, *item.value) : writes.Delete(item.key);
      if (!status.ok()) return from_rocks(status, "write to " + folder_);
    }
    const std::unique_lock lock(mutex_);
    SWAX_TRY(reopen_after_error(writes.GetDataSize()));
    rocksdb::WriteOptions options;
    options.sync = sync;
    const rocksdb::Status status = db_->Write(options, &writes);
    if (status.ok()) return ok();
    const Status failed = from_rocks(status, "write to " + folder_);
    if (failed.code() != Code::kFailedPrecondition) error_ = failed;
    return failed;
  }

  Status scan(std::string_view prefix, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) override {
    std::shared_lock lock(mutex_);
    if (db_ == nullptr) return error_;
    const Db db = db_;  // a write inside visit may replace db_
    const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator(rocksdb::ReadOptions()));
    for (it->Seek(slice(std::max(prefix, from))); it->Valid(); it->Next()) {
      if (!view(it->key()).starts_with(prefix)) break;
      lock.unlock();  // visit may write; the iterator keeps its state and its bytes
      if (!visit(view(it->key()), view(it->value()))) return ok();
      lock.lock();
    }
    if (!it->status().ok()) return from_rocks(it->status(), "scan of " + folder_);
    return ok();
  }

 private:
  Status reopen_after_error(size_t bytes);  // under the lock of a write

  const std::string folder_;
  // Reads together, a write alone. RocksDB needs that only while a failed write is repaired, but
  // the state is small, its writers are few, and order that everybody can see is worth more here.
  std::shared_mutex mutex_;
  Db db_;         // null only when not even reading was possible after a failed write
  Status error_;  // of the last write, until a reopening has repaired it
};

// A record behind a torn one would be lost at the next recovery, so after a failed write (disk
// full) the log is recovered before anything is appended: close, open, go on. Until there is room
// for that, reads are served and writes repeat the error.
Status RocksKv::reopen_after_error(size_t bytes) {
  if (error_.ok()) return ok();
  constexpr int64_t kRoomBytes = kMiB;  // new MANIFEST, log and the recovered state
  SWAX_ASSIGN(const int64_t free, free_bytes(folder_));
  if (free < kRoomBytes + 2 * static_cast<int64_t>(bytes)) return error_;
  if (db_.use_count() > 1) return unavailable("write to " + folder_ + ": a scan is going on");
  db_.reset();
  Result<Db> db = open_db(folder_, KvMode::kOpen);
  if (db.ok()) {
    db_ = std::move(*db);
    error_ = ok();
    return ok();
  }
  Result<Db> reading = open_db(folder_, KvMode::kReadOnly);
  if (reading.ok()) db_ = std::move(*reading);
  return db.status();
}

}  // namespace

Status from_rocks(const rocksdb::Status& status, std::string_view what) {
  if (status.ok()) return ok();
  const std::string message = status.ToString();
  return {code_of(status, message), std::string(what) + ": " + message};
}

std::shared_ptr<rocksdb::Logger> rocks_logger() {
  // Shared: RocksDB keeps it in every database and its options.
  return std::make_shared<ForwardingLogger>();
}

Result<std::unique_ptr<Kv>> open_rocks_kv(const std::string& folder, KvMode mode) {
  if (mode == KvMode::kCreate) {
    SWAX_TRY(make_dirs(folder));
  } else if (!path_exists(join_path(folder, "CURRENT"))) {
    return not_found("open " + folder + ": no such store");
  }
  // A reader beside a writer can meet a MANIFEST or SST that has just been replaced; RocksDB
  // reports that like damage. Real damage is still there after the last try.
  constexpr int kReadOnlyTries = 5;
  for (int tries = 1;; ++tries) {
    Result<Db> db = open_db(folder, mode);
    if (db.ok()) return std::unique_ptr<Kv>(std::make_unique<RocksKv>(folder, std::move(*db)));
    const bool again = mode == KvMode::kReadOnly && db.status().code() == Code::kDataLoss &&
                       tries < kReadOnlyTries;
    if (!again) return db.status();
    std::this_thread::sleep_for(std::chrono::milliseconds(10 * tries));
  }
}

void configure_malloc_for_storage() {
  // RocksDB grows one buffer per large value; by default glibc maps and unmaps it each time, which
  // halved the write rate (16 MiB values: 0.74 instead of 1.44 GB/s) and doubled the CPU time.
  constexpr int kMmapThreshold = 1 << 30;
  constexpr int kTrimThreshold = 0x7fffffff;  // 2 GiB - 1: keep freed memory
  mallopt(M_MMAP_THRESHOLD, kMmapThreshold);
  mallopt(M_TRIM_THRESHOLD, kTrimThreshold);
}

}  // namespace swax
