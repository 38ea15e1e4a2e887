// Goal: RoPE, SwiGLU and the mLSTM gates equal the float64 reference inside their stated bounds.
#include <cmath>

#include "tests/kernels/op_check.h"
#include "tests/reference/linear.h"
#include "tests/reference/mlp.h"
#include "tests/reference/rope.h"

namespace swax::test {
namespace {

using reference::Vec;

TEST(Rope, EqualsReferenceAndItsInverseUndoesIt) {
  for (const int64_t size : {2, 6, 16, 64}) {
    for (const int64_t first : {int64_t{0}, int64_t{131000}}) {
      SCOPED_TRACE(testing::Message() << "E " << size << " first " << first);
      const int64_t tokens = 70;
      const int64_t heads = 3;
      const std::vector<float> x = random_normal(7, "x", tokens * heads * size);
      const reference::RopeSizes sizes{tokens, heads, size, 10000.0, first};
      const auto run = [&](bool inverse) -> RunOp {
        return [&, inverse](Rig& rig) -> Outputs {
          GuardedBuffer<float> y("y", std::span<const float>(x));
          GuardedBuffer<float> cos("cos", tokens * size / 2), sin("sin", tokens * size / 2);
          const Tensor cos_TP = f32(cos, {tokens, size / 2});
          const Tensor sin_TP = f32(sin, {tokens, size / 2});
          for (int64_t t = 0; t < tokens; ++t) {
            rope_table_row(first + t, 10000.0, cos_TP, sin_TP, t);
          }
          EXPECT_TRUE(
              rig.backend
                  ->rope(*rig.stream, {f32(y, {tokens, heads, size}), cos_TP, sin_TP, inverse})
                  .ok());
          return {{"y", y.values()}};
        };
      };
      check_op(run(false), {{"y", reference::rope(sizes, widen(x)), rounding_bound(2, 2)}});
      check_op(run(true), {{"y", reference::rope_inverse(sizes, widen(x)), rounding_bound(2, 2)}});
    }
  }
}

TEST(Rope, RefusesOddHeadSizes) {
  Rig rig = open_rig();
  std::vector<float> x(9), table(3);
  EXPECT_EQ(
      rig.backend
          ->rope(*rig.stream, {f32(x, {3, 1, 3}), f32(table, {3, 1}), f32(table, {3, 1}), false})
          .code(),
      Code::kInvalidArgument);
}

TEST(Swiglu, EqualsReferenceForwardAndBackwardInPlace) {
  for (const double spread : {1.0, 6.0, 40.0}) {
    SCOPED_TRACE(spread);
    const int64_t tokens = 70;
    const int64_t width = 43;
    const int64_t n = tokens * width;
    const std::vector<float> a = random_normal(8, "a", n, {.std = spread});
    const std::vector<float> b = random_normal(8, "b", n);
    const std::vector<float> ds = random_normal(8, "ds", n);
    const auto grad = reference::swiglu_backward(widen(a), widen(b), widen(ds));
    check_op(
        [&](Rig& rig) -> Outputs {
          const auto dims = {tokens, width};
          GuardedBuffer<float> s("s", n);
          EXPECT_TRUE(
              rig.backend->swiglu(*rig.stream, {f32(a, dims), f32(b, dims), f32(s, dims)}).ok());
          GuardedBuffer<float> da("da", std::span<const float>(a));
          GuardedBuffer<float> db("db", std::span<const float>(b));
          EXPECT_TRUE(
              rig.backend
                  ->swiglu_backward(*rig.stream, {f32(da, dims), f32(db, dims), f32(ds, dims),
                                                  f32(da, dims), f32(db, dims)})
                  .ok());
          return {{"s", s.values()}, {"da", da.values()}, {"db", db.values()}};
        },
        {{"s", reference::swiglu(widen(a), widen(b)), rounding_bound(1, 4)},
         {"da", grad.da, rounding_bound(1, 8)},
         {"db", grad.db, rounding_bound(1, 4)}});
  }
}

TEST(Swiglu, RefusesGradientsThatLieAcross) {
  Rig rig = open_rig();
  std::vector<float> x(48, 1.0F);
  const Tensor all = f32(x, {12, 4});
  const auto backward = [&](int64_t da, int64_t db) {
    return rig.backend
        ->swiglu_backward(*rig.stream, {all.rows(0, 2), all.rows(2, 2), all.rows(4, 2),
                                        all.rows(da, 2), all.rows(db, 2)})
        .code();
  };
  EXPECT_EQ(backward(0, 2), Code::kOk);
  EXPECT_EQ(backward(4, 6), Code::kOk);
  EXPECT_EQ(backward(8, 10), Code::kOk);
  EXPECT_EQ(backward(1, 6), Code::kInvalidArgument);  // across a
  EXPECT_EQ(backward(5, 7), Code::kInvalidArgument);  // across ds
  EXPECT_EQ(backward(8, 3), Code::kInvalidArgument);  // across b
  EXPECT_EQ(backward(2, 8), Code::kInvalidArgument);  // da in the place of b
  EXPECT_EQ(backward(8, 0), Code::kInvalidArgument);  // db in the place of a
  EXPECT_EQ(backward(8, 4), Code::kInvalidArgument);  // ... of ds
  EXPECT_EQ(backward(8, 8), Code::kInvalidArgument);  // ... of da
  EXPECT_EQ(backward(8, 9), Code::kInvalidArgument);  // across da
}

struct Gates {
  int64_t tokens, dim, heads;
  float cap;
  std::vector<float> x, wi, wf, bi, bf, di, df, dx;
};
Gates gates(int64_t tokens, int64_t dim, int64_t heads, float cap) {
  const double spread = 1.0 / std::sqrt(static_cast<double>(dim));
  return {tokens,
          dim,
          heads,
          cap,
          random_normal(9, "x", tokens * dim),
          random_normal(9, "wi", heads * dim, {.std = spread}),
          random_normal(9, "wf", heads * dim, {.std = spread}),
          random_normal(9, "bi", heads, {.mean = -10.0}),
          random_normal(9, "bf", heads, {.mean = 4.5}),
          random_normal(9, "di", tokens * heads),
          random_normal(9, "df", tokens * heads),
          random_normal(9, "dx", tokens * dim)};
}

struct OneGate {
  Vec value, dz, dw, db, dx;
};
OneGate one_gate(const Gates& g, const std::vector<float>& w, const std::vector<float>& bias,
                 const std::vector<float>& dy, reference::Canary canary) {
  const Vec x = widen(g.x);
  const Vec w64 = widen(w);
  OneGate out;
  out.value =
      reference::soft_cap(reference::add_bias(reference::linear(x, w64, g.dim), widen(bias)),
                          static_cast<double>(g.cap));
  out.dz = reference::soft_cap_backward(out.value, widen(dy), static_cast<double>(g.cap), canary);
  const auto grad = reference::linear_backward(x, w64, out.dz, g.dim);
  out.dw = grad.dw_OI;
  out.dx = grad.dx_TI;
  out.db = reference::sum_over_tokens(out.dz, g.heads);
  return out;
}

// dz = dy (1 - r^2) from the saved r = value / cap: its change per relative change of r.
double cap_condition(const Gates& g, const OneGate& gate, const std::vector<float>& dy) {
  if (g.cap == 0.0F) return 1.0;
  double moved = 0.0;
  double whole = 0.0;
  for (size_t j = 0; j < dy.size(); ++j) {
    const double r = gate.value[j] / static_cast<double>(g.cap);
    moved += std::pow(static_cast<double>(dy[j]) * 2.0 * r * r, 2);
    whole += gate.dz[j] * gate.dz[j];
  }
  return std::max(1.0, std::sqrt(moved / whole));
}

std::vector<Want> gate_wants(const Gates& g, reference::Canary canary = reference::Canary::kNone) {
  const OneGate i = one_gate(g, g.wi, g.bi, g.di, canary);
  const OneGate f = one_gate(g, g.wf, g.bf, g.df, canary);
  Vec dx = widen(g.dx);
  reference::add_to(dx, i.dx);
  reference::add_to(dx, f.dx);
  const double per_gate = rounding_bound(g.dim, 3);
  const double over_tokens = rounding_bound(g.tokens + g.dim, 3);
  const double i_cond = cap_condition(g, i, g.di);
  const double f_cond = cap_condition(g, f, g.df);
  return {{"i", i.value, per_gate},
          {"f", f.value, per_gate},
          {"di", i.dz, per_gate * i_cond},
          {"df", f.dz, per_gate * f_cond},
          {"dx", dx, per_gate},
          {"dwi", i.dw, over_tokens * i_cond},
          {"dwf", f.dw, over_tokens * f_cond},
          {"dbi", i.db, over_tokens * i_cond},
          {"dbf", f.db, over_tokens * f_cond}};
}

Outputs run_gates(const Gates& g, Rig& rig) {
  const auto rows = {g.tokens, g.heads};
  const auto weights = {g.heads, g.dim};
  GuardedBuffer<float> i("i", g.tokens * g.heads), f("f", g.tokens * g.heads);
  MlstmGatesArgs a{
      f32(g.x, {g.tokens, g.dim}), f32(g.wi, weights), f32(g.wf, weights), f32(g.bi, {g.heads}),
      f32(g.bf, {g.heads}),        f32(i, rows),       f32(f, rows),       g.cap};
  EXPECT_TRUE(rig.backend->mlstm_gates(*rig.stream, a).ok());
  GuardedBuffer<float> di("di", std::span<const float>(g.di)),
      df("df", std::span<const float>(g.df)), dx("dx", std::span<const float>(g.dx)),
      dwi("dwi", g.heads * g.dim), dwf("dwf", g.heads * g.dim), dbi("dbi", g.heads),
      dbf("dbf", g.heads);
  MlstmGatesBackwardArgs b;
  b.x_TD = a.x_TD;
  b.wi_ND = a.wi_ND;
  b.wf_ND = a.wf_ND;
  b.i_TN = a.i_TN;
  b.f_TN = a.f_TN;
  b.di_TN = f32(di, rows);
  b.df_TN = f32(df, rows);
  b.dx_TD = f32(dx, {g.tokens, g.dim});
  b.dwi_ND = f32(dwi, weights);
  b.dwf_ND = f32(dwf, weights);
  b.dbi_N = f32(dbi, {g.heads});
  b.dbf_N = f32(dbf, {g.heads});
  b.cap = g.cap;
  EXPECT_TRUE(rig.backend->mlstm_gates_backward(*rig.stream, b).ok());
  return {{"i", i.values()},     {"f", f.values()},     {"di", di.values()},
          {"df", df.values()},   {"dx", dx.values()},   {"dwi", dwi.values()},
          {"dwf", dwf.values()}, {"dbi", dbi.values()}, {"dbf", dbf.values()}};
}

TEST(MlstmGates, EqualReferenceWithAndWithoutCap) {
  for (const float cap : {0.0F, 15.0F, 2.0F}) {
    SCOPED_TRACE(cap);
    for (const Gates& g : {gates(70, 64, 2, cap), gates(33, 13, 1, cap), gates(5, 200, 3, cap)}) {
      check_op([&](Rig& rig) { return run_gates(g, rig); }, gate_wants(g));
    }
  }
}

TEST(MlstmGates, ChecksNoticeADroppedCapDerivative) {
  const Gates g = gates(40, 32, 2, 15.0F);
  Rig rig = open_rig();
  EXPECT_GT(worst_ratio(run_gates(g, rig), gate_wants(g, reference::Canary::kNoCapDerivative)),
            100.0);
}

}  // namespace
}  // namespace swax::test
