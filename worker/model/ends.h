// The two ends of the stack: token embedding, and output norm + head with the loss. Logits of a
// whole sequence never exist: the head runs in chunks of precision.loss_chunk tokens, forward and
// backward of a chunk together. Source: model-spec 1.3. Internal to worker/model. Threads: one.
#pragma once

#include "worker/model/layer.h"

namespace swax {

class Embedding {
 public:
  explicit Embedding(const ModelShape& shape);
  Status forward(StepCtx& ctx, Tensor tokens_T, Tensor y_TD) const;
  Status backward(StepCtx& ctx, Tensor dy_TD) const;

 private:
  int weight_;
};

class Head {
 public:
  explicit Head(const ModelShape& shape);
  // loss_sum += loss; dx_TD := gradient of the residual stream; writes both gradients of the unit.
  Status train(StepCtx& ctx, Tensor x_TD, Tensor dx_TD, Tensor loss_sum) const;
  // token_loss_T and logits_TV (f32, of the host and the device: pinned memory) may be empty.
  Status eval(StepCtx& ctx, Tensor x_TD, Tensor loss_sum, Tensor token_loss_T,
              Tensor logits_TV) const;
  // Soft-capped logits of x_TD [T,D] in logits_TV [T,V], which the host can read: waits for the
  // stream. All f32 (decoding).
  Status logits(StepCtx& ctx, Tensor x_TD, Tensor logits_TV) const;

 private:
  int norm_, weight_;
};

}  // namespace swax
