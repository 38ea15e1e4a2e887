#include "worker/model/attention_layer.h"

#include <cmath>

#include "worker/model/ops.h"
#include "worker/model/recompute.h"

namespace swax {

AttentionLayer::AttentionLayer(const ModelShape& shape, int64_t layer)
    : mlp_(shape, layer),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)))),
      norm_(layer_index(shape, layer, "norm_mix.weight")),
      wq_(layer_index(shape, layer, "attn.wq")),
      wk_(layer_index(shape, layer, "attn.wk")),
      wv_(layer_index(shape, layer, "attn.wv")),
      wo_(layer_index(shape, layer, "attn.wo")) {}

std::vector<SavedSpec> AttentionLayer::saved_specs(const ModelShape& shape, int64_t tokens,
                                                   DType values) const {
  const int64_t t = tokens, h = shape.heads, g = shape.kv_heads, e = shape.head_dim;
  std::vector<SavedSpec> specs;
  FeedForward::append_specs(shape, tokens, values, specs);
  specs.push_back(
      {.tag = kAttnIn, .dtype = values, .dims = {t, shape.dim}, .rank = 2, .reform = true});
  specs.push_back({.tag = kAttnRstd, .dims = {t}, .rank = 1});
  specs.push_back({.tag = kAttnQ, .dtype = values, .dims = {t, h, e}, .rank = 3});
  specs.push_back({.tag = kAttnK, .dtype = values, .dims = {t, g, e}, .rank = 3});
  specs.push_back({.tag = kAttnV, .dtype = values, .dims = {t, g, e}, .rank = 3});
  specs.push_back({.tag = kAttnO, .dtype = values, .dims = {t, h, e}, .rank = 3});
  specs.push_back({.tag = kAttnLse, .dims = {t, h}, .rank = 2});
  return specs;
}

Status AttentionLayer::project(StepCtx& ctx, Tensor x_TD, const Projected& p, Tensor cos_TP,
                               Tensor sin_TP) {
  SWAX_TRY(norm_forward(ctx, x_TD, weight(ctx, norm_), p.in_TD, p.rstd_T));
  SWAX_TRY(linear(ctx, p.in_TD, weight(ctx, wq_), p.q_THE));
  SWAX_TRY(linear(ctx, p.in_TD, weight(ctx, wk_), p.k_TGE));
  SWAX_TRY(linear(ctx, p.in_TD, weight(ctx, wv_), p.v_TGE));
  SWAX_TRY(ctx.backend.rope(ctx.stream, {.x_THE = p.q_THE, .cos_TP = cos_TP, .sin_TP = sin_TP}));
  return ctx.backend.rope(ctx.stream, {.x_THE = p.k_TGE, .cos_TP = cos_TP, .sin_TP = sin_TP});
}

Status AttentionLayer::forward(StepCtx& ctx, Tensor x_TD, Tensor y_TD) {
  const Projected p{.in_TD = ctx.save(kAttnIn),
                    .rstd_T = ctx.save(kAttnRstd),
                    .q_THE = ctx.save(kAttnQ),
                    .k_TGE = ctx.save(kAttnK),
                    .v_TGE = ctx.save(kAttnV)};
  SWAX_TRY(project(ctx, x_TD, p, ctx.rope_cos_TP, ctx.rope_sin_TP));
  SWAX_TRY(ctx.backend.swa(ctx.stream, {.q_THE = p.q_THE,
                                        .k_TGE = p.k_TGE,
                                        .v_TGE = p.v_TGE,
                                        .doc_start_T = ctx.slot.doc_start_T,
                                        .o_THE = ctx.save(kAttnO),
                                        .lse_TH = ctx.save(kAttnLse),
                                        .window = ctx.window,
                                        .scale = scale_}));
  const Tensor mid_TD = ctx.save(kMid);
  SWAX_TRY(ctx.backend.copy(ctx.stream, mid_TD, x_TD));
  SWAX_TRY(linear(ctx, ctx.save(kAttnO), weight(ctx, wo_), mid_TD, Into::kAdd));
  return mlp_.forward(ctx, y_TD);
}

Status AttentionLayer::backward(StepCtx& ctx, Tensor x_TD, Tensor dy_TD, Tensor dx_TD) {
  if (dx_TD.data != dy_TD.data) SWAX_TRY(ctx.backend.copy(ctx.stream, dx_TD, dy_TD));
  SWAX_TRY(mlp_.backward(ctx, dx_TD));
  const ScratchScope scope(ctx);
  const Tensor q = ctx.save(kAttnQ), k = ctx.save(kAttnK), o = ctx.save(kAttnO);
  const auto like = [&](const Tensor& t) { return take_like(ctx, t); };
  const Projected d{
      .in_TD = {}, .rstd_T = {}, .q_THE = like(q), .k_TGE = like(k), .v_TGE = like(k)};
  SWAX_TRY(linear_dw(ctx, dx_TD, o, grad(ctx, wo_)));
  {
    const ScratchScope attention(ctx);
    const Tensor do_THE = like(o);
    SWAX_TRY(linear_dx(ctx, dx_TD, weight(ctx, wo_), do_THE));
    const int64_t elements = swa_backward_scratch(q.dims[0], q.dims[1]);
    SWAX_TRY(
        ctx.backend.swa_backward(ctx.stream, {.q_THE = q,
                                              .k_TGE = k,
                                              .v_TGE = ctx.save(kAttnV),
                                              .doc_start_T = ctx.slot.doc_start_T,
                                              .o_THE = o,
                                              .lse_TH = ctx.save(kAttnLse),
                                              .do_THE = do_THE,
                                              .dq_THE = d.q_THE,
                                              .dk_TGE = d.k_TGE,
                                              .dv_TGE = d.v_TGE,
                                              .scratch = ctx.arena.take(DType::kF32, {elements}),
                                              .window = ctx.window,
                                              .scale = scale_}));
  }
  for (const Tensor& rotated : {d.q_THE, d.k_TGE}) {
    SWAX_TRY(ctx.backend.rope(
        ctx.stream,
        {.x_THE = rotated, .cos_TP = ctx.rope_cos_TP, .sin_TP = ctx.rope_sin_TP, .inverse = true}));
  }
  return projections_backward(ctx, d, x_TD, dx_TD);
}

Status AttentionLayer::projections_backward(StepCtx& ctx, const Projected& d, Tensor x_TD,
                                            Tensor dx_TD) {
  const Tensor din_TD = take_like(ctx, x_TD);
  {
    const ScratchScope in(ctx);
    SWAX_ASSIGN(const Tensor in_TD, ctx.saved(kAttnIn));
    SWAX_TRY(linear_dw(ctx, d.q_THE, in_TD, grad(ctx, wq_)));
    SWAX_TRY(linear_dw(ctx, d.k_TGE, in_TD, grad(ctx, wk_)));
    SWAX_TRY(linear_dw(ctx, d.v_TGE, in_TD, grad(ctx, wv_)));
  }
  SWAX_TRY(linear_dx(ctx, d.q_THE, weight(ctx, wq_), din_TD));
  SWAX_TRY(linear_dx(ctx, d.k_TGE, weight(ctx, wk_), din_TD, Into::kAdd));
  SWAX_TRY(linear_dx(ctx, d.v_TGE, weight(ctx, wv_), din_TD, Into::kAdd));
  return norm_backward(ctx, {.x_TD = x_TD,
                             .w_D = weight(ctx, norm_),
                             .rstd_T = ctx.save(kAttnRstd),
                             .dy_TD = din_TD,
                             .dx_TD = dx_TD,
                             .dw_D = grad(ctx, norm_)});
}

Status AttentionLayer::reform(StepCtx& ctx, Tensor x_TD, int tag, Tensor out) {
  if (tag < kFeedForwardTags) return mlp_.reform(ctx, tag, out);
  SWAX_CHECK(tag == kAttnIn);
  return ctx.backend.rms_norm_apply(
      ctx.stream,
      {.x_TD = x_TD, .w_D = weight(ctx, norm_), .rstd_T = ctx.save(kAttnRstd), .y_TD = out});
}

Status AttentionLayer::decode(StepCtx& ctx, const DecodeArgs& a) {
  const ScratchScope scope(ctx);
  const ModelShape& m = ctx.shape;
  const int64_t heads = m.heads, kv = m.kv_heads, e = m.head_dim;
  const auto f32 = [&](std::initializer_list<int64_t> dims) {
    return ctx.arena.take(DType::kF32, dims);
  };
  const Projected p{.in_TD = f32({1, m.dim}),
                    .rstd_T = f32({1}),
                    .q_THE = f32({1, heads, e}),
                    .k_TGE = f32({1, kv, e}),
                    .v_TGE = f32({1, kv, e})};
  SWAX_TRY(project(ctx, a.x_TD, p, a.cos_TP, a.sin_TP));
  const int64_t ring = a.k_RGE.dims[0], slot = a.position % ring;
  SWAX_TRY(ctx.backend.copy(ctx.stream, a.k_RGE.rows(slot, 1), p.k_TGE));
  SWAX_TRY(ctx.backend.copy(ctx.stream, a.v_RGE.rows(slot, 1), p.v_TGE));
  const Tensor o_HE = f32({heads, e});
  SWAX_TRY(ctx.backend.swa_decode(ctx.stream, {.q_HE = p.q_THE.reshaped({heads, e}),
                                               .k_RGE = a.k_RGE,
                                               .v_RGE = a.v_RGE,
                                               .o_HE = o_HE,
                                               .position = a.position,
                                               .doc_start = 0,
                                               .window = ring,
                                               .scale = scale_}));
  const FeedForward::Tensors t{.mid_TD = f32({1, m.dim}),
                               .in_TD = p.in_TD,
                               .rstd_T = p.rstd_T,
                               .gate_TF = f32({1, m.ff}),
                               .up_TF = f32({1, m.ff}),
                               .act_TF = f32({1, m.ff})};
  SWAX_TRY(ctx.backend.copy(ctx.stream, t.mid_TD, a.x_TD));
  SWAX_TRY(linear(ctx, o_HE.reshaped({1, heads * e}), weight(ctx, wo_), t.mid_TD, Into::kAdd));
  return mlp_.forward(ctx, t, a.y_TD);
}

}  // namespace swax
