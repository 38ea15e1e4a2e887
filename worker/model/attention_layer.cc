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
  specs.push_back({.tag = kAttnQkv, .dtype = values, .dims = {t, (h + 2 * g) * e}, .rank = 2});
  specs.push_back({.tag = kAttnO, .dtype = values, .dims = {t, h, e}, .rank = 3});
  specs.push_back({.tag = kAttnLse, .dims = {t, h}, .rank = 2});
  return specs;
}

AttentionLayer::Heads AttentionLayer::heads_of(const ModelShape& shape, const Tensor& qkv_TC) {
  const int64_t h = shape.heads, g = shape.kv_heads, e = shape.head_dim;
  return {.q_THE = columns(qkv_TC, 0, {h, e}),
          .k_TGE = columns(qkv_TC, h * e, {g, e}),
          .v_TGE = columns(qkv_TC, (h + g) * e, {g, e}),
          .turned = columns(qkv_TC, 0, {h + g, e})};
}

Status AttentionLayer::project(StepCtx& ctx, Tensor x_TD, const Projected& p, Tensor cos_TP,
                               Tensor sin_TP) {
  SWAX_TRY(norm_forward(ctx, x_TD, weight(ctx, norm_), p.in_TD, p.rstd_T));
  const Heads n = heads_of(ctx.shape, p.qkv_TC);
  SWAX_TRY(linears(ctx, p.in_TD, {weight(ctx, wq_), weight(ctx, wk_), weight(ctx, wv_)},
                   {n.q_THE, n.k_TGE, n.v_TGE}));
  return ctx.backend.rope(ctx.stream, {.x_THE = n.turned, .cos_TP = cos_TP, .sin_TP = sin_TP});
}

Status AttentionLayer::forward(StepCtx& ctx, Tensor x_TD, Tensor y_TD) {
  const Projected p{
      .in_TD = ctx.save(kAttnIn), .rstd_T = ctx.save(kAttnRstd), .qkv_TC = ctx.save(kAttnQkv)};
  SWAX_TRY(project(ctx, x_TD, p, ctx.rope_cos_TP, ctx.rope_sin_TP));
  const Heads n = heads_of(ctx.shape, p.qkv_TC);
  SWAX_TRY(ctx.backend.swa(ctx.stream, {.q_THE = n.q_THE,
                                        .k_TGE = n.k_TGE,
                                        .v_TGE = n.v_TGE,
                                        .doc_start_T = ctx.slot.doc_start_T,
                                        .o_THE = ctx.save(kAttnO),
                                        .lse_TH = ctx.save(kAttnLse),
                                        .window = ctx.window,
                                        .scale = scale_}));
  SWAX_TRY(linear_onto(ctx, ctx.save(kAttnO), weight(ctx, wo_), x_TD, ctx.save(kMid)));
  return mlp_.forward(ctx, y_TD);
}

Status AttentionLayer::backward(StepCtx& ctx, Tensor x_TD, Tensor dy_TD, Tensor dx_TD) {
  if (dx_TD.data != dy_TD.data) SWAX_TRY(ctx.backend.copy(ctx.stream, dx_TD, dy_TD));
  SWAX_TRY(mlp_.backward(ctx, dx_TD));
  const ScratchScope scope(ctx);
  const Tensor qkv_TC = ctx.save(kAttnQkv), o = ctx.save(kAttnO);
  const Heads n = heads_of(ctx.shape, qkv_TC), d = heads_of(ctx.shape, take_like(ctx, qkv_TC));
  SWAX_TRY(linear_dw(ctx, dx_TD, o, grad(ctx, wo_)));
  {
    const ScratchScope attention(ctx);
    const Tensor do_THE = take_like(ctx, o);
    SWAX_TRY(linear_dx(ctx, dx_TD, weight(ctx, wo_), do_THE));
    const int64_t elements = swa_backward_scratch(n.q_THE);
    SWAX_TRY(
        ctx.backend.swa_backward(ctx.stream, {.q_THE = n.q_THE,
                                              .k_TGE = n.k_TGE,
                                              .v_TGE = n.v_TGE,
                                              .doc_start_T = ctx.slot.doc_start_T,
                                              .o_THE = o,
                                              .lse_TH = ctx.save(kAttnLse),
                                              .do_THE = do_THE,
                                              .dq_THE = d.q_THE,
                                              .dk_TGE = d.k_TGE,
                                              .dv_TGE = d.v_TGE,
                                              .scratch = ctx.arena.take(DType::kF32, {elements}),
                                              .window = ctx.window,
                                              .scale = scale_,
                                              .cos_TP = ctx.rope_cos_TP,
                                              .sin_TP = ctx.rope_sin_TP}));
  }
  return projections_backward(ctx, d, x_TD, dx_TD);
}

Status AttentionLayer::projections_backward(StepCtx& ctx, const Heads& d, Tensor x_TD,
                                            Tensor dx_TD) {
  const Tensor din_TD = take_like(ctx, x_TD);
  {
    const ScratchScope in(ctx);
    SWAX_ASSIGN(const Tensor in_TD, ctx.saved(kAttnIn));
    SWAX_TRY(linears_dw(ctx, {d.q_THE, d.k_TGE, d.v_TGE}, in_TD,
                        {grad(ctx, wq_), grad(ctx, wk_), grad(ctx, wv_)}));
  }
  SWAX_TRY(linears_dx(ctx, {d.q_THE, d.k_TGE, d.v_TGE},
                      {weight(ctx, wq_), weight(ctx, wk_), weight(ctx, wv_)}, din_TD));
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
  const Projected p{
      .in_TD = f32({1, m.dim}), .rstd_T = f32({1}), .qkv_TC = f32({1, (heads + 2 * kv) * e})};
  SWAX_TRY(project(ctx, a.x_TD, p, a.cos_TP, a.sin_TP));
  const Heads n = heads_of(m, p.qkv_TC);
  const int64_t ring = a.k_RGE.dims[0], slot = a.position % ring;
  SWAX_TRY(ctx.backend.copy(ctx.stream, a.k_RGE.rows(slot, 1), n.k_TGE));
  SWAX_TRY(ctx.backend.copy(ctx.stream, a.v_RGE.rows(slot, 1), n.v_TGE));
  const Tensor o_HE = f32({heads, e});
  SWAX_TRY(ctx.backend.swa_decode(ctx.stream, {.q_HE = n.q_THE.reshaped({heads, e}),
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
                               .unit_TF2 = f32({1, 2 * m.ff}),
                               .act_TF = f32({1, m.ff})};
  SWAX_TRY(linear_onto(ctx, o_HE.reshaped({1, heads * e}), weight(ctx, wo_), a.x_TD, t.mid_TD));
  return mlp_.forward(ctx, t, a.y_TD);
}

}  // namespace swax
