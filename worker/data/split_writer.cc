#include "worker/data/split_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <system_error>

#include "proto/base/ids.h"
#include "proto/base/text.h"
#include "worker/data/build.h"

namespace swax {
namespace {

constexpr uint32_t kTokenBytes = 2;
constexpr size_t kDocumentBytesInMemory = 4 * 1024 * 1024;

Status file_error(const char* what, const std::string& path) {
  const int error = errno;
  std::string message = std::string(what) + " " + path + ": ";
  message += std::generic_category().message(error);
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return full ? resource_exhausted(message) : internal_error(message);
}

// At most this large (storage/FORMAT.md): header, tokens, alignment, document ends, block sums.
int64_t shard_file_bytes(int64_t tokens, int64_t documents) {
  constexpr int64_t kHeader = 4096;
  constexpr int64_t kAlign = 8;
  const int64_t token_bytes = tokens * kTokenBytes;
  return kHeader + token_bytes + kAlign + 8 * documents + 8 * div_ceil(token_bytes, kMiB);
}

std::string shard_name(const std::string& split, size_t index) {
  std::string digits = to_text(static_cast<uint64_t>(index));
  digits.insert(0, digits.size() < 5 ? 5 - digits.size() : 0, '0');
  return split + "-" + digits + ".swt";
}

// What a token shard says about bytes as tokens.
TokenShardInfo byte_token_info(const std::string& name) {
  TokenShardInfo info;
  info.token_bytes = kTokenBytes;
  info.vocab_size = kByteVocab;
  info.eod_token = kEodToken;
  info.tokenizer_digest = xxh3_128("bytes: token = byte, 256 = EOD");
  info.name = name;
  return info;
}

}  // namespace

bool held_out(const Hash128& document, double validation_fraction) {
  constexpr int kBits = 53;
  const auto below = static_cast<uint64_t>(validation_fraction * (uint64_t{1} << kBits));
  return document.low >> (64 - kBits) < below;
}

Status ShardSetWriter::begin_document(int64_t text_bytes) {
  const int64_t tokens = text_bytes + 1;
  if (writer_ != nullptr &&
      shard_file_bytes(shard_tokens_ + tokens, shard_documents_ + 1) > options_.shard_bytes_max) {
    SWAX_TRY(close_shard());
  }
  if (writer_ == nullptr) {
    const std::string file = shard_name(options_.split, shards_.size());
    SWAX_ASSIGN(writer_, TokenShardWriter::create(join_path(options_.folder, file),
                                                  byte_token_info(options_.name)));
  }
  shard_tokens_ += tokens;
  ++shard_documents_;
  info_.set_tokens(info_.tokens() + static_cast<uint64_t>(tokens));
  info_.set_documents(info_.documents() + 1);
  info_.set_text_bytes(info_.text_bytes() + static_cast<uint64_t>(text_bytes));
  return ok();
}

Status ShardSetWriter::text(std::string_view piece) {
  std::array<uint32_t, 4096> tokens;
  while (!piece.empty()) {
    const std::string_view part = piece.substr(0, tokens.size());
    std::transform(part.begin(), part.end(), tokens.begin(),
                   [](char c) { return static_cast<unsigned char>(c); });
    SWAX_TRY(writer_->append({tokens.data(), part.size()}));
    piece.remove_prefix(part.size());
  }
  return ok();
}

Status ShardSetWriter::end_document() {
  SWAX_TRY(writer_->append({&kEodToken, 1}));
  writer_->end_document();
  return ok();
}

Status ShardSetWriter::close_shard() {
  SWAX_ASSIGN(const TokenShardWriter::Finished finished, writer_->finish());
  pb::ShardInfo& shard = shards_.emplace_back();
  shard.set_file(shard_name(options_.split, shards_.size() - 1));
  shard.set_split(options_.split);
  shard.set_tokens(finished.info.tokens);
  shard.set_documents(finished.info.documents);
  shard.set_bytes(finished.bytes);
  shard.set_xxh3_128(finished.file_hash.hex());
  writer_ = nullptr;
  shard_tokens_ = 0;
  shard_documents_ = 0;
  return ok();
}

Status ShardSetWriter::finish() { return writer_ == nullptr ? ok() : close_shard(); }

SplitWriter::SplitWriter(const Options& options)
    : folder_(options.folder),
      validation_fraction_(options.validation_fraction),
      train_({options.folder, "train", options.name, options.shard_bytes_max}),
      validation_({options.folder, "validation", options.name, options.shard_bytes_max}) {}

Status SplitWriter::text(std::string_view piece) {
  document_hash_.update(piece);
  stream_hash_.update(piece);
  document_bytes_ += static_cast<int64_t>(piece.size());
  document_ += piece;
  return document_.size() > kDocumentBytesInMemory ? spill() : ok();
}

// Moves what is in memory behind what the spool file holds. The file has no name: nothing of it
// outlives the process.
Status SplitWriter::spill() {
  const std::string path = join_path(folder_, "document.spool");
  if (!spool_.valid()) {
    spool_ = Fd(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!spool_.valid() || unlink(path.c_str()) != 0) return file_error("create", path);
  }
  std::string_view rest = document_;
  while (!rest.empty()) {
    const ssize_t n = pwrite(spool_.get(), rest.data(), rest.size(), spooled_bytes_);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return file_error("write", path);
    spooled_bytes_ += n;
    rest.remove_prefix(static_cast<size_t>(n));
  }
  document_.clear();
  return ok();
}

Status SplitWriter::write_to(ShardSetWriter& split) {
  SWAX_TRY(split.begin_document(document_bytes_));
  std::vector<char> buffer(spooled_bytes_ > 0 ? static_cast<size_t>(kMiB) : 0);
  for (int64_t done = 0; done < spooled_bytes_;) {
    const auto want = static_cast<size_t>(std::min<int64_t>(kMiB, spooled_bytes_ - done));
    const ssize_t n = pread(spool_.get(), buffer.data(), want, done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return file_error("read", join_path(folder_, "document.spool"));
    SWAX_TRY(split.text({buffer.data(), static_cast<size_t>(n)}));
    done += n;
  }
  SWAX_TRY(split.text(document_));
  return split.end_document();
}

Status SplitWriter::end_document() {
  if (document_bytes_ == 0) {
    ++empty_documents_;
    return ok();
  }
  const Hash128 hash = document_hash_.digest();
  // The first document is never held out, so that the training split is never empty; nor are its
  // copies.
  if (!first_document_) first_document_ = hash;
  const bool validation = hash != *first_document_ && held_out(hash, validation_fraction_);
  SWAX_TRY(write_to(validation ? validation_ : train_));

  std::array<unsigned char, 8> size_bytes{};
  for (size_t i = 0; i < size_bytes.size(); ++i) {
    size_bytes[i] = static_cast<unsigned char>(static_cast<uint64_t>(document_bytes_) >> (8 * i));
  }
  stream_hash_.update(size_bytes.data(), size_bytes.size());
  text_bytes_ += document_bytes_;
  document_.clear();
  if (spooled_bytes_ > 0 && ftruncate(spool_.get(), 0) != 0) {
    return file_error("truncate", join_path(folder_, "document.spool"));
  }
  spooled_bytes_ = 0;
  document_hash_ = Hasher128();
  document_bytes_ = 0;
  return ok();
}

Status SplitWriter::finish() {
  SWAX_CHECK(document_bytes_ == 0);
  SWAX_TRY(train_.finish());
  return validation_.finish();
}

}  // namespace swax
