// Goal: the norm with its gates, which the device does in one kernel each way at the widths of the
// models, equals the float64 reference of the two ops, the gates taking y as it was stored.
#include <algorithm>
#include <cmath>

#include "tests/kernels/values.h"
#include "tests/reference/linear.h"
#include "tests/reference/norm.h"

namespace swax::test {
namespace {

using reference::Vec;

constexpr float kEps = 1e-6F;
constexpr float kCap = 15.0F;

struct Shape {
  int64_t tokens, dim, heads;
  // Backward is one kernel: nothing is rounded to bf16 between the two ops.
  bool once = true;
};

struct Inputs {
  std::vector<float> x, w, wi, wf, bi, bf, di, df, dy, dx;
};
Inputs inputs_of(const Shape& s) {
  const Draw small{.std = 1.0 / std::sqrt(static_cast<double>(s.dim))};
  return {exact_normal("x", s.tokens * s.dim, {.mean = 0.5}),
          exact_normal("w", s.dim, {.mean = 1.0, .std = 0.2}),
          exact_normal("wi", s.heads * s.dim, small),
          exact_normal("wf", s.heads * s.dim, small),
          exact_normal("bi", s.heads, {.mean = -1.0}),
          exact_normal("bf", s.heads, {.mean = 4.5}),
          exact_normal("di", s.tokens * s.heads),
          exact_normal("df", s.tokens * s.heads),
          exact_normal("dy", s.tokens * s.dim),
          exact_normal("dx", s.tokens * s.dim)};
}

struct Forward {
  std::vector<float> y, rstd, i, f;
};

Outputs run_joint(const Shape& s, DType type, const Inputs& in, Rig& rig, Forward* forward) {
  const auto [t, d, n, once] = s;
  Values x(type, in.x), w(type, in.w), wi(type, in.wi), wf(type, in.wf), bi(type, in.bi),
      bf(type, in.bf), dy(type, in.dy), dx(type, in.dx), y(type, t * d);
  Values di(DType::kF32, in.di), df(DType::kF32, in.df), rstd(DType::kF32, t),
      i(DType::kF32, t * n), f(DType::kF32, t * n), dw(DType::kF32, d), dwi(DType::kF32, n * d),
      dwf(DType::kF32, n * d), dbi(DType::kF32, n), dbf(DType::kF32, n),
      scratch(DType::kF32, rms_norm_backward_scratch(t, d));
  RmsNormGatesArgs a;
  a.norm = {x.view({t, d}), w.view({d}), y.view({t, d}), rstd.view({t}), kEps};
  a.gates = {a.norm.y_TD,  wi.view({n, d}), wf.view({n, d}), bi.view({n}),
             bf.view({n}), i.view({t, n}),  f.view({t, n}),  kCap};
  const Status there = rig.backend->rms_norm_gates(*rig.stream, a);
  EXPECT_TRUE(there.ok()) << there.to_string();
  if (forward != nullptr) *forward = {y.floats(), rstd.floats(), i.floats(), f.floats()};
  // What light recompute re-forms.
  Values again(type, t * d);
  const Status formed = rig.backend->rms_norm_apply(
      *rig.stream, {a.norm.x_TD, a.norm.w_D, a.norm.rstd_T, again.view({t, d})});
  EXPECT_TRUE(formed.ok()) << formed.to_string();
  EXPECT_TRUE(same_bits("y formed again", again.floats(), y.floats()));
  RmsNormGatesBackwardArgs b;
  b.gates = {a.norm.y_TD,
             a.gates.wi_ND,
             a.gates.wf_ND,
             a.gates.i_TN,
             a.gates.f_TN,
             di.view({t, n}),
             df.view({t, n}),
             dy.view({t, d}),
             dwi.view({n, d}),
             dwf.view({n, d}),
             dbi.view({n}),
             dbf.view({n}),
             kCap};
  b.norm = {a.norm.x_TD,
            a.norm.w_D,
            a.norm.rstd_T,
            b.gates.dx_TD,
            dx.view({t, d}),
            dw.view({d}),
            scratch.view({rms_norm_backward_scratch(t, d)}),
            true};
  const Status back = rig.backend->rms_norm_gates_backward(*rig.stream, b);
  EXPECT_TRUE(back.ok()) << back.to_string();
  return {{"y", y.floats()},     {"rstd", rstd.floats()}, {"i", i.floats()},
          {"f", f.floats()},     {"di", di.floats()},     {"df", df.floats()},
          {"dx", dx.floats()},   {"dw", dw.floats()},     {"dwi", dwi.floats()},
          {"dwf", dwf.floats()}, {"dbi", dbi.floats()},   {"dbf", dbf.floats()}};
}

// dz = d (1 - r^2) from the saved r = value / cap: its change per relative change of r.
double cap_condition(const Vec& value, const Vec& dz, const std::vector<float>& d) {
  double moved = 0.0;
  double whole = 0.0;
  for (size_t k = 0; k < d.size(); ++k) {
    const double r = value[k] / static_cast<double>(kCap);
    moved += std::pow(static_cast<double>(d[k]) * 2.0 * r * r, 2);
    whole += dz[k] * dz[k];
  }
  return std::max(1.0, std::sqrt(moved / whole));
}

std::vector<Want> wants_of(const Shape& s, DType type, const Inputs& in, const Forward& forward) {
  const double eps = static_cast<double>(kEps);
  const auto norm = reference::rms_norm(widen(in.x), widen(in.w), eps);
  std::vector<Want> wants = {{"y", norm.y_TD, value_bound(type, rounding_bound(s.dim, 3))},
                             {"rstd", norm.rstd_T, rounding_bound(s.dim, 3)}};
  const Vec y = widen(forward.y);
  Vec dy = widen(in.dy);
  const double over_tokens = rounding_bound(s.tokens + s.dim, 3);
  const auto gate = [&](const char* name, const std::vector<float>& w, const std::vector<float>& b,
                        const std::vector<float>& d, const std::vector<float>& saved) {
    const double cap = static_cast<double>(kCap);
    const Vec z = reference::add_bias(reference::linear(y, widen(w), s.dim), widen(b));
    wants.push_back({name, reference::soft_cap(z, cap), rounding_bound(s.dim, 3)});
    const Vec dz = reference::soft_cap_backward(widen(saved), widen(d), cap);
    const auto grad = reference::linear_backward(y, widen(w), dz, s.dim);
    reference::add_to(dy, grad.dx_TI);
    const double condition = cap_condition(widen(saved), dz, d);
    const std::string of = name;
    wants.push_back({"d" + of, dz, rounding_bound(s.dim, 3) * condition});
    wants.push_back({"dw" + of, grad.dw_OI, over_tokens * condition});
    wants.push_back({"db" + of, reference::sum_over_tokens(dz, s.heads), over_tokens * condition});
  };
  gate("i", in.wi, in.bi, in.di, forward.i);
  gate("f", in.wf, in.bf, in.df, forward.f);
  auto grad = reference::rms_norm_backward(widen(in.x), widen(in.w), dy, eps);
  reference::add_to(grad.dx_TD, widen(in.dx));
  // The two ops round dy with the gates' share to the type of the values.
  const double rounded = s.once ? 0.0 : value_bound(type, 0.0);
  wants.push_back({"dx", grad.dx_TD, value_bound(type, rounding_bound(s.dim, 9)) + rounded});
  wants.push_back({"dw", grad.dw_D, rounding_bound(s.tokens + s.dim, 9) + rounded});
  return wants;
}

void check_joint(const Shape& s, DType type) {
  SCOPED_TRACE(testing::Message() << dtype_name(type) << " T " << s.tokens << " D " << s.dim
                                  << " N " << s.heads);
  const Inputs in = inputs_of(s);
  Forward forward;
  Rig rig = open_rig();
  run_joint(s, type, in, rig, &forward);
  check_op([&](Rig& r) { return run_joint(s, type, in, r, nullptr); },
           wants_of(s, type, in, forward));
}

TEST(CudaNormGates, ReadARowOnce) {
  // One token; fewer tokens than one group of rows; fewer gates than the products have columns, or
  // than half of them; two to six groups of rows a cluster of backward.
  for (const Shape& s :
       {Shape{1, 2048, 4}, Shape{7, 2048, 3}, Shape{130, 2048, 4}, Shape{1100, 2048, 4},
        Shape{2100, 2048, 4}, Shape{2700, 2048, 4}, Shape{3, 4096, 8}, Shape{130, 4096, 8},
        Shape{130, 4096, 3}, Shape{700, 4096, 8}}) {
    check_joint(s, DType::kBF16);
  }
}

// More groups of rows a block than twice the stages of backward and than twice the places of
// forward, the last one short: what one group leaves in shared memory, its own or another block's,
// is overwritten by a later one, and the waits come to their third round; blocks of forward draw
// tiles.
TEST(CudaNormGates, GoRoundTheRingAtWidth2048) { check_joint({7501, 2048, 4}, DType::kBF16); }
TEST(CudaNormGates, GoRoundTheRingAtWidth4096) { check_joint({5501, 4096, 7}, DType::kBF16); }

TEST(CudaNormGates, TakeOtherShapesInTwoOps) {
  for (const Shape& s :
       {Shape{70, 2056, 4, false}, Shape{33, 100, 3, false}, Shape{40, 96, 10, false}}) {
    check_joint(s, DType::kBF16);
  }
  check_joint({130, 2048, 4, false}, DType::kF32);
}

}  // namespace
}  // namespace swax::test
