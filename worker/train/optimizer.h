// One update of this rank's shard: gradient norm (one double per row, gathered, one tree over all
// rows in table order), clip factor and AdamW, all on the device: the host reads nothing in
// between. Element-wise but for the norm, hence the same bits for every number of ranks. Threads:
// one. Nothing is allocated after create().
#pragma once

#include <memory>
#include <vector>

#include "proto/job.pb.h"
#include "worker/train/fsdp.h"

namespace swax {

class Optimizer {
 public:
  static Result<std::unique_ptr<Optimizer>> create(RankContext& rank, const ModelShape& shape,
                                                   const Layout& layout, const pb::JobSpec& spec,
                                                   Fsdp& fsdp);
  // Enqueues norm, clip and AdamW; scalars lie in device memory. Master, m and v are not written
  // before state_free (a checkpoint's copy).
  Status update(StepScalars* scalars, Event state_free);
  int64_t bytes() const;

 private:
  Optimizer(RankContext& rank, Fsdp& fsdp) : rank_(rank), fsdp_(fsdp) {}
  Status gather_row_sums();
  Status adamw(const StepScalars* scalars);
  RankContext& rank_;
  Fsdp& fsdp_;
  float beta1_ = 0.0F, beta2_ = 0.0F, eps_ = 0.0F;
  std::vector<RowSegment> rows_;
  std::vector<std::vector<DecaySegment>> decay_;  // by unit, inside its part of the shard
  Block row_sums_, gathered_, order_, scratch_;
};

}  // namespace swax
