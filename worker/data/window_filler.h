// One window of a split -> what a slot trains on (semantics: SlotBatch in batch_source.h).
// Allocates only in the constructor and in prepare(). Threads: one owner.
#pragma once

#include <cstdint>
#include <vector>

#include "storage/shard_catalog.h"
#include "worker/data/batch_source.h"

namespace swax {

class WindowFiller {
 public:
  WindowFiller(int64_t seq_len, bool doc_reset);
  // Gives the vectors their size; doc_start_T and reset_T stay empty without doc_reset.
  void prepare(SlotBatch* batch) const;
  // Tokens [window * T, window * T + T + 1) of the reader's split. `batch` must be prepared; its
  // slot is left alone.
  Status fill(DatasetReader& reader, int64_t window, SlotBatch* batch);

 private:
  size_t length_;  // T
  bool doc_reset_;
  std::vector<int32_t> tokens_;  // [T + 1]
  std::vector<uint8_t> starts_;  // [T + 1]
};

}  // namespace swax
