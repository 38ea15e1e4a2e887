#include "storage/checkpoint_sst.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/flush_block_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "proto/base/check.h"
#include "proto/base/failpoint.h"
#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"
#include "storage/byte_order.h"
#include "storage/direct_file.h"
#include "storage/rocks_status.h"

namespace swax {
namespace {

constexpr char kChunkPrefix = 'c';
constexpr size_t kChunkKeyBytes = 13;
// RocksDB reserves this much for a block under construction. With less it would move each chunk
// once more, when the block's trailer follows the value.
constexpr size_t kBlockBytes = static_cast<size_t>(kCheckpointChunkBytes + 64 * kKiB);

rocksdb::Slice slice(std::string_view text) { return {text.data(), text.size()}; }

// One block per key: a read touches its own chunk only, and so does ingest, which reads the first
// and the last block of each SST (the sentinels).
class EveryKeyPolicy final : public rocksdb::FlushBlockPolicy {
 public:
  bool Update(const rocksdb::Slice&, const rocksdb::Slice&) override {
    return std::exchange(begun_, true);
  }

 private:
  bool begun_ = false;
};

class EveryKeyPolicyFactory final : public rocksdb::FlushBlockPolicyFactory {
 public:
  const char* Name() const override { return "swax.EveryKey"; }
  rocksdb::FlushBlockPolicy* NewFlushBlockPolicy(const rocksdb::BlockBasedTableOptions&,
                                                 const rocksdb::BlockBuilder&) const override {
    return std::make_unique<EveryKeyPolicy>().release();  // RocksDB owns it
  }
};

rocksdb::IOStatus to_rocks(const Status& status) {
  if (status.ok()) return rocksdb::IOStatus::OK();
  if (status.code() == Code::kResourceExhausted)
    return rocksdb::IOStatus::NoSpace(status.message());
  return rocksdb::IOStatus::IOError(status.message());
}

// SST files under construction go through DirectFile.
class DirectWritableFile final : public rocksdb::FSWritableFile {
 public:
  explicit DirectWritableFile(std::unique_ptr<DirectFile> file) : file_(std::move(file)) {}
  using rocksdb::FSWritableFile::Append;
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions&,
                           rocksdb::IODebugContext*) override {
    return to_rocks(file_->append({data.data(), data.size()}));
  }
  rocksdb::IOStatus Flush(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus Sync(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return to_rocks(file_->finish());  // an SST is synced once, when it is complete
  }
  rocksdb::IOStatus Close(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return rocksdb::IOStatus::OK();
  }
  uint64_t GetFileSize(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return file_->bytes();
  }

 private:
  const std::unique_ptr<DirectFile> file_;
};

class DirectFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  DirectFileSystem() : rocksdb::FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "swax"; }
  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions&,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext*) override {
    Result<std::unique_ptr<DirectFile>> file = DirectFile::create(path);
    if (!file.ok()) return to_rocks(file.status());
    *result = std::make_unique<DirectWritableFile>(std::move(*file));
    return rocksdb::IOStatus::OK();
  }
};

// One file: the chunks [first, last) of all of them.
struct SstPlan {
  std::string path;
  size_t first = 0;
  size_t last = 0;
};

std::vector<SstPlan> plan_files(const std::string& folder, int64_t sst_bytes,
                                std::span<const DbChunk> chunks) {
  std::vector<SstPlan> plans;
  int64_t bytes = sst_bytes;  // the first chunk, too, begins a file
  for (size_t i = 0; i < chunks.size() || plans.empty(); ++i) {
    if (bytes >= sst_bytes) {
      plans.push_back({join_path(folder, to_text(uint64_t{plans.size()}) + ".sst"), i, i});
      bytes = 0;
    }
    if (i == chunks.size()) break;
    plans.back().last = i + 1;
    bytes += static_cast<int64_t>(chunks[i].bytes.size());
  }
  return plans;
}

class SstBuilders {
 public:
  SstBuilders(std::vector<SstPlan> plans, std::span<DbChunk> chunks)
      : plans_(std::move(plans)), chunks_(chunks), results_(plans_.size()) {}
  Result<std::vector<std::string>> run(int builders);

 private:
  void take_files();
  Status build(const SstPlan& plan);

  const std::vector<SstPlan> plans_;
  const std::span<DbChunk> chunks_;  // a chunk belongs to whoever builds its file
  std::vector<Status> results_;      // so does the place of the file here
  std::atomic<size_t> next_{0};      // file that nobody has taken
  std::atomic<bool> failed_{false};
};

// The first key is below the first chunk and above the file before: sentinel keys are one byte
// longer than the chunk key in front of them.
Status SstBuilders::build(const SstPlan& plan) {
  const auto env = rocksdb::NewCompositeEnv(std::make_shared<DirectFileSystem>());
  rocksdb::Options options = shard_options();
  options.env = env.get();
  rocksdb::SstFileWriter sst(rocksdb::EnvOptions(options), options);
  SWAX_TRY(from_rocks(sst.Open(plan.path), "create " + plan.path));
  const auto put = [&](std::string_view key, std::string_view value) {
    return from_rocks(sst.Put(slice(key), slice(value)), "write to " + plan.path);
  };
  const auto key_of = [&](size_t i) { return chunk_key(chunks_[i].tensor_id, chunks_[i].begin); };
  SWAX_TRY(put(plan.first == 0 ? std::string(1, '\0') : key_of(plan.first - 1) + '\2', {}));
  for (size_t i = plan.first; i < plan.last; ++i) {
    DbChunk& chunk = chunks_[i];
    SWAX_CHECK(!chunk.bytes.empty());
    SWAX_CHECK(chunk.bytes.size() <= static_cast<size_t>(kCheckpointChunkBytes));
    if (failed_.load(std::memory_order_relaxed)) return ok();  // with an error all files go
    chunk.xxh3 = xxh3_128(chunk.bytes);
    SWAX_TRY(put(key_of(i), chunk.bytes));
  }
  const bool last = plan.last == chunks_.size();
  SWAX_TRY(put(last ? std::string(1, '\xff') : key_of(plan.last - 1) + '\1', {}));
  SWAX_TRY(from_rocks(sst.Finish(), "finish " + plan.path));  // syncs
  SWAX_FAILPOINT("checkpoint.sst_finished");
  return ok();
}

void SstBuilders::take_files() {
  for (;;) {
    const size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= plans_.size() || failed_.load(std::memory_order_relaxed)) return;
    results_[i] = build(plans_[i]);
    if (!results_[i].ok()) failed_.store(true, std::memory_order_relaxed);
  }
}

Result<std::vector<std::string>> SstBuilders::run(int builders) {
  std::vector<std::thread> threads;
  const size_t helpers = std::min(static_cast<size_t>(builders), plans_.size()) - 1;
  for (size_t i = 0; i < helpers; ++i) {
    try {
      threads.emplace_back([this] { take_files(); });
    } catch (const std::system_error&) {
      break;  // no thread to be had: slower, and the same files
    }
  }
  take_files();
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> paths;
  for (size_t i = 0; i < plans_.size(); ++i) {
    SWAX_TRY(results_[i]);
    paths.push_back(plans_[i].path);
  }
  return paths;
}

}  // namespace

std::string chunk_key(uint32_t tensor_id, uint64_t begin) {
  std::string key(kChunkKeyBytes, kChunkPrefix);
  put_be(key.data() + 1, tensor_id);
  put_be(key.data() + 5, begin);
  return key;
}

rocksdb::Options shard_options() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.error_if_exists = true;
  options.paranoid_checks = true;                 // a missing or cut SST refuses the open
  options.compression = rocksdb::kNoCompression;  // random mantissas do not shrink
  options.bottommost_compression = rocksdb::kNoCompression;
  options.disable_auto_compactions = true;  // written once, in order
  options.write_buffer_size = 1 * kMiB;     // only the manifest goes through Put
  options.max_background_jobs = 1;
  options.max_open_files = -1;
  options.allow_fallocate = false;
  options.manifest_preallocation_size = 64 * kKiB;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.info_log = rocks_logger();  // no LOG file
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;  // CRC32C has no hardware form in common builds
  table.no_block_cache = true;      // a chunk is read once
  table.block_size = kBlockBytes;
  table.flush_block_policy_factory = std::make_shared<EveryKeyPolicyFactory>();
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

Result<std::vector<std::string>> build_sst_files(const std::string& folder, const SstLimits& limits,
                                                 std::span<DbChunk> chunks) {
  SWAX_CHECK(limits.builders >= 1);
  SWAX_CHECK(limits.sst_bytes >= 1);
  return SstBuilders(plan_files(folder, limits.sst_bytes, chunks), chunks).run(limits.builders);
}

}  // namespace swax
