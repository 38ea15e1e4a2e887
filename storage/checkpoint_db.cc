#include "storage/checkpoint_db.h"

#include <rocksdb/db.h>
#include <rocksdb/metadata.h>
#include <rocksdb/options.h>

#include <utility>

#include "proto/base/files.h"
#include "storage/rocks_status.h"

namespace swax {
namespace {

constexpr std::string_view kManifestKey = "m";
rocksdb::Slice slice(std::string_view text) { return {text.data(), text.size()}; }

class SstShardWriter final : public ShardDbWriter {
 public:
  SstShardWriter(std::string db_folder, std::string stage_folder)
      : db_folder_(std::move(db_folder)), stage_folder_(std::move(stage_folder)) {}

  Status open();
  Result<std::vector<SstFile>> add_chunks(std::span<DbChunk> chunks,
                                          const SstLimits& limits) override;
  Status put_manifest(std::string_view bytes) override;
  Status close() override;

 private:
  const std::string db_folder_;
  const std::string stage_folder_;
  std::unique_ptr<rocksdb::DB> db_;
};

Status SstShardWriter::open() {
  if (path_exists(db_folder_)) return already_exists("create " + db_folder_);
  SWAX_TRY(make_dirs(stage_folder_));
  rocksdb::DB* raw = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(shard_options(), db_folder_, &raw);
  db_.reset(raw);
  return from_rocks(status, "create " + db_folder_);
}

Result<std::vector<SstFile>> SstShardWriter::add_chunks(std::span<DbChunk> chunks,
                                                        const SstLimits& limits) {
  SWAX_ASSIGN(const std::vector<std::string> staged,
              build_sst_files(stage_folder_, limits, chunks));
  rocksdb::IngestExternalFileOptions ingest;
  ingest.move_files = true;
  ingest.failed_move_fall_back_to_copy =
      false;                          // else another file system silently doubles the I/O
  ingest.write_global_seqno = false;  // the default rewrites a few bytes of each file
  ingest.verify_checksums_before_ingest = false;  // would read everything back
  SWAX_TRY(from_rocks(db_->IngestExternalFile(staged, ingest), "ingest into " + db_folder_));
  std::vector<rocksdb::LiveFileMetaData> live;
  db_->GetLiveFilesMetaData(&live);
  std::vector<SstFile> files;
  for (const rocksdb::LiveFileMetaData& file : live) {
    // RocksDB puts a slash in front.
    files.push_back({file.name.substr(file.name.find_first_not_of('/')), file.size});
  }
  if (files.size() != staged.size()) return internal_error("ingest into " + db_folder_);
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
                                                             const std::string& stage_folder) {
  auto writer = std::make_unique<SstShardWriter>(db_folder, stage_folder);
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
    // Nobody writes here any more: whatever keeps it from opening is damage, but for what passes.
    const bool passes = why.code() == Code::kResourceExhausted || why.code() == Code::kUnavailable;
    return passes ? why : data_loss(why.message());
  }
  return std::unique_ptr<ShardDbReader>(std::make_unique<SstShardReader>(db_folder, std::move(db)));
}

}  // namespace swax
