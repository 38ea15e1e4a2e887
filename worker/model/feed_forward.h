// The second half of every layer: y = h + W_down (silu(W_gate n) * W_up n), n = RMSNorm(h). Shared
// by both layer kinds, which put its saved tensors first in their list. Source: model-spec 1.3.
// Threads: one.
#pragma once

#include <vector>

#include "worker/model/layer.h"

namespace swax {

// Saved tensors of the half, in order of their tags; a layer's own tags begin at kFeedForwardTags.
enum FeedForwardTag : int {
  kMid = 0,  // [T,D] h: the residual stream between mixer and MLP
  kMlpIn,    // [T,D] normed h
  kMlpRstd,  // [T]
  kMlpUnit,  // [T,2F] gate before silu, up
  kMlpAct,   // [T,F] silu(gate) * up
  kFeedForwardTags
};

class FeedForward {
 public:
  FeedForward(const ModelShape& shape, int64_t layer);
  static void append_specs(const ModelShape& shape, int64_t tokens, DType values,
                           std::vector<SavedSpec>& specs);

  struct Tensors {
    Tensor mid_TD, in_TD, rstd_T, unit_TF2, act_TF;
  };
  // From saved tensors kMid (input) ...; y_TD empty: stops before the last product.
  Status forward(StepCtx& ctx, Tensor y_TD) const;
  // The same on tensors of the caller (decoding).
  Status forward(StepCtx& ctx, const Tensors& t, Tensor y_TD) const;
  // d_TD: in dy, out dh. Overwrites kMlpUnit.
  Status backward(StepCtx& ctx, Tensor d_TD) const;
  Status reform(StepCtx& ctx, int tag, Tensor out) const;

 private:
  int norm_, gate_, up_, down_;
};

}  // namespace swax
