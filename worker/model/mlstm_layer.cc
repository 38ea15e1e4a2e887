#include "worker/model/mlstm_layer.h"

#include "worker/model/ops.h"
#include "worker/model/recompute.h"

namespace swax {

MlstmLayer::MlstmLayer(const ModelShape& shape, int64_t layer)
    : mlp_(shape, layer),
      norm_(layer_index(shape, layer, "norm_mix.weight")),
      wq_(layer_index(shape, layer, "mlstm.wq")),
      wk_(layer_index(shape, layer, "mlstm.wk")),
      wv_(layer_index(shape, layer, "mlstm.wv")),
      wo_gate_(layer_index(shape, layer, "mlstm.wo_gate")),
      wi_(layer_index(shape, layer, "mlstm.wi")),
      bi_(layer_index(shape, layer, "mlstm.bi")),
      wf_(layer_index(shape, layer, "mlstm.wf")),
      bf_(layer_index(shape, layer, "mlstm.bf")),
      head_norm_(layer_index(shape, layer, "mlstm.mhnorm.weight")),
      w_out_(layer_index(shape, layer, "mlstm.w_out")) {}

std::vector<SavedSpec> MlstmLayer::saved_specs(const ModelShape& shape, int64_t tokens,
                                               DType values) const {
  const int64_t t = tokens, n = shape.mlstm_heads, k = shape.mlstm_qk, u = shape.mlstm_v;
  const int64_t states = mlstm_chunks(tokens, shape.mlstm_chunk) + 1;
  // In bf16 two columns hold the f32 normaliser.
  const int64_t columns = values == DType::kBF16 ? u + 2 : u + 1;
  std::vector<SavedSpec> specs;
  FeedForward::append_specs(shape, tokens, values, specs);
  specs.push_back(
      {.tag = kMlstmIn, .dtype = values, .dims = {t, shape.dim}, .rank = 2, .reform = true});
  specs.push_back({.tag = kMlstmRstd, .dims = {t}, .rank = 1});
  specs.push_back({.tag = kMlstmQkvo, .dtype = values, .dims = {t, 2 * n * (k + u)}, .rank = 2});
  specs.push_back({.tag = kMlstmI, .dims = {t, n}, .rank = 2});
  specs.push_back({.tag = kMlstmF, .dims = {t, n}, .rank = 2});
  specs.push_back({.tag = kMlstmH, .dtype = values, .dims = {t, n, u}, .rank = 3});
  specs.push_back(
      {.tag = kMlstmStates, .dtype = values, .dims = {states, n, k, columns}, .rank = 4});
  specs.push_back({.tag = kMlstmStateM, .dims = {states, n}, .rank = 2});
  specs.push_back({.tag = kMlstmM, .dims = {t, n}, .rank = 2});
  specs.push_back({.tag = kMlstmDen, .dims = {t, n}, .rank = 2});
  specs.push_back({.tag = kMlstmMean, .dims = {t, n}, .rank = 2});
  specs.push_back({.tag = kMlstmHeadRstd, .dims = {t, n}, .rank = 2});
  specs.push_back(
      {.tag = kMlstmOut, .dtype = values, .dims = {t, n, u}, .rank = 3, .reform = true});
  return specs;
}

MlstmLayer::Heads MlstmLayer::heads_of(const ModelShape& shape, const Tensor& qkvo_TC) {
  const int64_t n = shape.mlstm_heads, k = shape.mlstm_qk, u = shape.mlstm_v;
  return {.q_TNK = columns(qkvo_TC, 0, {n, k}),
          .k_TNK = columns(qkvo_TC, n * k, {n, k}),
          .v_TNU = columns(qkvo_TC, 2 * n * k, {n, u}),
          .gate_TNU = columns(qkvo_TC, 2 * n * k + n * u, {n, u})};
}

Status MlstmLayer::project(StepCtx& ctx, Tensor x_TD, const Projected& p) {
  SWAX_TRY(ctx.backend.rms_norm_gates(
      ctx.stream, {.norm = norm_args(ctx, x_TD, weight(ctx, norm_), p.in_TD, p.rstd_T),
                   .gates = {.x_TD = p.in_TD,
                             .wi_ND = weight(ctx, wi_),
                             .wf_ND = weight(ctx, wf_),
                             .bi_N = weight(ctx, bi_),
                             .bf_N = weight(ctx, bf_),
                             .i_TN = p.i_TN,
                             .f_TN = p.f_TN,
                             .cap = static_cast<float>(ctx.shape.gate_cap)}}));
  return linears(ctx, p.in_TD,
                 {weight(ctx, wq_), weight(ctx, wk_), weight(ctx, wv_), weight(ctx, wo_gate_)},
                 {p.heads.q_TNK, p.heads.k_TNK, p.heads.v_TNU, p.heads.gate_TNU});
}

Status MlstmLayer::head_norm(StepCtx& ctx, const Normed& n) {
  return ctx.backend.head_norm(ctx.stream, {.h_TNU = n.h_TNU,
                                            .o_TNU = n.gate_TNU,
                                            .w_NU = weight(ctx, head_norm_),
                                            .y_TNU = n.out_TNU,
                                            .mean_TN = n.mean_TN,
                                            .rstd_TN = n.rstd_TN,
                                            .eps = static_cast<float>(ctx.shape.norm_eps)});
}

Status MlstmLayer::forward(StepCtx& ctx, Tensor x_TD, Tensor y_TD) {
  const Projected p{.in_TD = ctx.save(kMlstmIn),
                    .rstd_T = ctx.save(kMlstmRstd),
                    .heads = heads_of(ctx.shape, ctx.save(kMlstmQkvo)),
                    .i_TN = ctx.save(kMlstmI),
                    .f_TN = ctx.save(kMlstmF)};
  SWAX_TRY(project(ctx, x_TD, p));
  {
    const ScratchScope scope(ctx);
    const ModelShape& m = ctx.shape;
    const int64_t elements =
        mlstm_scratch(ctx.tokens, m.mlstm_heads, m.mlstm_qk, m.mlstm_v, m.mlstm_chunk);
    SWAX_TRY(ctx.backend.mlstm(ctx.stream, {.q_TNK = p.heads.q_TNK,
                                            .k_TNK = p.heads.k_TNK,
                                            .v_TNU = p.heads.v_TNU,
                                            .i_TN = p.i_TN,
                                            .f_TN = p.f_TN,
                                            .reset_T = ctx.slot.reset_T,
                                            .h_TNU = ctx.save(kMlstmH),
                                            .states_CNKU1 = ctx.save(kMlstmStates),
                                            .m_state_CN = ctx.save(kMlstmStateM),
                                            .m_TN = ctx.save(kMlstmM),
                                            .den_TN = ctx.save(kMlstmDen),
                                            .scratch = ctx.arena.take(DType::kF32, {elements}),
                                            .chunk = m.mlstm_chunk}));
  }
  SWAX_TRY(head_norm(ctx, {.h_TNU = ctx.save(kMlstmH),
                           .gate_TNU = p.heads.gate_TNU,
                           .mean_TN = ctx.save(kMlstmMean),
                           .rstd_TN = ctx.save(kMlstmHeadRstd),
                           .out_TNU = ctx.save(kMlstmOut)}));
  SWAX_TRY(linear_onto(ctx, ctx.save(kMlstmOut), weight(ctx, w_out_), x_TD, ctx.save(kMid)));
  return mlp_.forward(ctx, y_TD);
}

Status MlstmLayer::backward(StepCtx& ctx, Tensor x_TD, Tensor dy_TD, Tensor dx_TD) {
  if (dx_TD.data != dy_TD.data) SWAX_TRY(ctx.backend.copy(ctx.stream, dx_TD, dy_TD));
  SWAX_TRY(mlp_.backward(ctx, dx_TD));
  const ScratchScope scope(ctx);
  const auto like = [&](int tag) { return take_like(ctx, ctx.save(tag)); };
  const Projected d{.in_TD = {},
                    .rstd_T = {},
                    .heads = heads_of(ctx.shape, like(kMlstmQkvo)),
                    .i_TN = like(kMlstmI),
                    .f_TN = like(kMlstmF)};
  SWAX_TRY(cell_backward(ctx, dx_TD, d));
  return projections_backward(ctx, d, x_TD, dx_TD);
}

// From dx_TD, the gradient of the residual stream behind the mixer, to those of the projections.
Status MlstmLayer::cell_backward(StepCtx& ctx, Tensor dx_TD, const Projected& d) {
  const ScratchScope scope(ctx);
  const ModelShape& m = ctx.shape;
  const int64_t n = m.mlstm_heads, u = m.mlstm_v;
  const Heads saved = heads_of(m, ctx.save(kMlstmQkvo));
  const Tensor dh_TNU = take_values(ctx, {ctx.tokens, n, u});
  {
    const ScratchScope norm(ctx);
    const Tensor dout_TNU = take_values(ctx, {ctx.tokens, n, u});
    SWAX_TRY(linear_dx(ctx, dx_TD, weight(ctx, w_out_), dout_TNU));
    {
      const ScratchScope out(ctx);
      SWAX_ASSIGN(const Tensor out_TNU, ctx.saved(kMlstmOut));
      SWAX_TRY(linear_dw(ctx, dx_TD, out_TNU, grad(ctx, w_out_)));
    }
    const int64_t elements = rms_norm_backward_scratch(ctx.tokens, n * u);
    SWAX_TRY(ctx.backend.head_norm_backward(ctx.stream,
                                            {.h_TNU = ctx.save(kMlstmH),
                                             .o_TNU = saved.gate_TNU,
                                             .w_NU = weight(ctx, head_norm_),
                                             .mean_TN = ctx.save(kMlstmMean),
                                             .rstd_TN = ctx.save(kMlstmHeadRstd),
                                             .dy_TNU = dout_TNU,
                                             .dh_TNU = dh_TNU,
                                             .do_TNU = d.heads.gate_TNU,
                                             .dw_NU = grad(ctx, head_norm_),
                                             .scratch = ctx.arena.take(DType::kF32, {elements})}));
  }
  const int64_t elements =
      mlstm_backward_scratch(ctx.tokens, n, m.mlstm_qk, m.mlstm_v, m.mlstm_chunk);
  return ctx.backend.mlstm_backward(ctx.stream, {.q_TNK = saved.q_TNK,
                                                 .k_TNK = saved.k_TNK,
                                                 .v_TNU = saved.v_TNU,
                                                 .i_TN = ctx.save(kMlstmI),
                                                 .f_TN = ctx.save(kMlstmF),
                                                 .reset_T = ctx.slot.reset_T,
                                                 .h_TNU = ctx.save(kMlstmH),
                                                 .states_CNKU1 = ctx.save(kMlstmStates),
                                                 .m_state_CN = ctx.save(kMlstmStateM),
                                                 .m_TN = ctx.save(kMlstmM),
                                                 .den_TN = ctx.save(kMlstmDen),
                                                 .dh_TNU = dh_TNU,
                                                 .dq_TNK = d.heads.q_TNK,
                                                 .dk_TNK = d.heads.k_TNK,
                                                 .dv_TNU = d.heads.v_TNU,
                                                 .di_TN = d.i_TN,
                                                 .df_TN = d.f_TN,
                                                 .scratch = ctx.arena.take(DType::kF32, {elements}),
                                                 .chunk = m.mlstm_chunk});
}

Status MlstmLayer::projections_backward(StepCtx& ctx, const Projected& d, Tensor x_TD,
                                        Tensor dx_TD) {
  const Tensor din_TD = take_like(ctx, x_TD);
  const auto [dq_TNK, dk_TNK, dv_TNU, dgate_TNU] = d.heads;
  SWAX_TRY(linears_dx(ctx, {dq_TNK, dk_TNK, dv_TNU, dgate_TNU},
                      {weight(ctx, wq_), weight(ctx, wk_), weight(ctx, wv_), weight(ctx, wo_gate_)},
                      din_TD));
  const ScratchScope in(ctx);
  SWAX_ASSIGN(const Tensor in_TD, ctx.saved(kMlstmIn));
  SWAX_TRY(linears_dw(ctx, {dq_TNK, dk_TNK, dv_TNU, dgate_TNU}, in_TD,
                      {grad(ctx, wq_), grad(ctx, wk_), grad(ctx, wv_), grad(ctx, wo_gate_)}));
  return ctx.backend.rms_norm_gates_backward(
      ctx.stream, {.gates = {.x_TD = in_TD,
                             .wi_ND = weight(ctx, wi_),
                             .wf_ND = weight(ctx, wf_),
                             .i_TN = ctx.save(kMlstmI),
                             .f_TN = ctx.save(kMlstmF),
                             .di_TN = d.i_TN,
                             .df_TN = d.f_TN,
                             .dx_TD = din_TD,
                             .dwi_ND = grad(ctx, wi_),
                             .dwf_ND = grad(ctx, wf_),
                             .dbi_N = grad(ctx, bi_),
                             .dbf_N = grad(ctx, bf_),
                             .cap = static_cast<float>(ctx.shape.gate_cap)},
                   .norm = norm_backward_args(ctx, {.x_TD = x_TD,
                                                    .w_D = weight(ctx, norm_),
                                                    .rstd_T = ctx.save(kMlstmRstd),
                                                    .dy_TD = din_TD,
                                                    .dx_TD = dx_TD,
                                                    .dw_D = grad(ctx, norm_)})});
}

Status MlstmLayer::reform(StepCtx& ctx, Tensor x_TD, int tag, Tensor out) {
  if (tag < kFeedForwardTags) return mlp_.reform(ctx, tag, out);
  if (tag == kMlstmIn) {
    return ctx.backend.rms_norm_apply(
        ctx.stream,
        {.x_TD = x_TD, .w_D = weight(ctx, norm_), .rstd_T = ctx.save(kMlstmRstd), .y_TD = out});
  }
  SWAX_CHECK(tag == kMlstmOut);
  // Writes mean and rstd again, with the bits they already have.
  return head_norm(ctx, {.h_TNU = ctx.save(kMlstmH),
                         .gate_TNU = heads_of(ctx.shape, ctx.save(kMlstmQkvo)).gate_TNU,
                         .mean_TN = ctx.save(kMlstmMean),
                         .rstd_TN = ctx.save(kMlstmHeadRstd),
                         .out_TNU = out});
}

Status MlstmLayer::decode(StepCtx& ctx, const DecodeArgs& a) {
  const ScratchScope scope(ctx);
  const ModelShape& m = ctx.shape;
  const int64_t n = m.mlstm_heads, k = m.mlstm_qk, u = m.mlstm_v;
  const auto f32 = [&](std::initializer_list<int64_t> dims) {
    return ctx.arena.take(DType::kF32, dims);
  };
  const Projected p{.in_TD = f32({1, m.dim}),
                    .rstd_T = f32({1}),
                    .heads = heads_of(m, f32({1, 2 * n * (k + u)})),
                    .i_TN = f32({1, n}),
                    .f_TN = f32({1, n})};
  SWAX_TRY(project(ctx, a.x_TD, p));
  const Tensor h_TNU = f32({1, n, u}), out_TNU = f32({1, n, u});
  SWAX_TRY(ctx.backend.mlstm_step(ctx.stream, {.q_NK = p.heads.q_TNK.reshaped({n, k}),
                                               .k_NK = p.heads.k_TNK.reshaped({n, k}),
                                               .v_NU = p.heads.v_TNU.reshaped({n, u}),
                                               .i_N = p.i_TN.reshaped({n}),
                                               .f_N = p.f_TN.reshaped({n}),
                                               .h_NU = h_TNU.reshaped({n, u}),
                                               .state_NKU1 = a.state_NKU1,
                                               .m_N = a.m_N}));
  SWAX_TRY(head_norm(ctx, {.h_TNU = h_TNU,
                           .gate_TNU = p.heads.gate_TNU,
                           .mean_TN = f32({1, n}),
                           .rstd_TN = f32({1, n}),
                           .out_TNU = out_TNU}));
  const FeedForward::Tensors t{.mid_TD = f32({1, m.dim}),
                               .in_TD = p.in_TD,
                               .rstd_T = p.rstd_T,
                               .unit_TF2 = f32({1, 2 * m.ff}),
                               .act_TF = f32({1, m.ff})};
  SWAX_TRY(linear_onto(ctx, out_TNU, weight(ctx, w_out_), a.x_TD, t.mid_TD));
  return mlp_.forward(ctx, t, a.y_TD);
}

}  // namespace swax
