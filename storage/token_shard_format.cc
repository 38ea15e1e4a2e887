#include "storage/token_shard_format.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "proto/base/text.h"
#include "storage/byte_order.h"

namespace swax {
namespace {

constexpr std::string_view kMagic = "SWAXTOK1";
constexpr uint8_t kFlags = 3;  // document table and block sums are present
constexpr uint64_t kTokensMax = uint64_t{1} << 48;

// Offsets of the header fields.
constexpr size_t kAtVersion = 8;
constexpr size_t kAtHeaderBytes = 12;
constexpr size_t kAtTokenBytes = 16;
constexpr size_t kAtFlags = 17;
constexpr size_t kAtVocab = 20;
constexpr size_t kAtEod = 24;
constexpr size_t kAtBlockBytes = 28;
constexpr size_t kAtTokens = 32;
constexpr size_t kAtDocuments = 40;
constexpr size_t kAtTokensOffset = 48;
constexpr size_t kAtDocsOffset = 56;
constexpr size_t kAtSumsOffset = 64;
constexpr size_t kAtFileBytes = 72;
constexpr size_t kAtTokenizerDigest = 80;
constexpr size_t kAtSourceDigest = 96;
constexpr size_t kAtTablesDigest = 112;
constexpr size_t kAtName = 128;
constexpr size_t kNameBytes = 256;  // the last one is always zero
constexpr size_t kAtHeaderDigest = kTokenHeaderBytes - kHashBytes;

Status field_error(std::string_view field, uint64_t value, uint64_t want) {
  return data_loss("header field " + std::string(field) + "=" + to_text(value) + ": must be " +
                   to_text(want));
}

Status errno_status(const char* what) {
  const int error = errno;
  const Code code = error == ENOSPC || error == EDQUOT || error == EFBIG ? Code::kResourceExhausted
                    : error == EIO                                       ? Code::kDataLoss
                                                                         : Code::kInternal;
  return {code, std::string(what) + ": " + std::generic_category().message(error)};
}

Status check_layout_fields(const char* p, const TokenShardInfo& info, uint64_t file_bytes) {
  const TokenShardLayout layout = token_shard_layout(info.token_bytes, info.tokens, info.documents);
  const struct {
    std::string_view name;
    size_t at;
    uint64_t want;
  } fields[] = {
      {"tokens_offset", kAtTokensOffset, kTokenHeaderBytes},
      {"docs_offset", kAtDocsOffset, layout.docs_offset},
      {"sums_offset", kAtSumsOffset, layout.sums_offset},
      {"file_bytes", kAtFileBytes, layout.file_bytes},
  };
  for (const auto& field : fields) {
    const uint64_t value = get_le<uint64_t>(p + field.at);
    if (value != field.want) return field_error(field.name, value, field.want);
  }
  if (file_bytes != layout.file_bytes) {
    return data_loss("file has " + to_text(file_bytes) + " bytes: header field file_bytes says " +
                     to_text(layout.file_bytes));
  }
  return ok();
}

}  // namespace

TokenShardLayout token_shard_layout(uint32_t token_bytes, uint64_t tokens, uint64_t documents) {
  TokenShardLayout layout;
  const uint64_t bytes = tokens * token_bytes;
  layout.blocks = (bytes + kTokenBlockBytes - 1) / kTokenBlockBytes;
  layout.token_end = kTokenHeaderBytes + bytes;
  layout.docs_offset = (layout.token_end + 7) / 8 * 8;
  layout.sums_offset = layout.docs_offset + documents * 8;
  layout.file_bytes = layout.sums_offset + layout.blocks * 8;
  return layout;
}

Status check_token_shard_info(const TokenShardInfo& info) {
  if (info.token_bytes != 1 && info.token_bytes != 2 && info.token_bytes != 4) {
    return invalid_argument("token_bytes=" + to_text(uint64_t{info.token_bytes}) +
                            ": must be 1, 2 or 4");
  }
  const uint64_t vocab_max = uint64_t{1} << std::min(8 * info.token_bytes, 31U);
  if (info.vocab_size < 1 || info.vocab_size > vocab_max) {
    return invalid_argument("vocab_size=" + to_text(uint64_t{info.vocab_size}) + ": must be 1.." +
                            to_text(vocab_max));
  }
  if (info.eod_token >= info.vocab_size && info.eod_token != kNoToken) {
    return invalid_argument("eod_token=" + to_text(uint64_t{info.eod_token}) +
                            ": must be below vocab_size=" + to_text(uint64_t{info.vocab_size}));
  }
  if (info.name.size() >= kNameBytes || !valid_utf8(info.name)) {
    return invalid_argument("name: must be UTF-8 of at most 255 bytes");
  }
  if (info.tokens > kTokensMax || info.documents > info.tokens) {
    return invalid_argument("tokens=" + to_text(info.tokens) +
                            " documents=" + to_text(info.documents) + ": out of range");
  }
  return ok();
}

TokenHeaderBytes encode_token_header(const TokenShardHeader& header) {
  const TokenShardInfo& info = header.info;
  const TokenShardLayout layout = token_shard_layout(info.token_bytes, info.tokens, info.documents);
  TokenHeaderBytes bytes{};
  char* const p = bytes.data();
  std::memcpy(p, kMagic.data(), kMagic.size());
  put_le<uint32_t>(p + kAtVersion, kTokenShardVersion);
  put_le<uint32_t>(p + kAtHeaderBytes, kTokenHeaderBytes);
  put_le<uint8_t>(p + kAtTokenBytes, static_cast<uint8_t>(info.token_bytes));
  put_le<uint8_t>(p + kAtFlags, kFlags);
  put_le<uint32_t>(p + kAtVocab, info.vocab_size);
  put_le<uint32_t>(p + kAtEod, info.eod_token);
  put_le<uint32_t>(p + kAtBlockBytes, static_cast<uint32_t>(kTokenBlockBytes));
  put_le<uint64_t>(p + kAtTokens, info.tokens);
  put_le<uint64_t>(p + kAtDocuments, info.documents);
  put_le<uint64_t>(p + kAtTokensOffset, kTokenHeaderBytes);
  put_le<uint64_t>(p + kAtDocsOffset, layout.docs_offset);
  put_le<uint64_t>(p + kAtSumsOffset, layout.sums_offset);
  put_le<uint64_t>(p + kAtFileBytes, layout.file_bytes);
  put_hash(p + kAtTokenizerDigest, info.tokenizer_digest);
  put_hash(p + kAtSourceDigest, info.source_digest);
  put_hash(p + kAtTablesDigest, header.tables_digest);
  std::memcpy(p + kAtName, info.name.data(), info.name.size());
  put_hash(p + kAtHeaderDigest, xxh3_128(p, kAtHeaderDigest));
  return bytes;
}

Result<TokenShardHeader> decode_token_header(std::string_view bytes, uint64_t file_bytes) {
  if (bytes.size() != kTokenHeaderBytes) return data_loss("file ends inside the header");
  const char* const p = bytes.data();
  if (bytes.substr(0, kMagic.size()) != kMagic)
    return data_loss("header field magic: not SWAXTOK1");
  // Before the digest: another version may have another header size and digest place.
  const uint32_t version = get_le<uint32_t>(p + kAtVersion);
  if (version != kTokenShardVersion) return field_error("version", version, kTokenShardVersion);
  const Hash128 stored = get_hash(p + kAtHeaderDigest);
  const Hash128 computed = xxh3_128(p, kAtHeaderDigest);
  if (stored != computed) {
    return data_loss("header digest: stored " + stored.hex() + ", computed " + computed.hex());
  }
  TokenShardHeader header;
  TokenShardInfo& info = header.info;
  info.token_bytes = get_le<uint8_t>(p + kAtTokenBytes);
  info.vocab_size = get_le<uint32_t>(p + kAtVocab);
  info.eod_token = get_le<uint32_t>(p + kAtEod);
  info.tokens = get_le<uint64_t>(p + kAtTokens);
  info.documents = get_le<uint64_t>(p + kAtDocuments);
  info.tokenizer_digest = get_hash(p + kAtTokenizerDigest);
  info.source_digest = get_hash(p + kAtSourceDigest);
  header.tables_digest = get_hash(p + kAtTablesDigest);
  info.name = std::string(p + kAtName, strnlen(p + kAtName, kNameBytes));
  if (const Status status = check_token_shard_info(info); !status.ok()) {
    return data_loss("header: " + status.message());
  }
  if (get_le<uint8_t>(p + kAtFlags) != kFlags) {
    return field_error("flags", get_le<uint8_t>(p + kAtFlags), kFlags);
  }
  if (const uint32_t block = get_le<uint32_t>(p + kAtBlockBytes); block != kTokenBlockBytes) {
    return field_error("sum_block_bytes", block, kTokenBlockBytes);
  }
  SWAX_TRY(check_layout_fields(p, info, file_bytes));
  return header;
}

Status read_exactly(int fd, uint64_t offset, void* to, size_t bytes) {
  char* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = pread(fd, out, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status("read");
    if (n == 0) return data_loss("file ends at byte " + to_text(offset));
    out += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return ok();
}

Status write_exactly(int fd, uint64_t offset, const void* from, size_t bytes) {
  const char* in = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = pwrite(fd, in, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status("write");
    in += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return ok();
}

}  // namespace swax
