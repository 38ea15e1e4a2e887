// Goal: every transposition of gemm, strided and accumulating, stays inside the bound of
// kernels/spec/gemm.h, and the plain form is the chain of fused multiply-adds that it claims to be.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/gemm.h"
#include "tests/kernels/op_check.h"
#include "tests/reference/linear.h"

namespace swax::test {
namespace {

using reference::Vec;

struct Case {
  int64_t m, n, k;
  bool trans_a = false, trans_b = false, accumulate = false;
  int64_t padding = 0;  // elements between rows
  double mean = 0.0;
  bool apart = false;  // what is accumulated to lies elsewhere: the addend
};

struct Inputs {
  std::vector<float> a, b, c;  // c: what is added
  int64_t a_rows, a_cols, b_rows, b_cols;
};

Inputs inputs(const Case& c) {
  Inputs in;
  in.a_rows = c.trans_a ? c.k : c.m;
  in.a_cols = c.trans_a ? c.m : c.k;
  in.b_rows = c.trans_b ? c.n : c.k;
  in.b_cols = c.trans_b ? c.k : c.n;
  in.a = random_normal(3, "a", in.a_rows * (in.a_cols + c.padding), {.mean = c.mean});
  in.b = random_normal(3, "b", in.b_rows * (in.b_cols + c.padding), {.mean = c.mean});
  in.c = random_normal(3, "c", c.m * c.n, {.mean = c.mean});
  return in;
}

float a_at(const Case& c, const Inputs& in, int64_t m, int64_t k) {
  const int64_t at = c.trans_a ? k * (in.a_cols + c.padding) + m : m * (in.a_cols + c.padding) + k;
  return in.a[static_cast<size_t>(at)];
}
float b_at(const Case& c, const Inputs& in, int64_t k, int64_t n) {
  const int64_t at = c.trans_b ? n * (in.b_cols + c.padding) + k : k * (in.b_cols + c.padding) + n;
  return in.b[static_cast<size_t>(at)];
}

std::vector<Want> wants(const Case& c, const Inputs& in,
                        reference::Canary canary = reference::Canary::kNone) {
  Vec a, b;
  for (int64_t m = 0; m < c.m; ++m) {
    for (int64_t k = 0; k < c.k; ++k) a.push_back(static_cast<double>(a_at(c, in, m, k)));
  }
  for (int64_t n = 0; n < c.n; ++n) {
    for (int64_t k = 0; k < c.k; ++k) b.push_back(static_cast<double>(b_at(c, in, k, n)));
  }
  Vec y = reference::linear(a, b, c.k, canary);
  const bool adds = c.accumulate || c.apart;
  if (adds) reference::add_to(y, widen(in.c));
  return {{"c", y, rounding_bound(c.k, adds ? 2 : 1)}};
}

Outputs run(const Case& c, const Inputs& in, Rig& rig) {
  const int64_t stride = c.n + c.padding;
  // The addend lies behind c, at the same place inside 256 bytes: forms may depend on that.
  const int64_t behind = (c.m * stride + 63) / 64 * 64;
  GuardedBuffer<float> out("c", c.apart ? 2 * behind : c.m * stride);
  float* added_to = out.data() + (c.apart ? behind : 0);
  for (int64_t i = 0; (c.accumulate || c.apart) && i < c.m * c.n; ++i) {
    added_to[i / c.n * stride + i % c.n] = in.c[static_cast<size_t>(i)];
  }
  GemmArgs a;
  a.a = Tensor::of(const_cast<float*>(in.a.data()), DType::kF32, {in.a_rows, in.a_cols});
  a.b = Tensor::of(const_cast<float*>(in.b.data()), DType::kF32, {in.b_rows, in.b_cols});
  a.c = Tensor::of(out.data(), DType::kF32, {c.m, c.n});
  a.a.row_stride += c.padding;
  a.b.row_stride += c.padding;
  a.c.row_stride += c.padding;
  a.trans_a = c.trans_a;
  a.trans_b = c.trans_b;
  a.accumulate = c.accumulate;
  if (c.apart) {
    a.addend = a.c;
    a.addend.data = added_to;
  }
  const Status status = rig.backend->gemm(*rig.stream, a);
  EXPECT_TRUE(status.ok()) << status.to_string();
  std::vector<float> values;
  for (int64_t i = 0; i < c.m * c.n; ++i) values.push_back(out.data()[i / c.n * stride + i % c.n]);
  return {{"c", values}};
}

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.m << " x " << c.n << " x " << c.k << " ta " << c.trans_a
                                  << " tb " << c.trans_b << " acc " << c.accumulate);
  const Inputs in = inputs(c);
  check_op([&](Rig& rig) { return run(c, in, rig); }, wants(c, in));
}

TEST(Gemm, EqualsReferenceForEveryTransposition) {
  for (const bool trans_a : {false, true}) {
    for (const bool trans_b : {false, true}) {
      for (const bool accumulate : {false, true}) {
        check({.m = 45,
               .n = 37,
               .k = 29,
               .trans_a = trans_a,
               .trans_b = trans_b,
               .accumulate = accumulate,
               .padding = 3});
        check({.m = 390,
               .n = 18,
               .k = 300,
               .trans_a = trans_a,
               .trans_b = trans_b,
               .accumulate = accumulate});
      }
    }
  }
}

TEST(Gemm, EqualsReferenceAroundPieces) {
  for (const int64_t m : {1, 5, 6, 7, 255, 256, 383, 385, 511, 1030}) {
    check({.m = m, .n = 17, .k = 16, .trans_b = true});
  }
  for (const int64_t n : {1, 8, 15, 16, 1535, 1537}) check({.m = 7, .n = n, .k = 9});
  for (const int64_t k : {1, 2, 255, 256, 257, 1000}) {
    check({.m = 9, .n = 33, .k = k});
    check({.m = 9, .n = 33, .k = k, .mean = 2.0});  // sums that grow
  }
}

TEST(Gemm, AnAddendGivesTheBitsOfACopyAccumulatedTo) {
  for (const bool plain : {false, true}) {
    for (const int64_t padding : {0, 5}) {
      for (const Case& shape : {Case{.m = 45, .n = 37, .k = 29}, Case{.m = 390, .n = 24, .k = 600},
                                Case{.m = 1, .n = 1544, .k = 64}}) {
        Case c = shape;
        c.trans_b = true;
        c.padding = padding;
        const Inputs in = inputs(c);
        Rig rig = open_rig(2, plain);
        c.accumulate = true;
        const Outputs want = run(c, in, rig);
        c.accumulate = false;
        c.apart = true;
        const Outputs got = run(c, in, rig);
        EXPECT_TRUE(same_bits("c", got[0].values, want[0].values)) << c.m << " plain " << plain;
      }
    }
  }
}

TEST(Gemm, ChecksNoticeADroppedTile) {
  const Case c{.m = 20, .n = 24, .k = 96, .trans_b = true};
  const Inputs in = inputs(c);
  Rig rig = open_rig();
  EXPECT_GT(worst_ratio(run(c, in, rig), wants(c, in, reference::Canary::kLastTileDropped)), 1e4);
}

TEST(Gemm, PlainFormIsAChainOfFusedMultiplyAdds) {
  for (const bool accumulate : {false, true}) {
    for (const bool trans : {false, true}) {
      const Case c{.m = 390,
                   .n = 35,
                   .k = 515,
                   .trans_a = trans,
                   .trans_b = !trans,
                   .accumulate = accumulate};
      const Inputs in = inputs(c);
      std::vector<float> want;
      for (int64_t m = 0; m < c.m; ++m) {
        for (int64_t n = 0; n < c.n; ++n) {
          float sum = accumulate ? in.c[static_cast<size_t>(m * c.n + n)] : 0.0F;
          for (int64_t k = 0; k < c.k; ++k)
            sum = std::fma(a_at(c, in, m, k), b_at(c, in, k, n), sum);
          want.push_back(sum);
        }
      }
      Rig rig = open_rig(2, true);
      EXPECT_TRUE(same_bits("c", run(c, in, rig)[0].values, want));
    }
  }
}

TEST(Gemm, PassesNaNOnAndIgnoresOldOutput) {
  for (const bool plain : {false, true}) {
    const Case c{.m = 5, .n = 6, .k = 7};
    Inputs in = inputs(c);
    in.a[2] = std::nanf("");  // row 0
    Rig rig = open_rig(1, plain);
    const Outputs got = run(c, in, rig);
    for (int64_t i = 0; i < c.m * c.n; ++i) {
      EXPECT_EQ(std::isnan(got[0].values[static_cast<size_t>(i)]), i < c.n);
    }
  }
}

// The columns of the result lie between those of a factor.
TEST(Gemm, WritesBetweenTheRowsOfAFactor) {
  const Case c{.m = 5, .n = 6, .k = 7};
  const Inputs in = inputs(c);
  const int64_t stride = c.k + c.n;
  const auto columns = [&](std::vector<float>& both, int64_t first, int64_t count) {
    Tensor t = Tensor::of(both.data() + first, DType::kF32, {c.m, count});
    t.row_stride = stride;
    return t;
  };
  const auto run_between = [&](Rig& rig) -> Outputs {
    std::vector<float> both(static_cast<size_t>(c.m * stride), std::nanf(""));
    std::vector<float> out;
    for (int64_t i = 0; i < c.m; ++i) {
      std::copy_n(in.a.begin() + i * c.k, c.k, both.begin() + i * stride);
    }
    GemmArgs g;
    g.a = columns(both, 0, c.k);
    g.b = f32(in.b, {c.k, c.n});
    g.c = columns(both, c.k, c.n);
    const Status there = rig.backend->gemm(*rig.stream, g);
    EXPECT_TRUE(there.ok()) << there.to_string();
    for (int64_t i = 0; i < c.m; ++i) {
      const auto row = both.begin() + i * stride;
      EXPECT_TRUE(std::equal(row, row + c.k, in.a.begin() + i * c.k)) << "a was written";
      out.insert(out.end(), row + c.k, row + stride);
    }
    return {{"c", out}};
  };
  check_op(run_between, wants(c, in));
}

TEST(Gemm, RefusesWrongArguments) {
  Rig rig = open_rig();
  std::vector<float> x(64);
  GemmArgs a;
  a.a = f32(x, {8, 8});
  a.b = f32(x, {8, 8});
  a.c = Tensor::of(x.data(), DType::kF32, {8, 8});
  EXPECT_EQ(rig.backend->gemm(*rig.stream, a).code(), Code::kInvalidArgument);  // c aliases a
  std::vector<float> y(64);
  a.c = f32(y, {8, 8});
  EXPECT_TRUE(rig.backend->gemm(*rig.stream, a).ok());
  a.addend = a.c;
  EXPECT_EQ(rig.backend->gemm(*rig.stream, a).code(), Code::kInvalidArgument);  // c aliases it
  a.addend = f32(x, {8, 8});
  EXPECT_TRUE(rig.backend->gemm(*rig.stream, a).ok());
  a.accumulate = true;
  EXPECT_EQ(rig.backend->gemm(*rig.stream, a).code(), Code::kInvalidArgument);  // one or the other
  a.accumulate = false;
  a.addend = f32(x, {4, 16});
  EXPECT_EQ(rig.backend->gemm(*rig.stream, a).code(), Code::kInvalidArgument);
  a.addend = {};
  a.b = f32(x, {4, 16});
  EXPECT_EQ(rig.backend->gemm(*rig.stream, a).code(), Code::kInvalidArgument);
  a.b = Tensor::of(nullptr, DType::kF32, {8, 8});
  EXPECT_EQ(rig.backend->gemm(*rig.stream, a).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace swax::test
