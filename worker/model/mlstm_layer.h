// Layer 'M': chunkwise mLSTM with output gate and per-head norm, then the MLP half. Source:
// model-spec 1.3, 2. Threads: one.
#pragma once

#include <memory>

#include "worker/model/feed_forward.h"

namespace swax {

enum MlstmTag : int {
  kMlstmIn = kFeedForwardTags,  // [T,D] normed x
  kMlstmRstd,                   // [T]
  kMlstmQkvo,                   // [T,2NK+2NU] columns of q, k, v, output gate before the sigmoid
  kMlstmI,                      // [T,N] capped
  kMlstmF,                      // [T,N] capped
  kMlstmH,                      // [T,N,U]
  kMlstmStates,                 // [C+1,N,K,U+1]; bf16: [C+1,N,K,U+2]
  kMlstmStateM,                 // [C+1,N]
  kMlstmM,                      // [T,N]
  kMlstmDen,                    // [T,N]
  kMlstmMean,                   // [T,N] of the head norm
  kMlstmHeadRstd,               // [T,N]
  kMlstmOut,                    // [T,N,U] gated, normed
};

class MlstmLayer final : public Layer {
 public:
  MlstmLayer(const ModelShape& shape, int64_t layer);
  std::vector<SavedSpec> saved_specs(const ModelShape& shape, int64_t tokens,
                                     DType values) const override;
  Status forward(StepCtx& ctx, Tensor x_TD, Tensor y_TD) override;
  Status backward(StepCtx& ctx, Tensor x_TD, Tensor dy_TD, Tensor dx_TD) override;
  Status reform(StepCtx& ctx, Tensor x_TD, int tag, Tensor out) override;

  // One token; the state is updated in place.
  struct DecodeArgs {
    Tensor x_TD, y_TD;  // [1,D]
    Tensor state_NKU1, m_N;
  };
  Status decode(StepCtx& ctx, const DecodeArgs& a);

 private:
  struct Heads {
    Tensor q_TNK, k_TNK, v_TNU, gate_TNU;
  };
  static Heads heads_of(const ModelShape& shape, const Tensor& qkvo_TC);
  struct Projected {
    Tensor in_TD, rstd_T;
    Heads heads;
    Tensor i_TN, f_TN;
  };
  struct Normed {
    Tensor h_TNU, gate_TNU, mean_TN, rstd_TN, out_TNU;
  };
  Status project(StepCtx& ctx, Tensor x_TD, const Projected& p);
  Status head_norm(StepCtx& ctx, const Normed& n);
  Status cell_backward(StepCtx& ctx, Tensor dx_TD, const Projected& d);
  Status projections_backward(StepCtx& ctx, const Projected& d, Tensor x_TD, Tensor dx_TD);

  FeedForward mlp_;
  int norm_, wq_, wk_, wv_, wo_gate_, wi_, bi_, wf_, bf_, head_norm_, w_out_;
};

}  // namespace swax
