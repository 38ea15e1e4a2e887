// The saved tensors of one layer and the three recompute policies over them. The only place that
// knows a policy: layers say what their backward needs, this file decides what is kept, formed
// again, or made by running forward again. Internal to worker/model. Threads: one.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/model/layer.h"

namespace swax {

// One layer's saved tensors. They live from its forward to its backward, so each layer has its own.
struct StepCtx::Slots {
  struct Entry {
    SavedSpec spec;
    Tensor tensor;      // empty: dropped or not made yet
    int64_t mark = -1;  // arena mark below a re-formed tensor; -1: not re-formed
  };
  Layer* layer = nullptr;
  Tensor x_TD;
  std::vector<Entry> entries;  // entry i has tag i
  RecomputeMode recompute = RecomputeMode::kNone;
  int64_t tokens = -1;  // the entries are declared for this T and this value type
  DType values = DType::kF32;
};

// Releases what was taken from the arena since it was made, and forgets tensors re-formed there.
class ScratchScope {
 public:
  explicit ScratchScope(StepCtx& ctx) : ctx_(ctx), mark_(ctx.arena.mark()) {}
  ~ScratchScope();
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;

 private:
  StepCtx& ctx_;
  int64_t mark_;
};

// Asks the layer for its specs when T or the value type changed since the last call; allocates host
// memory only then.
void declare_saved(StepCtx& ctx, StepCtx::Slots& slots, Layer& layer);
// Forward of the layer of `slots`. keep: slots.recompute decides what stays in the arena for
// backward; otherwise nothing does. The arena ends behind the kept tensors.
Status run_forward(StepCtx& ctx, StepCtx::Slots& slots, Tensor x_TD, Tensor y_TD, bool keep);
// Backward, after run_forward with keep. dx_TD may be dy_TD. The arena ends where it began.
Status run_backward(StepCtx& ctx, StepCtx::Slots& slots, Tensor dy_TD, Tensor dx_TD);

}  // namespace swax
