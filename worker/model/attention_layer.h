// Layer 'S': sliding-window attention with rotary positions, then the MLP half. Source:
// model-spec 1.3, 4. Threads: one.
#pragma once

#include <memory>

#include "worker/model/feed_forward.h"

namespace swax {

enum AttentionTag : int {
  kAttnIn = kFeedForwardTags,  // [T,D] normed x
  kAttnRstd,                   // [T]
  kAttnQkv,                    // [T,(H+2G)E] columns of q and k, after RoPE, and of v
  kAttnO,                      // [T,H,E]
  kAttnLse,                    // [T,H]
};

class AttentionLayer final : public Layer {
 public:
  AttentionLayer(const ModelShape& shape, int64_t layer);
  std::vector<SavedSpec> saved_specs(const ModelShape& shape, int64_t tokens,
                                     DType values) const override;
  Status forward(StepCtx& ctx, Tensor x_TD, Tensor y_TD) override;
  Status backward(StepCtx& ctx, Tensor x_TD, Tensor dy_TD, Tensor dx_TD) override;
  Status reform(StepCtx& ctx, Tensor x_TD, int tag, Tensor out) override;

  // One token against a ring of keys and values (slot p % ring holds position p), which it extends.
  struct DecodeArgs {
    Tensor x_TD, y_TD;      // [1,D]
    Tensor k_RGE, v_RGE;    // ring of `window` keys
    Tensor cos_TP, sin_TP;  // [1,P] of this position
    int64_t position = 0;
  };
  Status decode(StepCtx& ctx, const DecodeArgs& a);

 private:
  struct Heads {
    Tensor q_THE, k_TGE, v_TGE;
    Tensor turned;  // [T,H+G,E]: q and k, what RoPE turns
  };
  static Heads heads_of(const ModelShape& shape, const Tensor& qkv_TC);
  struct Projected {
    Tensor in_TD, rstd_T, qkv_TC;
  };
  Status project(StepCtx& ctx, Tensor x_TD, const Projected& p, Tensor cos_TP, Tensor sin_TP);
  Status projections_backward(StepCtx& ctx, const Heads& d, Tensor x_TD, Tensor dx_TD);

  FeedForward mlp_;
  float scale_;
  int norm_, wq_, wk_, wv_, wo_;
};

}  // namespace swax
