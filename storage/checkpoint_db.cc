#include "storage/checkpoint_db.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/flush_block_policy.h>
#include <rocksdb/metadata.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>

#include <utility>

#include "proto/base/failpoint.h"
#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"
#include "storage/byte_order.h"
#include "storage/direct_file.h"
#include "storage/rocks_status.h"

namespace swax {
namespace {

constexpr std::string_view kManifestKey = "m";
constexpr char kChunkPrefix = 'c';
constexpr size_t kChunkKeyBytes = 13;
// RocksDB reserves this much for a block under construction. With less it would move each chunk
// once more, when the block's trailer follows the value.
constexpr size_t kBlockBytes = static_cast<size_t>(kCheckpointChunkBytes + 64 * kKiB);

rocksdb::Slice slice(std::string_view text) { return {text.data(), text.size()}; }

std::string chunk_key(uint32_t tensor_id, uint64_t begin) {
  std::string key(kChunkKeyBytes, kChunkPrefix);
  put_be(key.data() + 1, tensor_id);
  put_be(key.data() + 5, begin);
  return key;
}

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

// Options of shard databases.
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

class SstShardWriter final : public ShardDbWriter {
 public:
  SstShardWriter(std::string db_folder, std::string stage_folder, int64_t sst_bytes)
      : db_folder_(std::move(db_folder)),
        stage_folder_(std::move(stage_folder)),
        sst_bytes_max_(sst_bytes),
        options_(shard_options()),
        direct_env_(rocksdb::NewCompositeEnv(std::make_shared<DirectFileSystem>())),
        sst_options_(options_) {
    sst_options_.env = direct_env_.get();
  }

  Status open();
  Status add_chunk(uint32_t tensor_id, uint64_t begin, std::string_view bytes) override;
  Result<std::vector<SstFile>> ingest() override;
  Status put_manifest(std::string_view bytes) override;
  Status close() override;

 private:
  Status begin_sst();
  Status finish_sst(std::string_view last_key);
  Status put(std::string_view key, std::string_view value) {
    return from_rocks(sst_->Put(slice(key), slice(value)), "write to " + staged_.back());
  }

  const std::string db_folder_;
  const std::string stage_folder_;
  const int64_t sst_bytes_max_;
  const rocksdb::Options options_;
  const std::unique_ptr<rocksdb::Env> direct_env_;
  rocksdb::Options sst_options_;
  std::unique_ptr<rocksdb::DB> db_;
  std::unique_ptr<rocksdb::SstFileWriter> sst_;
  std::vector<std::string> staged_;
  std::string last_key_;
  int64_t sst_bytes_ = 0;
};

Status SstShardWriter::open() {
  if (path_exists(db_folder_)) return already_exists("create " + db_folder_);
  SWAX_TRY(make_dirs(stage_folder_));
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options_, db_folder_, &raw);
  db_.reset(raw);
  return from_rocks(status, "create " + db_folder_);
}

// The first key is below the first chunk and above the SST before: sentinel keys are one byte
// longer than the chunk key in front of them.
Status SstShardWriter::begin_sst() {
  staged_.push_back(join_path(stage_folder_, to_text(uint64_t{staged_.size()}) + ".sst"));
  sst_ = std::make_unique<rocksdb::SstFileWriter>(rocksdb::EnvOptions(sst_options_), sst_options_);
  SWAX_TRY(from_rocks(sst_->Open(staged_.back()), "create " + staged_.back()));
  sst_bytes_ = 0;
  const std::string first = last_key_.empty() ? std::string(1, '\0') : last_key_ + '\2';
  return put(first, {});
}

Status SstShardWriter::finish_sst(std::string_view last_key) {
  SWAX_TRY(put(last_key, {}));
  SWAX_TRY(from_rocks(sst_->Finish(), "finish " + staged_.back()));  // syncs
  sst_.reset();
  SWAX_FAILPOINT("checkpoint.sst_finished");
  return ok();
}

Status SstShardWriter::add_chunk(uint32_t tensor_id, uint64_t begin, std::string_view bytes) {
  SWAX_CHECK(!bytes.empty());
  SWAX_CHECK(bytes.size() <= static_cast<size_t>(kCheckpointChunkBytes));
  if (sst_ != nullptr && sst_bytes_ >= sst_bytes_max_) SWAX_TRY(finish_sst(last_key_ + '\1'));
  if (sst_ == nullptr) SWAX_TRY(begin_sst());
  std::string key = chunk_key(tensor_id, begin);
  SWAX_CHECK(key > last_key_);
  SWAX_TRY(put(key, bytes));
  last_key_ = std::move(key);
  sst_bytes_ += static_cast<int64_t>(bytes.size());
  return ok();
}

Result<std::vector<SstFile>> SstShardWriter::ingest() {
  if (sst_ == nullptr) SWAX_TRY(begin_sst());  // a rank without data has an SST of two sentinels
  SWAX_TRY(finish_sst(std::string(1, '\xff')));
  rocksdb::IngestExternalFileOptions ingest;
  ingest.move_files = true;
  ingest.failed_move_fall_back_to_copy =
      false;                          // else another file system silently doubles the I/O
  ingest.write_global_seqno = false;  // the default rewrites a few bytes of each file
  ingest.verify_checksums_before_ingest = false;  // would read everything back
  SWAX_TRY(from_rocks(db_->IngestExternalFile(staged_, ingest), "ingest into " + db_folder_));
  std::vector<rocksdb::LiveFileMetaData> live;
  db_->GetLiveFilesMetaData(&live);
  std::vector<SstFile> files;
  for (const rocksdb::LiveFileMetaData& file : live) {
    // RocksDB puts a slash in front.
    files.push_back({file.name.substr(file.name.find_first_not_of('/')), file.size});
  }
  if (files.size() != staged_.size()) return internal_error("ingest into " + db_folder_);
  return files;
}

Status SstShardWriter::put_manifest(std::string_view bytes) {
  rocksdb::WriteOptions synced;
  synced.sync = true;
  return from_rocks(db_->Put(synced, slice(kManifestKey), slice(bytes)), "write to " + db_folder_);
}

Status SstShardWriter::close() {
  const rocksdb::Status status = db_->Close();
  db_.reset();
  return from_rocks(status, "close " + db_folder_);
}

class SstShardReader final : public ShardDbReader {
 public:
  SstShardReader(std::string folder, std::unique_ptr<rocksdb::DB> db)
      : folder_(std::move(folder)), db_(std::move(db)) {}

  Result<std::string> manifest_bytes() override {
    std::string bytes;
    const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), slice(kManifestKey), &bytes);
    if (status.IsNotFound()) return data_loss(folder_ + ": holds no manifest");
    if (!status.ok()) return from_rocks(status, folder_);
    return bytes;
  }

  Result<std::string_view> chunk(uint32_t tensor_id, uint64_t begin) override {
    value_.Reset();
    const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), db_->DefaultColumnFamily(),
                                            slice(chunk_key(tensor_id, begin)), &value_);
    if (status.IsNotFound()) return data_loss(folder_ + ": has no such chunk");
    if (!status.ok()) return from_rocks(status, folder_);
    return std::string_view(value_.data(), value_.size());
  }

 private:
  const std::string folder_;
  const std::unique_ptr<rocksdb::DB> db_;
  rocksdb::PinnableSlice value_;  // goes before db_, which it may point into
};

}  // namespace

Result<std::unique_ptr<ShardDbWriter>> ShardDbWriter::create(const std::string& db_folder,
                                                             const std::string& stage_folder,
                                                             int64_t sst_bytes) {
  auto writer = std::make_unique<SstShardWriter>(db_folder, stage_folder, sst_bytes);
  SWAX_TRY(writer->open());
  return std::unique_ptr<ShardDbWriter>(std::move(writer));
}

Result<std::unique_ptr<ShardDbReader>> ShardDbReader::open(const std::string& db_folder) {
  rocksdb::Options options = shard_options();
  options.create_if_missing = false;
  options.error_if_exists = false;
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status = rocksdb::DB::OpenForReadOnly(options, db_folder, &raw);
  std::unique_ptr<rocksdb::DB> db(raw);
  if (!status.ok()) {
    const Status why = from_rocks(status, "open " + db_folder);
    // Nobody writes here any more: whatever keeps it from opening is damage, but for a full
    // descriptor table.
    return why.code() == Code::kResourceExhausted ? why : data_loss(why.message());
  }
  return std::unique_ptr<ShardDbReader>(std::make_unique<SstShardReader>(db_folder, std::move(db)));
}

}  // namespace swax
