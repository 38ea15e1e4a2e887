#include "worker/model/feed_forward.h"

#include "worker/model/ops.h"
#include "worker/model/recompute.h"

namespace swax {
namespace {

struct Halves {
  Tensor gate_TF, up_TF;
};
Halves halves(const Tensor& unit_TF2) {
  const int64_t f = unit_TF2.dims[1] / 2;
  return {columns(unit_TF2, 0, {f}), columns(unit_TF2, f, {f})};
}

}  // namespace

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
  specs.push_back({.tag = kMlpUnit, .dtype = values, .dims = {t, 2 * f}, .rank = 2});
  specs.push_back({.tag = kMlpAct, .dtype = values, .dims = {t, f}, .rank = 2, .reform = true});
}

Status FeedForward::forward(StepCtx& ctx, Tensor y_TD) const {
  return forward(ctx,
                 {.mid_TD = ctx.save(kMid),
                  .in_TD = ctx.save(kMlpIn),
                  .rstd_T = ctx.save(kMlpRstd),
                  .unit_TF2 = ctx.save(kMlpUnit),
                  .act_TF = ctx.save(kMlpAct)},
                 y_TD);
}

Status FeedForward::forward(StepCtx& ctx, const Tensors& t, Tensor y_TD) const {
  SWAX_TRY(norm_forward(ctx, t.mid_TD, weight(ctx, norm_), t.in_TD, t.rstd_T));
  const auto [gate_TF, up_TF] = halves(t.unit_TF2);
  SWAX_TRY(linears(ctx, t.in_TD, {weight(ctx, gate_), weight(ctx, up_)}, {gate_TF, up_TF}));
  SWAX_TRY(ctx.backend.swiglu(ctx.stream, {.a_TF = gate_TF, .b_TF = up_TF, .s_TF = t.act_TF}));
  if (y_TD.empty()) return ok();
  return linear_onto(ctx, t.act_TF, weight(ctx, down_), t.mid_TD, y_TD);
}

Status FeedForward::backward(StepCtx& ctx, Tensor d_TD) const {
  const ScratchScope scope(ctx);
  const auto [gate_TF, up_TF] = halves(ctx.save(kMlpUnit));
  const Tensor dact_TF = take_values(ctx, {gate_TF.dims[0], gate_TF.dims[1]});
  {
    const ScratchScope act(ctx);
    SWAX_ASSIGN(const Tensor act_TF, ctx.saved(kMlpAct));
    SWAX_TRY(linear_dw(ctx, d_TD, act_TF, grad(ctx, down_)));
  }
  SWAX_TRY(linear_dx(ctx, d_TD, weight(ctx, down_), dact_TF));
  // The gradients take the place of the saved products, which nobody reads again.
  const Tensor dgate_TF = gate_TF, dup_TF = up_TF;
  SWAX_TRY(ctx.backend.swiglu_backward(
      ctx.stream,
      {.a_TF = gate_TF, .b_TF = up_TF, .ds_TF = dact_TF, .da_TF = dgate_TF, .db_TF = dup_TF}));
  const Tensor din_TD = take_like(ctx, d_TD);
  {
    const ScratchScope in(ctx);
    SWAX_ASSIGN(const Tensor in_TD, ctx.saved(kMlpIn));
    SWAX_TRY(linears_dw(ctx, {dgate_TF, dup_TF}, in_TD, {grad(ctx, gate_), grad(ctx, up_)}));
  }
  SWAX_TRY(linears_dx(ctx, {dgate_TF, dup_TF}, {weight(ctx, gate_), weight(ctx, up_)}, din_TD));
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
  const auto [gate_TF, up_TF] = halves(ctx.save(kMlpUnit));
  return ctx.backend.swiglu(ctx.stream, {.a_TF = gate_TF, .b_TF = up_TF, .s_TF = out});
}

}  // namespace swax
