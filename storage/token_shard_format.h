// Bytes of a token shard: the header of version 1 and where the tables lie. Layout with a worked
// example: storage/FORMAT.md. Internal to storage. Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "proto/base/status.h"
#include "storage/token_shard.h"

namespace swax {

constexpr uint32_t kTokenShardVersion = 1;
constexpr size_t kTokenHeaderBytes = 4096;
constexpr uint64_t kTokenBlockBytes = 1024 * 1024;
constexpr uint32_t kNoToken = 0xffffffff;  // eod_token of a shard without document separators

// Where things lie, derived from the counts alone; the header repeats it and must agree.
struct TokenShardLayout {
  uint64_t token_end = 0;    // first byte after the tokens
  uint64_t docs_offset = 0;  // token_end rounded up to 8
  uint64_t sums_offset = 0;
  uint64_t file_bytes = 0;
  uint64_t blocks = 0;
};
TokenShardLayout token_shard_layout(uint32_t token_bytes, uint64_t tokens, uint64_t documents);

struct TokenShardHeader {
  TokenShardInfo info;
  Hash128 tables_digest;  // XXH3-128 of every byte behind the tokens
};
using TokenHeaderBytes = std::array<char, kTokenHeaderBytes>;

// kInvalidArgument: token size, vocabulary, EOD token or name out of range.
Status check_token_shard_info(const TokenShardInfo& info);
TokenHeaderBytes encode_token_header(const TokenShardHeader& header);
// kDataLoss names the field. file_bytes is the size of the file on disk.
Result<TokenShardHeader> decode_token_header(std::string_view bytes, uint64_t file_bytes);

// The whole of [offset, offset + bytes), or kDataLoss when the file is shorter.
Status read_exactly(int fd, uint64_t offset, void* to, size_t bytes);
Status write_exactly(int fd, uint64_t offset, const void* from, size_t bytes);

}  // namespace swax
