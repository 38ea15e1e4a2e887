#include "worker/model/ends.h"

#include <algorithm>

#include "proto/base/math.h"
#include "worker/model/ops.h"
#include "worker/model/recompute.h"

namespace swax {
namespace {

// z = cap tanh(u / cap) on the host, in double: it is needed only where the host reads logits next
// (sampling, tests). tanh(a) = 1 - 2 / (exp(2a) + 1) on |a| keeps the sign symmetric; beyond 40 it
// is 1.
void soft_cap(Tensor logits, double cap) {
  if (cap == 0.0) return;
  float* z = logits.f32();
  for (int64_t i = 0, n = logits.elements(); i < n; ++i) {
    const double a = static_cast<double>(z[i]) / cap;
    const double size = std::min(a < 0 ? -a : a, 40.0);
    const double tanh = 1.0 - 2.0 / (math::exp(2.0 * size) + 1.0);
    z[i] = static_cast<float>(a < 0 ? -cap * tanh : cap * tanh);
  }
}

Status to_f32(StepCtx& ctx, Tensor from, Tensor to) {
  if (from.dtype == DType::kF32) return ctx.backend.copy(ctx.stream, to, from);
  return ctx.backend.cast(ctx.stream, {.from = from, .to = to});
}

}  // namespace

Embedding::Embedding(const ModelShape& shape) : weight_(unit_index(shape, "embed.weight")) {}

Status Embedding::forward(StepCtx& ctx, Tensor tokens_T, Tensor y_TD) const {
  return ctx.backend.embedding(
      ctx.stream, {.tokens_T = tokens_T, .weight_VD = weight(ctx, weight_), .y_TD = y_TD});
}

Status Embedding::backward(StepCtx& ctx, Tensor dy_TD) const {
  return ctx.backend.embedding_backward(
      ctx.stream,
      {.tokens_T = ctx.slot.tokens_T, .dy_TD = dy_TD, .dweight_VD = grad(ctx, weight_)});
}

Head::Head(const ModelShape& shape)
    : norm_(unit_index(shape, "norm_out.weight")), weight_(unit_index(shape, "head.weight")) {}

Status Head::train(StepCtx& ctx, Tensor x_TD, Tensor dx_TD, Tensor loss_sum) const {
  const ScratchScope scope(ctx);
  const int64_t tokens = x_TD.dims[0], dim = x_TD.dims[1];
  const int64_t loss_chunk = ctx.precision.loss_chunk;
  const Tensor in_TD = take_values(ctx, {tokens, dim});
  const Tensor rstd_T = ctx.arena.take(DType::kF32, {tokens});
  SWAX_TRY(norm_forward(ctx, x_TD, weight(ctx, norm_), in_TD, rstd_T));
  {
    const ScratchScope chunks(ctx);
    const Tensor logits_TV = take_values(ctx, {std::min(tokens, loss_chunk), ctx.shape.vocab});
    for (int64_t begin = 0; begin < tokens; begin += loss_chunk) {
      const int64_t count = std::min(loss_chunk, tokens - begin);
      const Tensor u = logits_TV.rows(0, count), in = in_TD.rows(begin, count);
      SWAX_TRY(linear(ctx, in, weight(ctx, weight_), u));
      SWAX_TRY(
          ctx.backend.cross_entropy(ctx.stream, {.logits_TV = u,
                                                 .targets_T = ctx.slot.targets_T.rows(begin, count),
                                                 .loss_sum = loss_sum,
                                                 .token_loss_T = {},
                                                 .scalars = ctx.scalars,
                                                 .cap = static_cast<float>(ctx.shape.logit_cap),
                                                 .write_gradient = true}));
      SWAX_TRY(linear_dx(ctx, u, weight(ctx, weight_), dx_TD.rows(begin, count)));
      SWAX_TRY(linear_dw(ctx, u, in, grad(ctx, weight_), begin == 0 ? Into::kWrite : Into::kAdd));
    }
  }
  // The gradient of the normed input lies in dx_TD and is replaced by that of x_TD.
  const int64_t elements = rms_norm_backward_scratch(tokens, dim);
  return ctx.backend.rms_norm_backward(ctx.stream,
                                       {.x_TD = x_TD,
                                        .w_D = weight(ctx, norm_),
                                        .rstd_T = rstd_T,
                                        .dy_TD = dx_TD,
                                        .dx_TD = dx_TD,
                                        .dw_D = grad(ctx, norm_),
                                        .scratch = ctx.arena.take(DType::kF32, {elements}),
                                        .accumulate_dx = false});
}

Status Head::eval(StepCtx& ctx, Tensor x_TD, Tensor loss_sum, Tensor token_loss_T,
                  Tensor logits_TV) const {
  const ScratchScope scope(ctx);
  const int64_t tokens = x_TD.dims[0], dim = x_TD.dims[1];
  const int64_t loss_chunk = ctx.precision.loss_chunk;
  const Tensor in_TD = take_values(ctx, {tokens, dim});
  const Tensor rstd_T = ctx.arena.take(DType::kF32, {tokens});
  SWAX_TRY(norm_forward(ctx, x_TD, weight(ctx, norm_), in_TD, rstd_T));
  const Tensor chunk_TV = take_values(ctx, {std::min(tokens, loss_chunk), ctx.shape.vocab});
  for (int64_t begin = 0; begin < tokens; begin += loss_chunk) {
    const int64_t count = std::min(loss_chunk, tokens - begin);
    const Tensor u = chunk_TV.rows(0, count);
    SWAX_TRY(linear(ctx, in_TD.rows(begin, count), weight(ctx, weight_), u));
    if (!logits_TV.empty()) {
      SWAX_TRY(to_f32(ctx, u, logits_TV.rows(begin, count)));
    }
    SWAX_TRY(ctx.backend.cross_entropy(
        ctx.stream,
        {.logits_TV = u,
         .targets_T = ctx.slot.targets_T.rows(begin, count),
         .loss_sum = loss_sum,
         .token_loss_T = token_loss_T.empty() ? Tensor{} : token_loss_T.rows(begin, count),
         .scalars = ctx.scalars,
         .cap = static_cast<float>(ctx.shape.logit_cap),
         .write_gradient = false}));
  }
  if (logits_TV.empty()) return ok();
  SWAX_TRY(ctx.backend.sync(ctx.stream));
  if (!ctx.arena.is_measuring()) soft_cap(logits_TV, ctx.shape.logit_cap);
  return ok();
}

Status Head::logits(StepCtx& ctx, Tensor x_TD, Tensor logits_TV) const {
  const ScratchScope scope(ctx);
  const int64_t tokens = x_TD.dims[0];
  const Tensor in_TD = ctx.arena.take(DType::kF32, {tokens, x_TD.dims[1]});
  const Tensor rstd_T = ctx.arena.take(DType::kF32, {tokens});
  const Tensor u_TV = ctx.arena.take(DType::kF32, {tokens, ctx.shape.vocab});
  SWAX_TRY(norm_forward(ctx, x_TD, weight(ctx, norm_), in_TD, rstd_T));
  SWAX_TRY(linear(ctx, in_TD, weight(ctx, weight_), u_TV));
  SWAX_TRY(ctx.backend.copy(ctx.stream, logits_TV, u_TV));
  SWAX_TRY(ctx.backend.sync(ctx.stream));
  if (!ctx.arena.is_measuring()) soft_cap(logits_TV, ctx.shape.logit_cap);
  return ok();
}

}  // namespace swax
