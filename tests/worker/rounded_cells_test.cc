// Goal: the yardstick of the GPU tests is a bf16 run and no more: what its cells round costs at
// most one half ulp of bf16 for each rounding on the way, and is there.
#include "tests/worker/rounded_cells.h"

#include <cmath>
#include <utility>

#include "tests/kernels/mlstm_case.h"
#include "tests/reference/attention.h"
#include "tests/worker/rounding_backend.h"

namespace swax::test {
namespace {

std::vector<float> bf16(std::vector<float> x) {
  for (float& e : x) e = bf16_round(e);
  return x;
}

void check(const Want& want, const std::vector<float>& got, int roundings) {
  EXPECT_TRUE(tensor_near(want.name, got, want.values, want.bound + roundings / 256.0));
  // Each rounding is uniform in one ulp of 2^-8 to 2^-7 of the value.
  const double error = rel_error(std::span<const float>(got), want.values);
  EXPECT_GT(error, roundings > 0 ? 0x1p-11 : 0.0);
}

TEST(RoundedCells, MlstmIsABf16Run) {
  Rig cpu = open_rig();
  Rig rig{std::make_unique<RoundingBackend>(*cpu.backend), std::move(cpu.stream)};
  MlstmCase c{.tokens = 70, .heads = 2, .qk = 16, .v = 24, .chunk = 16};
  c.reset = doc_starts(70, {11, 32, 33});
  MlstmInputs in = mlstm_inputs(c);
  for (std::vector<float>* x : {&in.q, &in.k, &in.v, &in.dh}) *x = bf16(*x);
  const MlstmWants want = mlstm_wants(c, in);
  const MlstmResults got = run_mlstm(c, in, rig);
  // h: state, P, result; m, den: none; states: weighted keys, the result.
  const int forward[] = {3, 0, 0, 2};
  for (size_t j = 0; j < want.forward.size(); ++j)
    check(want.forward[j], got.forward[j].values, forward[j]);
  // h in the normaliser's gradient and state, weights and state gradient, the result.
  for (size_t j = 0; j < want.backward.size(); ++j)
    check(want.backward[j], got.backward[j].values, 4);
}

TEST(RoundedCells, AttentionIsABf16Run) {
  const int64_t tokens = 50, heads = 4, kv_heads = 2, size = 12, window = 9;
  const auto bf16_normal = [](std::string_view name, int64_t count) {
    return random_normal(1, name, count, {.bf16 = true});
  };
  std::vector<float> q = bf16_normal("q", tokens * heads * size),
                     d_o = bf16_normal("do", tokens * heads * size);
  std::vector<float> k = bf16_normal("k", tokens * kv_heads * size),
                     v = bf16_normal("v", tokens * kv_heads * size);
  const std::vector<int32_t> reset = doc_starts(tokens, {0, 13, 32, 33});
  std::vector<int32_t> doc_start = reference::first_tokens(reset);
  std::vector<float> o(q.size()), lse(static_cast<size_t>(tokens * heads)), dq(q.size()),
      dk(k.size()), dv(v.size());
  const auto queries = [&](std::vector<float>& x) {
    return Tensor::of(x.data(), DType::kF32, {tokens, heads, size});
  };
  const auto keys = [&](std::vector<float>& x) {
    return Tensor::of(x.data(), DType::kF32, {tokens, kv_heads, size});
  };
  SwaArgs a;
  a.q_THE = queries(q);
  a.k_TGE = keys(k);
  a.v_TGE = keys(v);
  a.doc_start_T = Tensor::of(doc_start.data(), DType::kI32, {tokens});
  a.o_THE = queries(o);
  a.lse_TH = Tensor::of(lse.data(), DType::kF32, {tokens, heads});
  a.window = window;
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  rounded_swa(a);
  SwaBackwardArgs b;
  b.q_THE = a.q_THE;
  b.k_TGE = a.k_TGE;
  b.v_TGE = a.v_TGE;
  b.doc_start_T = a.doc_start_T;
  b.o_THE = a.o_THE;
  b.lse_TH = a.lse_TH;
  b.do_THE = queries(d_o);
  b.dq_THE = queries(dq);
  b.dk_TGE = keys(dk);
  b.dv_TGE = keys(dv);
  b.window = window;
  b.scale = a.scale;
  rounded_swa_backward(b);
  const reference::AttentionSizes sizes{tokens, heads, kv_heads, size, window};
  const auto out = reference::attention(sizes, widen(q), widen(k), widen(v), reset);
  const auto grad =
      reference::attention_backward(sizes, widen(q), widen(k), widen(v), reset, widen(d_o));
  const double forward = rounding_bound(window + size, 4),
               backward = rounding_bound(window + size, 8);
  check({"o", out.o_THK, forward}, o, 2);  // P, o
  check({"lse", out.lse_TH, forward}, lse, 0);
  check({"dq", grad.dq_THK, backward}, dq, 3);  // o in delta, dS, the result
  check({"dk", grad.dk_THK, backward}, dk, 3);
  check({"dv", grad.dv_THK, backward}, dv, 2);  // P, the result
}

}  // namespace
}  // namespace swax::test
