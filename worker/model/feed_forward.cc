#include "worker/model/feed_forward.h"

#include "worker/model/ops.h"
#include "worker/model/recompute.h"

namespace swax {

FeedForward::FeedForward(const ModelShape& shape, int64_t layer)
    : norm_(layer_index(shape, layer, "norm_mlp.weight")),
      gate_(layer_index(shape, layer, "mlp.w_gate")),
      up_(layer_index(shape, layer, "mlp.w_up")),
      down_(layer_index(shape, layer, "mlp.w_down")) {}

void FeedForward::append_specs(const ModelShape& shape, int64_t tokens, DType values,
                               std::vector<SavedSpec>& specs) {
  const int64_t t = tokens, d = shape.dim, f = shape.ff;
  specs.push_back({.tag = kMid, .dtype = values, .dims = {t, d}, .rank = 2});
  specs.push_back({.tag = kMlpIn, .dtype = values, .dims = {t, d}, .rank = 2, .reform = true});
  specs.push_back({.tag = kMlpRstd, .dims = {t}, .rank = 1});
  specs.push_back({.tag = kMlpGate, .dtype = values, .dims = {t, f}, .rank = 2});
  specs.push_back({.tag = kMlpUp, .dtype = values, .dims = {t, f}, .rank = 2});
  specs.push_back({.tag = kMlpAct, .dtype = values, .dims = {t, f}, .rank = 2, .reform = true});
}

Status FeedForward::forward(StepCtx& ctx, Tensor y_TD) const {
  return forward(ctx,
                 {.mid_TD = ctx.save(kMid),
                  .in_TD = ctx.save(kMlpIn),
                  .rstd_T = ctx.save(kMlpRstd),
                  .gate_TF = ctx.save(kMlpGate),
                  .up_TF = ctx.save(kMlpUp),
                  .act_TF = ctx.save(kMlpAct)},
                 y_TD);
}

Status FeedForward::forward(StepCtx& ctx, const Tensors& t, Tensor y_TD) const {
  SWAX_TRY(norm_forward(ctx, t.mid_TD, weight(ctx, norm_), t.in_TD, t.rstd_T));
  SWAX_TRY(linear(ctx, t.in_TD, weight(ctx, gate_), t.gate_TF));
  SWAX_TRY(linear(ctx, t.in_TD, weight(ctx, up_), t.up_TF));
  SWAX_TRY(ctx.backend.swiglu(ctx.stream, {.a_TF = t.gate_TF, .b_TF = t.up_TF, .s_TF = t.act_TF}));
  if (y_TD.empty()) return ok();
  SWAX_TRY(ctx.backend.copy(ctx.stream, y_TD, t.mid_TD));
  return linear(ctx, t.act_TF, weight(ctx, down_), y_TD, Into::kAdd);
}

Status FeedForward::backward(StepCtx& ctx, Tensor d_TD) const {
  const ScratchScope scope(ctx);
  const Tensor gate = ctx.save(kMlpGate), up = ctx.save(kMlpUp);
  const Tensor dact_TF = take_like(ctx, gate);
  {
    const ScratchScope act(ctx);
    SWAX_ASSIGN(const Tensor act_TF, ctx.saved(kMlpAct));
    SWAX_TRY(linear_dw(ctx, d_TD, act_TF, grad(ctx, down_)));
  }
  SWAX_TRY(linear_dx(ctx, d_TD, weight(ctx, down_), dact_TF));
  // The gradients take the place of dact and of the saved up product, which nobody reads again.
  const Tensor dgate_TF = dact_TF, dup_TF = up;
  SWAX_TRY(ctx.backend.swiglu_backward(
      ctx.stream,
      {.a_TF = gate, .b_TF = up, .ds_TF = dact_TF, .da_TF = dgate_TF, .db_TF = dup_TF}));
  const Tensor din_TD = take_like(ctx, d_TD);
  {
    const ScratchScope in(ctx);
    SWAX_ASSIGN(const Tensor in_TD, ctx.saved(kMlpIn));
    SWAX_TRY(linear_dw(ctx, dgate_TF, in_TD, grad(ctx, gate_)));
    SWAX_TRY(linear_dw(ctx, dup_TF, in_TD, grad(ctx, up_)));
  }
  SWAX_TRY(linear_dx(ctx, dgate_TF, weight(ctx, gate_), din_TD));
  SWAX_TRY(linear_dx(ctx, dup_TF, weight(ctx, up_), din_TD, Into::kAdd));
  return norm_backward(ctx, {.x_TD = ctx.save(kMid),
                             .w_D = weight(ctx, norm_),
                             .rstd_T = ctx.save(kMlpRstd),
                             .dy_TD = din_TD,
                             .dx_TD = d_TD,
                             .dw_D = grad(ctx, norm_)});
}

Status FeedForward::reform(StepCtx& ctx, int tag, Tensor out) const {
  if (tag == kMlpIn) {
    return ctx.backend.rms_norm_apply(ctx.stream, {.x_TD = ctx.save(kMid),
                                                   .w_D = weight(ctx, norm_),
                                                   .rstd_T = ctx.save(kMlpRstd),
                                                   .y_TD = out});
  }
  SWAX_CHECK(tag == kMlpAct);
  return ctx.backend.swiglu(ctx.stream,
                            {.a_TF = ctx.save(kMlpGate), .b_TF = ctx.save(kMlpUp), .s_TF = out});
}

}  // namespace swax
