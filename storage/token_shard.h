// Token shard file (.swt), little-endian, version 1. Byte layout: storage/FORMAT.md (header 4096
// bytes, tokens, document ends, XXH3-64 per 1 MiB block of tokens). Written to a temporary name,
// synced, renamed. Token size 1, 2 or 4 bytes. Threads: a reader may be used by one thread; make
// one per thread. Reads never allocate after open.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "proto/base/hash.h"
#include "proto/base/status.h"

namespace swax {

struct TokenShardInfo {
  uint32_t token_bytes = 2;
  uint32_t vocab_size = 0;
  uint32_t eod_token = 0;
  uint64_t tokens = 0;
  uint64_t documents = 0;
  Hash128 tokenizer_digest;
  Hash128 source_digest;
  std::string name;
};

class TokenShardWriter {
 public:
  // info.tokens and info.documents are counted by the writer.
  static Result<std::unique_ptr<TokenShardWriter>> create(const std::string& path,
                                                          const TokenShardInfo& info);
  virtual ~TokenShardWriter() = default;  // without finish() the temporary file is removed
  virtual Status append(std::span<const uint32_t> tokens) = 0;
  virtual void end_document() = 0;  // the document ends after the tokens appended so far
  struct Finished {
    TokenShardInfo info;
    uint64_t bytes = 0;
    Hash128 file_hash;
  };
  virtual Result<Finished> finish() = 0;
};

class TokenShardReader {
 public:
  // Checks magic, version, header digest, sizes. kDataLoss names the file and the field.
  static Result<std::unique_ptr<TokenShardReader>> open(const std::string& path);
  virtual ~TokenShardReader() = default;
  virtual const TokenShardInfo& info() const = 0;
  // Tokens [begin, begin + out.size()). Every 1 MiB block is checked against its XXH3-64 the first
  // time it is touched; kDataLoss names shard, block and both digests.
  virtual Status read(uint64_t begin, std::span<int32_t> out) = 0;
  virtual std::span<const uint64_t> document_ends()
      const = 0;                // rising positions, the last equals tokens
  virtual Status verify() = 0;  // all blocks and tables
};

}  // namespace swax
