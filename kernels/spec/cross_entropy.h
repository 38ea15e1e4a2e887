// Soft-capped cross-entropy over one chunk of tokens: z = cap tanh(u / cap) (cap 0: z = u), loss_t
// = logsumexp(z_t) - z_t[target_t] in nats. Targets < 0 are ignored: loss 0, gradient 0.
// loss_sum[0] (f64) += sum_t loss_t, each term rounded to f64 from the f32 logits' exact
// max-shifted sum. The order of that sum follows from T alone: on the CPU tokens in rising order
// onto loss_sum, on CUDA the tree of cross_entropy.cu, then one addition to loss_sum; chunks follow
// each other. token_loss_T (f64) optional: the single terms. With write_gradient the logits are
// overwritten by du = (softmax(z) - onehot) * inv_targets * (1 - (z / cap)^2), inv_targets read
// from StepScalars on the device. bad_T is not needed: a non-finite loss shows in loss_sum. The
// head is run in chunks of tokens so that [T,V] logits never exist; the chunk belongs to the
// backend and is frozen: it changes bits. f32. Bounds: K = V, c = 4; with a cap 2 * 2^-24 * max|z|
// is added (z is an exponent, so its rounding counts absolutely). The slope 1 - (z / cap)^2 is
// formed from u and does not cancel.
#pragma once

#include "kernels/spec/step_scalars.h"
#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax {

constexpr int64_t kLossChunk = 128;       // on the CPU: a chunk of logits stays in the cache
constexpr int64_t kLossChunkCuda = 8192;  // fewer rows: slower products, more sums of dW

struct CrossEntropyArgs {
  Tensor logits_TV;                      // in: u; out: du when write_gradient
  Tensor targets_T;                      // i32
  Tensor loss_sum;                       // f64 [1], +=
  Tensor token_loss_T;                   // f64 or empty
  const StepScalars* scalars = nullptr;  // device memory; needed with write_gradient
  float cap = 0.0F;
  bool write_gradient = false;
};
Status validate(const CrossEntropyArgs& a);

}  // namespace swax
