#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/byte_order.h"
#include "storage/token_shard.h"
#include "storage/token_shard_format.h"

namespace swax {
namespace {

// Takes the temporary file for this writer alone. The lock and the look at the inode keep a second
// builder from truncating a file that the first one has just renamed into place.
Result<Fd> take_temporary(const std::string& path) {
  SWAX_ASSIGN(Fd fd, lock_file(path));
  struct stat held {};
  struct stat named {};
  if (fstat(fd.get(), &held) != 0 || stat(path.c_str(), &named) != 0 ||
      held.st_ino != named.st_ino) {
    return failed_precondition("create " + path + ": another writer was finishing it");
  }
  if (ftruncate(fd.get(), 0) != 0) return internal_error("truncate " + path);
  return fd;
}

class ShardFileWriter final : public TokenShardWriter {
 public:
  ShardFileWriter(std::string path, std::string tmp, Fd fd, TokenShardInfo info)
      : path_(std::move(path)), tmp_(std::move(tmp)), fd_(std::move(fd)) {
    header_.info = std::move(info);
    header_.info.tokens = 0;
    header_.info.documents = 0;
    block_.reserve(kTokenBlockBytes);
  }
  ~ShardFileWriter() override {
    if (!finished_) unlink(tmp_.c_str());
  }

  Status append(std::span<const uint32_t> tokens) override;
  void end_document() override;
  Result<Finished> finish() override;

 private:
  Status fail(const Status& status) {
    failed_ = status.with_context("shard " + tmp_);
    return failed_;
  }
  Status flush_block();
  Status write_tables();
  Result<Hash128> hash_file(uint64_t bytes) const;

  std::string path_;
  std::string tmp_;
  Fd fd_;
  TokenShardHeader header_;
  std::vector<char> block_;
  std::vector<uint64_t> ends_;
  std::vector<uint64_t> sums_;
  Status failed_;  // sticky: a file with a hole must never get its name
  bool finished_ = false;
};

Status ShardFileWriter::append(std::span<const uint32_t> tokens) {
  SWAX_TRY(failed_);
  const size_t width = header_.info.token_bytes;
  for (const uint32_t token : tokens) {
    if (token >= header_.info.vocab_size) {
      return fail(invalid_argument("token=" + to_text(uint64_t{token}) + ": must be below " +
                                   to_text(uint64_t{header_.info.vocab_size})));
    }
    char bytes[4];
    put_le(bytes, token);
    block_.insert(block_.end(), bytes, bytes + width);
    ++header_.info.tokens;
    if (block_.size() == kTokenBlockBytes) SWAX_TRY(flush_block());
  }
  return ok();
}

void ShardFileWriter::end_document() {
  const uint64_t end = header_.info.tokens;
  if (end > (ends_.empty() ? 0 : ends_.back())) ends_.push_back(end);
}

Status ShardFileWriter::flush_block() {
  if (block_.empty()) return ok();
  const uint64_t offset = kTokenHeaderBytes + sums_.size() * kTokenBlockBytes;
  if (const Status s = write_exactly(fd_.get(), offset, block_.data(), block_.size()); !s.ok()) {
    return fail(s);
  }
  sums_.push_back(xxh3_64(block_.data(), block_.size()));
  block_.clear();
  return ok();
}

Status ShardFileWriter::write_tables() {
  const TokenShardInfo& info = header_.info;
  const TokenShardLayout layout = token_shard_layout(info.token_bytes, info.tokens, info.documents);
  std::vector<char> tables(layout.file_bytes - layout.token_end);
  char* at = tables.data() + (layout.docs_offset - layout.token_end);
  for (const std::vector<uint64_t>* table : {&ends_, &sums_}) {
    for (const uint64_t value : *table) {
      put_le(at, value);
      at += sizeof value;
    }
  }
  header_.tables_digest = xxh3_128(tables.data(), tables.size());
  SWAX_TRY(write_exactly(fd_.get(), layout.token_end, tables.data(), tables.size()));
  const TokenHeaderBytes header = encode_token_header(header_);
  return write_exactly(fd_.get(), 0, header.data(), header.size());
}

// By reading back: the header comes first in the file but is known last.
Result<Hash128> ShardFileWriter::hash_file(uint64_t bytes) const {
  Hasher128 hasher;
  std::vector<char> buffer(kTokenBlockBytes);
  for (uint64_t offset = 0; offset < bytes; offset += buffer.size()) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(buffer.size(), bytes - offset));
    SWAX_TRY(read_exactly(fd_.get(), offset, buffer.data(), n));
    hasher.update(buffer.data(), n);
  }
  return hasher.digest();
}

Result<TokenShardWriter::Finished> ShardFileWriter::finish() {
  SWAX_TRY(failed_);
  SWAX_CHECK(!finished_);
  end_document();  // the last document ends with the shard
  SWAX_TRY(flush_block());
  header_.info.documents = ends_.size();
  if (const Status s = write_tables(); !s.ok()) return fail(s);
  Finished result;
  result.info = header_.info;
  result.bytes =
      token_shard_layout(result.info.token_bytes, result.info.tokens, result.info.documents)
          .file_bytes;
  Result<Hash128> hash = hash_file(result.bytes);
  if (!hash.ok()) return fail(hash.status());
  result.file_hash = *hash;
  if (const Status s = sync_file(tmp_); !s.ok()) return fail(s);
  if (rename(tmp_.c_str(), path_.c_str()) != 0) return fail(internal_error("rename to " + path_));
  finished_ = true;
  SWAX_TRY(sync_dir(parent_path(path_)));
  return result;
}

}  // namespace

Result<std::unique_ptr<TokenShardWriter>> TokenShardWriter::create(const std::string& path,
                                                                   const TokenShardInfo& info) {
  TokenShardInfo checked = info;
  checked.tokens = 0;
  checked.documents = 0;
  SWAX_TRY(check_token_shard_info(checked).with_context("shard " + path));
  const std::string tmp = path + ".tmp";
  SWAX_ASSIGN(Fd fd, take_temporary(tmp));
  return std::unique_ptr<TokenShardWriter>(
      std::make_unique<ShardFileWriter>(path, tmp, std::move(fd), checked));
}

}  // namespace swax
