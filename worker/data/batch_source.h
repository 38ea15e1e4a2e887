// From (step, slot) to the tokens of a sequence. Stateless: every slot of every step can be asked
// for in any order, by any rank. Targets: target_t = token_{t+1}, or -1 (ignored) where token_{t+1}
// starts another document and doc_reset is on. A background thread loads the next step's slots; a
// failed read (kDataLoss: shard and block) is returned by the call that needs it. Threads: one
// owner. After the third step nothing is allocated on the owner's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "jobs/slot_plan.h"
#include "proto/base/status.h"
#include "proto/job.pb.h"

namespace swax {

struct SlotBatch {
  int64_t slot = -1;  // kNoSlot when this rank has none in this micro-step
  std::vector<int32_t> tokens_T, targets_T, doc_start_T;
  std::vector<uint8_t> reset_T;
  int64_t targets = 0;     // not ignored
  int64_t text_bytes = 0;  // targets that are bytes of text (not EOD)
};

struct BatchSourceOptions {
  const pb::JobSpec* spec = nullptr;
  std::vector<std::string> folders;  // of the data sets, one per spec source
  int rank = 0;
  int ranks = 1;
};

class BatchSource {
 public:
  static Result<std::unique_ptr<BatchSource>> open(const BatchSourceOptions& options);
  virtual ~BatchSource() = default;
  // The slots of `step` for this rank, [micro_steps]; valid until the next call. Starts loading
  // step + 1.
  virtual Result<const std::vector<SlotBatch>*> step(int64_t step) = 0;
  // Held-out windows over all sources in spec order, [0, validation_windows()).
  virtual int64_t validation_windows() const = 0;
  virtual Status validation(int64_t window, SlotBatch* out) = 0;
};

}  // namespace swax
