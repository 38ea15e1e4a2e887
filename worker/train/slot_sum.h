// Adds the slot gradients of this rank's shard in the only order there is (jobs/slot_plan): a
// binary tree inside a group of slots, a left fold over groups, fp32. One accumulator and at most
// log2 G partial sums, whatever the number of ranks and slots: those that wait for slots of a later
// micro-step. Threads: one, with the stream it is given.
#pragma once

#include <span>
#include <vector>

#include "jobs/layout.h"
#include "jobs/slot_plan.h"
#include "worker/train/blocks.h"
#include "worker/train/rank_context.h"

namespace swax {

// The gradient of one slot for this rank's shard of a unit [S].
struct SlotPiece {
  int64_t slot = 0;
  Tensor values;
};

class SlotSum {
 public:
  static Result<SlotSum> create(Backend& backend, const Layout& layout, const SlotPlan& plan);
  // The pieces of one micro-step in rising order of slots, all that there are; overwritten. What
  // one of them adds to another lies in their memory until the last joins it.
  Status add(Backend& backend, Stream& stream, int unit, std::span<const SlotPiece> pieces);
  // Of one rank: the buffers that hold sums, 0 .. places() - 1, and which of them a piece of `slot`
  // is copied to when nothing joins it (-1: something does): formed there, it need not be added.
  int places() const { return 1 + static_cast<int>(partials_.size()); }
  Tensor place(int index, int unit) const;
  int place_of(int64_t slot) const;
  // After the last slot of a step: the sum, flat over all units [S of unit 0, S of unit 1, ...].
  Tensor accumulator() const { return accumulator_.tensor; }
  Tensor unit_accumulator(int unit) const;
  int64_t bytes() const;

 private:
  Tensor unit_part(const Tensor& flat, int unit) const;
  static int target_of(const SumStep& step) { return step.group_ends ? 0 : 1 + step.store; }
  bool joined_by(std::span<const SlotPiece> pieces, int target) const;
  SlotPlan plan_;
  std::vector<int64_t> unit_begin_, unit_elements_;
  Block accumulator_;
  std::vector<Block> partials_;  // by level; without memory where none waits
};

}  // namespace swax
