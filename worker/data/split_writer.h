// Documents -> byte tokens -> token shards of the two splits. Which split a document goes to
// depends on its bytes alone (and on which document is the first): worker/data/README.md. A
// document never crosses a shard border; one that is larger than the shard limit gets a shard of
// its own. A document need not fit in memory: a long one waits in a file until its hash, hence its
// split, is known. Threads: one owner.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/files.h"
#include "proto/base/hash.h"
#include "proto/base/status.h"
#include "proto/shard.pb.h"
#include "storage/token_shard.h"
#include "worker/data/document_sink.h"

namespace swax {

// True when a document with this hash is held out. Integers decide: the fraction is scaled by 2^53,
// which is exact.
bool held_out(const Hash128& document, double validation_fraction);

// The shards of one split.
class ShardSetWriter {
 public:
  struct Options {
    std::string folder;
    std::string split;  // "train" or "validation"
    std::string name;   // of the data set
    int64_t shard_bytes_max = 0;
  };
  explicit ShardSetWriter(Options options) : options_(std::move(options)) {
    info_.set_name(options_.split);
  }

  Status begin_document(int64_t text_bytes);  // its final size
  Status text(std::string_view piece);
  Status end_document();  // appends the EOD token
  Status finish();

  const std::vector<pb::ShardInfo>& shards() const { return shards_; }
  const pb::SplitInfo& split() const { return info_; }

 private:
  Status close_shard();

  Options options_;
  std::unique_ptr<TokenShardWriter> writer_;
  int64_t shard_tokens_ = 0;
  int64_t shard_documents_ = 0;
  std::vector<pb::ShardInfo> shards_;
  pb::SplitInfo info_;
};

class SplitWriter final : public DocumentSink {
 public:
  struct Options {
    std::string folder;
    std::string name;
    double validation_fraction = 0.05;
    int64_t shard_bytes_max = 0;
  };
  explicit SplitWriter(const Options& options);

  Status text(std::string_view piece) override;
  Status end_document() override;  // an empty document is counted and left out
  Status finish();

  // After finish().
  const ShardSetWriter& train() const { return train_; }
  const ShardSetWriter& validation() const { return validation_; }
  Hash128 documents_hash() const {
    return stream_hash_.digest();
  }  // of (bytes, u64 size) of all documents in order
  int64_t text_bytes() const { return text_bytes_; }
  int64_t empty_documents() const { return empty_documents_; }

 private:
  Status spill();
  Status write_to(ShardSetWriter& split);

  std::string folder_;
  double validation_fraction_;
  ShardSetWriter train_;
  ShardSetWriter validation_;

  std::string document_;  // what is in memory of the current document
  Fd spool_;              // what came before, once a document has been long
  int64_t spooled_bytes_ = 0;
  Hasher128 document_hash_;
  int64_t document_bytes_ = 0;

  std::optional<Hash128> first_document_;
  Hasher128 stream_hash_;
  int64_t text_bytes_ = 0;
  int64_t empty_documents_ = 0;
};

}  // namespace swax
