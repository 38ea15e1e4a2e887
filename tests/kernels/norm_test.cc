// Goal: RMSNorm and the gated head norm, forward and backward, equal the float64 reference inside
// the bounds of kernels/spec/norm.h; aliasing and accumulation as stated there.
#include <cmath>

#include "tests/kernels/op_check.h"
#include "tests/reference/norm.h"

namespace swax::test {
namespace {

constexpr float kEps = 1e-6F;

struct RmsInputs {
  int64_t tokens, dim;
  std::vector<float> x, w, dy, dx0;
};
RmsInputs rms_inputs(int64_t tokens, int64_t dim) {
  return {tokens,
          dim,
          random_normal(5, "x", tokens * dim, {.mean = 0.5}),
          random_normal(5, "w", dim, {.mean = 1.0, .std = 0.2}),
          random_normal(5, "dy", tokens * dim),
          random_normal(5, "dx0", tokens * dim)};
}

std::vector<Want> rms_wants(const RmsInputs& in,
                            reference::Canary canary = reference::Canary::kNone) {
  const reference::Vec x = widen(in.x);
  const reference::Vec w = widen(in.w);
  const auto out = reference::rms_norm(x, w, static_cast<double>(kEps));
  const auto grad =
      reference::rms_norm_backward(x, w, widen(in.dy), static_cast<double>(kEps), canary);
  return {{"y", out.y_TD, rounding_bound(in.dim, 3)},
          {"rstd", out.rstd_T, rounding_bound(in.dim, 3)},
          {"dx", grad.dx_TD, rounding_bound(in.dim, 6)},
          {"dw", grad.dw_D, rounding_bound(in.tokens, 6)}};
}

// dx aliases dy.
Outputs run_rms(const RmsInputs& in, Rig& rig) {
  const auto dims = {in.tokens, in.dim};
  GuardedBuffer<float> y("y", in.tokens * in.dim), rstd("rstd", in.tokens), dw("dw", in.dim);
  GuardedBuffer<float> dx("dx", std::span<const float>(in.dy));
  GuardedBuffer<float> scratch("scratch", rms_norm_backward_scratch(in.tokens, in.dim));
  EXPECT_TRUE(rig.backend
                  ->rms_norm(*rig.stream, {f32(in.x, dims), f32(in.w, {in.dim}), f32(y, dims),
                                           f32(rstd, {in.tokens}), kEps})
                  .ok());
  GuardedBuffer<float> again("again", in.tokens * in.dim);
  EXPECT_TRUE(rig.backend
                  ->rms_norm_apply(*rig.stream, {f32(in.x, dims), f32(in.w, {in.dim}),
                                                 f32(rstd, {in.tokens}), f32(again, dims)})
                  .ok());
  EXPECT_TRUE(same_bits("applied", again.values(), y.values()));
  RmsNormBackwardArgs b;
  b.x_TD = f32(in.x, dims);
  b.w_D = f32(in.w, {in.dim});
  b.rstd_T = f32(rstd, {in.tokens});
  b.dy_TD = f32(dx, dims);
  b.dx_TD = f32(dx, dims);
  b.dw_D = f32(dw, {in.dim});
  b.scratch = f32(scratch, {scratch.size()});
  EXPECT_TRUE(rig.backend->rms_norm_backward(*rig.stream, b).ok());
  return {{"y", y.values()}, {"rstd", rstd.values()}, {"dx", dx.values()}, {"dw", dw.values()}};
}

TEST(RmsNorm, EqualsReference) {
  for (const auto& [tokens, dim] :
       {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {64, 32}, {65, 33}, {200, 100}, {5, 1000}}) {
    SCOPED_TRACE(testing::Message() << "T " << tokens << " D " << dim);
    const RmsInputs in = rms_inputs(tokens, dim);
    std::vector<Want> want = rms_wants(in);
    if (dim == 1) {
      // x r is +-1 up to eps: dx is what a cancellation leaves, of the size of the mean term.
      want[2].values = reference::Vec(want[2].values.size(), 0.0);
      Rig rig = open_rig();
      EXPECT_LE(std::abs(run_rms(in, rig)[2].values[0]), 1e-4F);
      continue;
    }
    check_op([&](Rig& rig) { return run_rms(in, rig); }, want);
  }
}

TEST(RmsNorm, AccumulatesIntoTheResidualGradient) {
  const RmsInputs in = rms_inputs(70, 24);
  Rig rig = open_rig(2);
  const Outputs plain = run_rms(in, rig);
  GuardedBuffer<float> rstd("rstd", std::span<const float>(plain[1].values)), dw("dw", in.dim);
  GuardedBuffer<float> dx("dx", std::span<const float>(in.dx0));
  GuardedBuffer<float> scratch("scratch", rms_norm_backward_scratch(in.tokens, in.dim));
  RmsNormBackwardArgs b;
  b.x_TD = f32(in.x, {in.tokens, in.dim});
  b.w_D = f32(in.w, {in.dim});
  b.rstd_T = f32(rstd, {in.tokens});
  b.dy_TD = f32(in.dy, {in.tokens, in.dim});
  b.dx_TD = f32(dx, {in.tokens, in.dim});
  b.dw_D = f32(dw, {in.dim});
  b.scratch = f32(scratch, {scratch.size()});
  b.accumulate_dx = true;
  EXPECT_TRUE(rig.backend->rms_norm_backward(*rig.stream, b).ok());
  for (size_t i = 0; i < in.dx0.size(); ++i) {
    ASSERT_EQ(dx.data()[i], in.dx0[i] + plain[2].values[i]);
  }
  EXPECT_TRUE(same_bits("dw", dw.values(), plain[3].values));
}

// An op that may work in place takes an output that is the input or apart from it; between them
// rows would be read after they were written.
TEST(RmsNorm, RefusesRowsThatLieAcross) {
  Rig rig = open_rig();
  std::vector<float> memory(5 * 8, 1.0F), w(4, 1.0F), rstd(4);
  const auto at = [&](int64_t element, int64_t stride) {
    Tensor t = Tensor::of(memory.data() + element, DType::kF32, {4, 4});
    t.row_stride = stride;
    return t;
  };
  const auto norm = [&](const Tensor& x, const Tensor& y) {
    const Status formed =
        rig.backend->rms_norm(*rig.stream, {x, f32(w, {4}), y, f32(rstd, {4}), kEps});
    const Status again =
        rig.backend->rms_norm_apply(*rig.stream, {x, f32(w, {4}), f32(rstd, {4}), y});
    EXPECT_EQ(formed.code(), again.code());
    return formed.code();
  };
  EXPECT_EQ(norm(at(0, 4), at(0, 4)), Code::kOk);
  EXPECT_EQ(norm(at(0, 4), at(16, 4)), Code::kOk);
  EXPECT_EQ(norm(at(0, 8), at(4, 8)), Code::kOk);  // rows between each other
  EXPECT_EQ(norm(at(4, 8), at(0, 8)), Code::kOk);
  EXPECT_EQ(norm(at(0, 4), at(4, 4)), Code::kInvalidArgument);
  EXPECT_EQ(norm(at(4, 4), at(0, 4)), Code::kInvalidArgument);
  EXPECT_EQ(norm(at(0, 4), at(0, 8)), Code::kInvalidArgument);
  EXPECT_EQ(norm(at(0, 8), at(3, 8)), Code::kInvalidArgument);
  EXPECT_EQ(norm(at(0, 8), at(5, 8)), Code::kInvalidArgument);
  std::vector<float> x(16, 1.0F), dw(4),
      scratch(static_cast<size_t>(rms_norm_backward_scratch(4, 4)));
  RmsNormBackwardArgs b;
  b.x_TD = f32(x, {4, 4});
  b.w_D = f32(w, {4});
  b.rstd_T = f32(rstd, {4});
  b.dy_TD = at(0, 4);
  b.dx_TD = at(4, 4);
  b.dw_D = f32(dw, {4});
  b.scratch = f32(scratch, {static_cast<int64_t>(scratch.size())});
  EXPECT_EQ(rig.backend->rms_norm_backward(*rig.stream, b).code(), Code::kInvalidArgument);
  b.dx_TD = at(16, 4);
  EXPECT_TRUE(rig.backend->rms_norm_backward(*rig.stream, b).ok());
  b.dy_TD = f32(x, {4, 4});
  b.x_TD = at(0, 8);
  b.dx_TD = at(4, 8);  // between the rows of x
  EXPECT_TRUE(rig.backend->rms_norm_backward(*rig.stream, b).ok());
  b.dx_TD = at(3, 8);
  EXPECT_EQ(rig.backend->rms_norm_backward(*rig.stream, b).code(), Code::kInvalidArgument);
  b.dx_TD = b.x_TD;
  EXPECT_EQ(rig.backend->rms_norm_backward(*rig.stream, b).code(), Code::kInvalidArgument);
}

TEST(RmsNorm, ChecksNoticePlantedBugsAndNaN) {
  RmsInputs in = rms_inputs(20, 48);
  Rig rig = open_rig();
  EXPECT_GT(worst_ratio(run_rms(in, rig), rms_wants(in, reference::Canary::kNoNormMean)), 100.0);
  in.x[50] = std::nanf("");
  const Outputs got = run_rms(in, rig);
  EXPECT_TRUE(std::isnan(got[0].values[48]));
  EXPECT_TRUE(std::isnan(got[2].values[49]));
  EXPECT_FALSE(std::isnan(got[0].values[0]));
}

struct HeadInputs {
  int64_t tokens, heads, size;
  std::vector<float> h, o, w, dy;
};
HeadInputs head_inputs(int64_t tokens, int64_t heads, int64_t size) {
  const int64_t n = tokens * heads * size;
  return {tokens,
          heads,
          size,
          random_normal(6, "h", n, {.mean = 0.3}),
          random_normal(6, "o", n),
          random_normal(6, "w", heads * size, {.mean = 1.0, .std = 0.2}),
          random_normal(6, "dy", n)};
}

std::vector<Want> head_wants(const HeadInputs& in) {
  const reference::Vec h = widen(in.h);
  const reference::Vec o = widen(in.o);
  const reference::Vec w = widen(in.w);
  const reference::HeadNormSizes sizes{in.tokens, in.heads, in.size};
  const double eps = static_cast<double>(kEps);
  const auto out = reference::head_norm(sizes, h, w, o, eps);
  const auto grad = reference::head_norm_backward(sizes, h, w, o, widen(in.dy), eps);
  return {{"y", out.y_THV, rounding_bound(in.size, 3)},
          {"mean", out.mean_TH, rounding_bound(in.size, 3)},
          {"rstd", out.rstd_TH, rounding_bound(in.size, 3)},
          {"dh", grad.dh_THV, rounding_bound(in.size, 6)},
          {"do", grad.dgate_THV, rounding_bound(in.size, 6)},
          {"dw", grad.dw_HV, rounding_bound(in.tokens, 6)}};
}

Outputs run_head(const HeadInputs& in, Rig& rig) {
  const auto dims = {in.tokens, in.heads, in.size};
  const int64_t n = in.tokens * in.heads * in.size;
  GuardedBuffer<float> y("y", n), mean("mean", in.tokens * in.heads),
      rstd("rstd", in.tokens * in.heads), dh("dh", n), d_o("do", n), dw("dw", in.heads * in.size);
  GuardedBuffer<float> scratch("scratch", rms_norm_backward_scratch(in.tokens, in.heads * in.size));
  HeadNormArgs a;
  a.h_TNU = f32(in.h, dims);
  a.o_TNU = f32(in.o, dims);
  a.w_NU = f32(in.w, {in.heads * in.size});
  a.y_TNU = f32(y, dims);
  a.mean_TN = f32(mean, {in.tokens, in.heads});
  a.rstd_TN = f32(rstd, {in.tokens, in.heads});
  a.eps = kEps;
  EXPECT_TRUE(rig.backend->head_norm(*rig.stream, a).ok());
  HeadNormBackwardArgs b;
  b.h_TNU = a.h_TNU;
  b.o_TNU = a.o_TNU;
  b.w_NU = a.w_NU;
  b.mean_TN = a.mean_TN;
  b.rstd_TN = a.rstd_TN;
  b.dy_TNU = f32(in.dy, dims);
  b.dh_TNU = f32(dh, dims);
  b.do_TNU = f32(d_o, dims);
  b.dw_NU = f32(dw, {in.heads * in.size});
  b.scratch = f32(scratch, {scratch.size()});
  EXPECT_TRUE(rig.backend->head_norm_backward(*rig.stream, b).ok());
  return {{"y", y.values()},   {"mean", mean.values()}, {"rstd", rstd.values()},
          {"dh", dh.values()}, {"do", d_o.values()},    {"dw", dw.values()}};
}

TEST(HeadNorm, EqualsReference) {
  for (const HeadInputs& in : {head_inputs(3, 1, 5), head_inputs(64, 2, 32),
                               head_inputs(130, 3, 17), head_inputs(20, 1, 300)}) {
    SCOPED_TRACE(testing::Message() << "T " << in.tokens << " N " << in.heads << " U " << in.size);
    check_op([&](Rig& rig) { return run_head(in, rig); }, head_wants(in));
  }
}

TEST(HeadNorm, PassesNaNOn) {
  HeadInputs in = head_inputs(4, 2, 8);
  in.h[9] = std::nanf("");  // token 0, head 1
  Rig rig = open_rig();
  const Outputs got = run_head(in, rig);
  EXPECT_FALSE(std::isnan(got[0].values[7]));
  EXPECT_TRUE(std::isnan(got[0].values[8]));
  EXPECT_TRUE(std::isnan(got[3].values[8]));
}

}  // namespace
}  // namespace swax::test
