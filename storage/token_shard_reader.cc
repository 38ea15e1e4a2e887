#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/byte_order.h"
#include "storage/token_shard.h"
#include "storage/token_shard_format.h"

namespace swax {
namespace {

constexpr uint64_t kNoBlock = ~uint64_t{0};

std::string hex64(uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[value >> shift & 15];
  return text;
}

template <typename T>
void widen(const char* from, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<int32_t>(get_le<T>(from + i * sizeof(T)));
  }
}

TokenShardLayout layout_of(const TokenShardInfo& info) {
  return token_shard_layout(info.token_bytes, info.tokens, info.documents);
}

class ShardFileReader final : public TokenShardReader {
 public:
  ShardFileReader(std::string path, Fd fd, TokenShardHeader header)
      : path_(std::move(path)), fd_(std::move(fd)), header_(std::move(header)) {}

  Status load_tables();  // once, right after construction
  const TokenShardInfo& info() const override { return header_.info; }
  std::span<const uint64_t> document_ends() const override { return ends_; }
  Status read(uint64_t begin, std::span<int32_t> out) override;
  Status verify() override;

 private:
  Result<std::vector<char>> read_tables() const;
  Status lost(const std::string& what) const { return data_loss("shard " + path_ + ": " + what); }
  uint64_t token_bytes_total() const { return header_.info.tokens * header_.info.token_bytes; }
  Status read_in_block(uint64_t block, uint64_t offset, std::span<int32_t> out);
  Status load_block(uint64_t block);
  Status check_tokens(uint64_t block, size_t bytes) const;
  void convert(const char* from, std::span<int32_t> out) const;

  std::string path_;
  Fd fd_;
  TokenShardHeader header_;
  std::vector<uint64_t> ends_;
  std::vector<uint64_t> sums_;
  std::vector<uint8_t> checked_;  // blocks whose digest was seen to be right
  std::vector<char> block_;       // the last block, or part of one
  uint64_t block_held_ = kNoBlock;
};

// Everything behind the tokens, digest checked.
Result<std::vector<char>> ShardFileReader::read_tables() const {
  const TokenShardLayout layout = layout_of(header_.info);
  std::vector<char> tables(layout.file_bytes - layout.token_end);
  SWAX_TRY(read_exactly(fd_.get(), layout.token_end, tables.data(), tables.size())
               .with_context("shard " + path_));
  const Hash128 computed = xxh3_128(tables.data(), tables.size());
  if (computed != header_.tables_digest) {
    return lost("digest of the tables: stored " + header_.tables_digest.hex() + ", computed " +
                computed.hex());
  }
  return tables;
}

Status ShardFileReader::load_tables() {
  const TokenShardInfo& info = header_.info;
  const TokenShardLayout layout = layout_of(info);
  SWAX_ASSIGN(const std::vector<char> tables, read_tables());
  const char* at = tables.data() + (layout.docs_offset - layout.token_end);
  ends_.resize(info.documents);
  sums_.resize(layout.blocks);
  for (std::vector<uint64_t>* table : {&ends_, &sums_}) {
    for (uint64_t& value : *table) {
      value = get_le<uint64_t>(at);
      at += sizeof value;
    }
  }
  uint64_t last = 0;
  for (const uint64_t end : ends_) {
    if (end <= last) return lost("document ends do not rise at " + to_text(end));
    last = end;
  }
  if (last != info.tokens) return lost("the last document ends at " + to_text(last));
  checked_.assign(layout.blocks, 0);
  block_.resize(std::min<uint64_t>(kTokenBlockBytes, token_bytes_total()));
  return ok();
}

void ShardFileReader::convert(const char* from, std::span<int32_t> out) const {
  switch (header_.info.token_bytes) {
    case 1:
      widen<uint8_t>(from, out);
      break;
    case 2:
      widen<uint16_t>(from, out);
      break;
    default:
      widen<uint32_t>(from, out);
  }
}

// A token outside the vocabulary would index outside the embedding; the writer refuses it, so only
// a foreign or damaged file can hold one.
Status ShardFileReader::check_tokens(uint64_t block, size_t bytes) const {
  const size_t width = header_.info.token_bytes;
  int32_t piece[1024];
  for (size_t at = 0; at < bytes;) {
    const size_t count = std::min<size_t>(std::size(piece), (bytes - at) / width);
    convert(block_.data() + at, std::span(piece, count));
    const int32_t largest = *std::max_element(piece, piece + count);
    const int32_t least = *std::min_element(piece, piece + count);
    if (least < 0 || static_cast<uint32_t>(largest) >= header_.info.vocab_size) {
      return lost("block " + to_text(block) + ": holds a token outside the vocabulary of " +
                  to_text(uint64_t{header_.info.vocab_size}));
    }
    at += count * width;
  }
  return ok();
}

Status ShardFileReader::load_block(uint64_t block) {
  const uint64_t offset = block * kTokenBlockBytes;
  const size_t bytes =
      static_cast<size_t>(std::min<uint64_t>(kTokenBlockBytes, token_bytes_total() - offset));
  block_held_ = kNoBlock;
  SWAX_TRY(read_exactly(fd_.get(), kTokenHeaderBytes + offset, block_.data(), bytes)
               .with_context("shard " + path_ + ": block " + to_text(block)));
  const uint64_t computed = xxh3_64(block_.data(), bytes);
  if (computed != sums_[block]) {
    return lost("block " + to_text(block) + ": XXH3-64 stored " + hex64(sums_[block]) +
                ", computed " + hex64(computed));
  }
  SWAX_TRY(check_tokens(block, bytes));
  checked_[block] = 1;
  block_held_ = block;
  return ok();
}

// offset: of the first byte inside the block.
Status ShardFileReader::read_in_block(uint64_t block, uint64_t offset, std::span<int32_t> out) {
  if (checked_[block] == 0) SWAX_TRY(load_block(block));
  if (block == block_held_) {
    convert(block_.data() + offset, out);
    return ok();
  }
  // Seen before: only the wanted bytes, since windows come in random order.
  block_held_ = kNoBlock;
  const size_t bytes = out.size() * header_.info.token_bytes;
  SWAX_TRY(read_exactly(fd_.get(), kTokenHeaderBytes + block * kTokenBlockBytes + offset,
                        block_.data(), bytes)
               .with_context("shard " + path_ + ": block " + to_text(block)));
  convert(block_.data(), out);
  return ok();
}

Status ShardFileReader::read(uint64_t begin, std::span<int32_t> out) {
  const uint64_t tokens = header_.info.tokens;
  if (begin > tokens || out.size() > tokens - begin) {
    return invalid_argument("shard " + path_ + ": tokens [" + to_text(begin) + ", " +
                            to_text(begin + out.size()) + "): must lie in [0, " + to_text(tokens) +
                            ")");
  }
  const uint64_t width = header_.info.token_bytes;
  const uint64_t per_block = kTokenBlockBytes / width;
  while (!out.empty()) {
    const uint64_t block = begin / per_block;
    const uint64_t first = begin % per_block;
    const size_t count = static_cast<size_t>(std::min<uint64_t>(out.size(), per_block - first));
    SWAX_TRY(read_in_block(block, first * width, out.first(count)));
    out = out.subspan(count);
    begin += count;
  }
  return ok();
}

Status ShardFileReader::verify() {
  for (uint64_t block = 0; block < checked_.size(); ++block) SWAX_TRY(load_block(block));
  SWAX_TRY(read_tables());
  return ok();
}

}  // namespace

Result<std::unique_ptr<TokenShardReader>> TokenShardReader::open(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    const std::string message =
        "shard " + path + ": open: " + std::generic_category().message(errno);
    return errno == ENOENT ? not_found(message) : unavailable(message);
  }
  struct stat file {};
  if (fstat(fd.get(), &file) != 0) return unavailable("shard " + path + ": stat");
  TokenHeaderBytes raw{};
  SWAX_TRY(read_exactly(fd.get(), 0, raw.data(), raw.size()).with_context("shard " + path));
  Result<TokenShardHeader> header =
      decode_token_header({raw.data(), raw.size()}, static_cast<uint64_t>(file.st_size));
  if (!header.ok()) return header.status().with_context("shard " + path);
  auto reader = std::make_unique<ShardFileReader>(path, std::move(fd), std::move(*header));
  SWAX_TRY(reader->load_tables());
  return std::unique_ptr<TokenShardReader>(std::move(reader));
}

}  // namespace swax
