// Goal: the device kernels at the widths of the models and just beside them (where rows fall out of
// the vector form), in f32 and bf16, equal the float64 reference: norms, SwiGLU, RoPE, embedding.
#include <cmath>

#include "tests/kernels/values.h"
#include "tests/reference/linear.h"
#include "tests/reference/mlp.h"
#include "tests/reference/norm.h"
#include "tests/reference/rope.h"

namespace swax::test {
namespace {

constexpr float kEps = 1e-6F;
constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

struct Shape {
  int64_t tokens, dim;
};

void check_rms(DType type, DType weight_type, Shape s, bool accumulate) {
  SCOPED_TRACE(testing::Message() << dtype_name(type) << " w " << dtype_name(weight_type) << " T "
                                  << s.tokens << " D " << s.dim << " accumulate " << accumulate);
  const int64_t n = s.tokens * s.dim;
  const std::vector<float> x = exact_normal("x", n, {.mean = 0.5});
  const std::vector<float> w = exact_normal("w", s.dim, {.mean = 1.0, .std = 0.2});
  const std::vector<float> dy = exact_normal("dy", n);
  const std::vector<float> dx0 = exact_normal("dx0", n);
  const auto out = reference::rms_norm(widen(x), widen(w), static_cast<double>(kEps));
  auto grad = reference::rms_norm_backward(widen(x), widen(w), widen(dy), static_cast<double>(kEps),
                                           reference::Canary::kNone);
  if (accumulate) reference::add_to(grad.dx_TD, widen(dx0));
  const RunOp run = [&](Rig& rig) -> Outputs {
    const auto dims = {s.tokens, s.dim};
    Values vx(type, x), vw(weight_type, w), vdy(type, dy), y(type, n), again(type, n);
    Values dx = accumulate ? Values(type, dx0) : Values(type, n);
    Values rstd(DType::kF32, s.tokens), dw(DType::kF32, s.dim);
    Values scratch(DType::kF32, rms_norm_backward_scratch(s.tokens, s.dim));
    Backend& b = *rig.backend;
    const Tensor r = rstd.view({s.tokens});
    EXPECT_TRUE(
        b.rms_norm(*rig.stream, {vx.view(dims), vw.view({s.dim}), y.view(dims), r, kEps}).ok());
    EXPECT_TRUE(
        b.rms_norm_apply(*rig.stream, {vx.view(dims), vw.view({s.dim}), r, again.view(dims)}).ok());
    EXPECT_TRUE(same_bits("applied", again.floats(), y.floats()));
    RmsNormBackwardArgs g;
    g.x_TD = vx.view(dims);
    g.w_D = vw.view({s.dim});
    g.rstd_T = r;
    g.dy_TD = vdy.view(dims);
    g.dx_TD = dx.view(dims);
    g.dw_D = dw.view({s.dim});
    g.scratch = scratch.view({rms_norm_backward_scratch(s.tokens, s.dim)});
    g.accumulate_dx = accumulate;
    const Status status = b.rms_norm_backward(*rig.stream, g);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return {{"y", y.floats()}, {"rstd", rstd.floats()}, {"dx", dx.floats()}, {"dw", dw.floats()}};
  };
  check_op(run, {{"y", out.y_TD, value_bound(type, rounding_bound(s.dim, 3))},
                 {"rstd", out.rstd_T, rounding_bound(s.dim, 3)},
                 {"dx", grad.dx_TD, value_bound(type, rounding_bound(s.dim, 6))},
                 {"dw", grad.dw_D, rounding_bound(s.tokens, 6)}});
}

TEST(CudaWide, RmsNorm) {
  for (const DType type : kTypes) {
    for (const Shape s : {Shape{130, 2048},
                          {65, 4096},
                          {7, 256},
                          {70, 2056},
                          {70, 2050},
                          {3, 8192},
                          {5, 9000},
                          {1, 512}}) {
      check_rms(type, type, s, false);
      check_rms(type, DType::kF32, s, true);
    }
    check_rms(type, DType::kBF16, {70, 768}, true);
  }
}

struct Heads {
  int64_t tokens, heads, size;
};

void check_head_norm(DType type, Heads s) {
  SCOPED_TRACE(testing::Message() << dtype_name(type) << " T " << s.tokens << " N " << s.heads
                                  << " U " << s.size);
  const int64_t n = s.tokens * s.heads * s.size;
  const int64_t width = s.heads * s.size;
  const std::vector<float> h = exact_normal("h", n, {.mean = 0.3});
  const std::vector<float> o = exact_normal("o", n);
  const std::vector<float> w = exact_normal("w", width, {.mean = 1.0, .std = 0.2});
  const std::vector<float> dy = exact_normal("dy", n);
  const reference::HeadNormSizes sizes{s.tokens, s.heads, s.size};
  const double eps = static_cast<double>(kEps);
  const auto out = reference::head_norm(sizes, widen(h), widen(w), widen(o), eps);
  const auto grad =
      reference::head_norm_backward(sizes, widen(h), widen(w), widen(o), widen(dy), eps);
  const RunOp run = [&](Rig& rig) -> Outputs {
    const auto dims = {s.tokens, s.heads, s.size};
    Values vh(type, h), vo(type, o), vw(type, w), vdy(type, dy), y(type, n), dh(type, n),
        d_o(type, n);
    Values mean(DType::kF32, s.tokens * s.heads), rstd(DType::kF32, s.tokens * s.heads);
    Values dw(DType::kF32, width);
    Values scratch(DType::kF32, rms_norm_backward_scratch(s.tokens, width));
    HeadNormArgs a;
    a.h_TNU = vh.view(dims);
    a.o_TNU = vo.view(dims);
    a.w_NU = vw.view({width});
    a.y_TNU = y.view(dims);
    a.mean_TN = mean.view({s.tokens, s.heads});
    a.rstd_TN = rstd.view({s.tokens, s.heads});
    a.eps = kEps;
    EXPECT_TRUE(rig.backend->head_norm(*rig.stream, a).ok());
    HeadNormBackwardArgs b;
    b.h_TNU = a.h_TNU;
    b.o_TNU = a.o_TNU;
    b.w_NU = a.w_NU;
    b.mean_TN = a.mean_TN;
    b.rstd_TN = a.rstd_TN;
    b.dy_TNU = vdy.view(dims);
    b.dh_TNU = dh.view(dims);
    b.do_TNU = d_o.view(dims);
    b.dw_NU = dw.view({width});
    b.scratch = scratch.view({rms_norm_backward_scratch(s.tokens, width)});
    const Status status = rig.backend->head_norm_backward(*rig.stream, b);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return {{"y", y.floats()},   {"mean", mean.floats()}, {"rstd", rstd.floats()},
            {"dh", dh.floats()}, {"do", d_o.floats()},    {"dw", dw.floats()}};
  };
  check_op(run, {{"y", out.y_THV, value_bound(type, rounding_bound(s.size, 3))},
                 {"mean", out.mean_TH, rounding_bound(s.size, 3)},
                 {"rstd", out.rstd_TH, rounding_bound(s.size, 3)},
                 {"dh", grad.dh_THV, value_bound(type, rounding_bound(s.size, 6))},
                 {"do", grad.dgate_THV, value_bound(type, rounding_bound(s.size, 6))},
                 {"dw", grad.dw_HV, rounding_bound(s.tokens, 6)}});
}

TEST(CudaWide, HeadNorm) {
  for (const DType type : kTypes) {
    for (const Heads s : {Heads{130, 4, 512},
                          {65, 8, 512},
                          {70, 3, 256},
                          {70, 5, 64},
                          {70, 2, 128},
                          {70, 2, 24},
                          {5, 1, 1024},
                          {5, 2, 1032},
                          {66, 1, 2048}}) {
      check_head_norm(type, s);
    }
  }
}

TEST(CudaWide, Swiglu) {
  for (const DType type : kTypes) {
    for (const Shape s : {Shape{5, 5632}, {3, 11008}, {9, 43}, {2, 5636}}) {
      SCOPED_TRACE(testing::Message() << dtype_name(type) << " F " << s.dim);
      const int64_t n = s.tokens * s.dim;
      const std::vector<float> a = exact_normal("a", n, {.std = 3.0});
      const std::vector<float> b = exact_normal("b", n);
      const std::vector<float> ds = exact_normal("ds", n);
      const auto grad = reference::swiglu_backward(widen(a), widen(b), widen(ds));
      const RunOp run = [&](Rig& rig) -> Outputs {
        const auto dims = {s.tokens, s.dim};
        Values va(type, a), vb(type, b), vds(type, ds), out(type, n);
        EXPECT_TRUE(
            rig.backend->swiglu(*rig.stream, {va.view(dims), vb.view(dims), out.view(dims)}).ok());
        // da over ds, db over b.
        EXPECT_TRUE(
            rig.backend
                ->swiglu_backward(*rig.stream, {va.view(dims), vb.view(dims), vds.view(dims),
                                                vds.view(dims), vb.view(dims)})
                .ok());
        return {{"s", out.floats()}, {"da", vds.floats()}, {"db", vb.floats()}};
      };
      check_op(run, {{"s", reference::swiglu(widen(a), widen(b)),
                      value_bound(type, rounding_bound(1, 4))},
                     {"da", grad.da, value_bound(type, rounding_bound(1, 8))},
                     {"db", grad.db, value_bound(type, rounding_bound(1, 4))}});
    }
  }
}

TEST(CudaWide, RopeInBf16) {
  for (const int64_t size : {16, 64, 128, 6}) {
    SCOPED_TRACE(size);
    const int64_t tokens = 67;
    const int64_t heads = 4;
    const std::vector<float> x = exact_normal("x", tokens * heads * size);
    const RunOp run = [&](Rig& rig) -> Outputs {
      Values y(DType::kBF16, x);
      GuardedBuffer<float> cos("cos", tokens * size / 2), sin("sin", tokens * size / 2);
      const Tensor cos_TP = f32(cos, {tokens, size / 2});
      const Tensor sin_TP = f32(sin, {tokens, size / 2});
      for (int64_t t = 0; t < tokens; ++t) rope_table_row(900 + t, 10000.0, cos_TP, sin_TP, t);
      EXPECT_TRUE(
          rig.backend->rope(*rig.stream, {y.view({tokens, heads, size}), cos_TP, sin_TP, false})
              .ok());
      return {{"y", y.floats()}};
    };
    const reference::RopeSizes sizes{tokens, heads, size, 10000.0, 900};
    check_op(run, {{"y", reference::rope(sizes, widen(x)),
                    value_bound(DType::kBF16, rounding_bound(2, 2))}});
  }
}

TEST(CudaWide, Embedding) {
  const int64_t vocab = 1003;
  const int64_t tokens = 9000;  // several chunks of the scatter
  for (const DType type : kTypes) {
    for (const int64_t dim : {64, 2056, 9}) {
      SCOPED_TRACE(testing::Message() << dtype_name(type) << " D " << dim);
      std::vector<int32_t> token = random_ints(22, "tokens", tokens, vocab - 1);
      for (size_t t = 0; t < token.size(); t += 3) token[t] = 5;  // one that stands in many places
      const std::vector<float> w = exact_normal("w", vocab * dim);
      const std::vector<float> dy = exact_normal("dy", tokens * dim);
      const RunOp run = [&](Rig& rig) -> Outputs {
        Values vw(type, w), y(type, tokens * dim), vdy(type, dy), dw(DType::kF32, vocab * dim);
        const Tensor ids = i32(token, {tokens});
        Backend& b = *rig.backend;
        EXPECT_TRUE(
            b.embedding(*rig.stream, {ids, vw.view({vocab, dim}), y.view({tokens, dim})}).ok());
        EXPECT_TRUE(
            b.embedding_backward(*rig.stream, {ids, vdy.view({tokens, dim}), dw.view({vocab, dim})})
                .ok());
        return {{"y", y.floats()}, {"dw", dw.floats()}};
      };
      check_op(run, {{"y", reference::embedding(widen(w), token, dim), 0.0},
                     {"dw", reference::embedding_backward(widen(dy), token, vocab, dim),
                      rounding_bound(tokens / 3, 1)}});
    }
  }
}

TEST(CudaWide, EmbeddingAddsInTokenOrder) {
  const int64_t tokens = 5000;
  const int64_t dim = 24;
  for (const int64_t vocab : {1, 700, 70003}) {  // the last: more rows than 128 blocks sort
    SCOPED_TRACE(testing::Message() << "V " << vocab);
    std::vector<int32_t> token = random_ints(31, "tokens", tokens, static_cast<int32_t>(vocab));
    for (size_t t = 0; t < token.size(); t += 2) token[t] %= 3;
    token[6] = -1;  // no row's
    token[4999] = static_cast<int32_t>(vocab);
    const std::vector<float> dy = exact_normal("dy", tokens * dim);
    std::vector<float> want(static_cast<size_t>(vocab * dim), 0.0F);
    for (size_t t = 0; t < token.size(); ++t) {
      if (token[t] < 0 || token[t] >= vocab) continue;
      for (size_t i = 0; i < static_cast<size_t>(dim); ++i) {
        want[static_cast<size_t>(token[t]) * static_cast<size_t>(dim) + i] +=
            dy[t * static_cast<size_t>(dim) + i];
      }
    }
    Rig rig = open_rig();
    Values vdy(DType::kBF16, dy), dw(DType::kF32, vocab * dim);
    EXPECT_TRUE(
        rig.backend
            ->embedding_backward(
                *rig.stream, {i32(token, {tokens}), vdy.view({tokens, dim}), dw.view({vocab, dim})})
            .ok());
    EXPECT_TRUE(same_bits("dw", dw.floats(), want));
  }
}

TEST(CudaWide, GatesOfSwigluThatAreFarOut) {
  const std::vector<float> a = {-3e38F, -200.0F, -88.0F, 88.0F, 200.0F, 3e38F, 0.0F, -0.0F};
  for (const DType type : kTypes) {
    std::vector<float> exact;
    for (const float x : a) exact.push_back(bf16_round(x));
    Values va(type, exact), vb(type, std::vector<float>(8, 1.0F)), out(type, 8);
    Rig rig = open_rig();
    EXPECT_TRUE(
        rig.backend->swiglu(*rig.stream, {va.view({1, 8}), vb.view({1, 8}), out.view({1, 8})})
            .ok());
    const std::vector<float> s = out.floats();
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(s[i], 0.0F, 1e-36F) << i;
    for (size_t i = 3; i < 6; ++i) EXPECT_EQ(s[i], exact[i]);
    EXPECT_EQ(s[6], 0.0F);
    EXPECT_EQ(s[7], 0.0F);
  }
}

TEST(CudaWide, TokensOutsideTheVocabularyBecomeNaN) {
  Rig rig = open_rig();
  std::vector<float> w(4 * 3, 1.0F), y(2 * 3, 0.0F);
  const std::vector<int32_t> token = {3, 4};
  EXPECT_TRUE(
      rig.backend->embedding(*rig.stream, {i32(token, {2}), f32(w, {4, 3}), f32(y, {2, 3})}).ok());
  EXPECT_EQ(y[2], 1.0F);
  EXPECT_TRUE(std::isnan(y[3]));
}

}  // namespace
}  // namespace swax::test
