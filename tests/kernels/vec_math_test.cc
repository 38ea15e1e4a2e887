// Goal: the vector functions keep their stated errors against long double over their whole range,
// and treat infinities, NaN and very small results as documented. Method: a dense sweep of float
// bit patterns (every 1009th) plus the edges.
#include "kernels/cpu/vec_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace swax::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float from_bits(uint32_t bits) {
  float x = 0.0F;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// Error of `got` in units of the last place of the exact value.
double ulps(float got, long double want) {
  int exponent = 0;
  std::frexp(static_cast<double>(want), &exponent);
  const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
  return static_cast<double>(std::fabs(static_cast<long double>(got) - want)) / ulp;
}

// Largest error over finite floats x with low <= x <= high.
template <typename Function, typename Exact>
double worst(Function function, Exact exact, float low, float high) {
  double most = 0.0;
  for (uint64_t bits = 0; bits <= 0xffffffffU; bits += 1009) {
    const float x = from_bits(static_cast<uint32_t>(bits));
    if (!(x >= low && x <= high)) continue;
    most = std::max(most, ulps(function(x), exact(static_cast<long double>(x))));
  }
  return most;
}

TEST(VecMath, ExpIsWithinTwoUlp) {
  EXPECT_LE(worst(
                exp1, [](long double x) { return std::exp(x); }, -87.33F, 88.7228F),
            2.0);
}

TEST(VecMath, ExpEdges) {
  EXPECT_EQ(exp1(0.0F), 1.0F);
  EXPECT_EQ(exp1(-kInf), 0.0F);
  EXPECT_EQ(exp1(-1e30F), 0.0F);
  EXPECT_EQ(exp1(-87.34F), 0.0F);
  EXPECT_GE(exp1(-87.33F), std::numeric_limits<float>::min());
  EXPECT_EQ(exp1(kInf), kInf);
  EXPECT_EQ(exp1(88.73F), kInf);
  EXPECT_LT(exp1(88.7228F), kInf);
  EXPECT_TRUE(std::isnan(exp1(std::nanf(""))));
}

TEST(VecMath, ExpNearEachPowerOfTwo) {
  // Where the exponent changes: every float within 64 of n ln 2.
  double most = 0.0;
  for (int n = -125; n <= 127; ++n) {
    float x = static_cast<float>(n * 0.693147180559945309);
    for (int i = 0; i < 64; ++i) x = std::nextafter(x, -kInf);
    for (int i = 0; i < 128; ++i, x = std::nextafter(x, kInf)) {
      most = std::max(most, ulps(exp1(x), std::exp(static_cast<long double>(x))));
    }
  }
  EXPECT_LE(most, 2.0);
}

TEST(VecMath, LogIsWithinThreeUlp) {
  const auto exact = [](long double x) { return std::log(x); };
  EXPECT_LE(
      worst(log1, exact, std::numeric_limits<float>::min(), std::numeric_limits<float>::max()),
      3.0);
  double most = 0.0;
  float x = 0.99F;
  while (x < 1.01F) {
    most = std::max(most, ulps(log1(x), exact(static_cast<long double>(x))));
    x = std::nextafter(x, kInf);
  }
  EXPECT_LE(most, 3.0);
  EXPECT_EQ(log1(1.0F), 0.0F);
  EXPECT_EQ(log1(kInf), kInf);
  EXPECT_TRUE(std::isnan(log1(std::nanf(""))));
}

TEST(VecMath, SigmoidIsWithinThreeUlp) {
  EXPECT_LE(
      worst(
          sigmoid1, [](long double x) { return 1.0L / (1.0L + std::exp(-x)); }, -87.0F, 1e30F),
      3.0);
  EXPECT_EQ(sigmoid1(-100.0F), 0.0F);
  EXPECT_EQ(sigmoid1(-kInf), 0.0F);
  EXPECT_EQ(sigmoid1(kInf), 1.0F);
  EXPECT_TRUE(std::isnan(sigmoid1(std::nanf(""))));
}

TEST(VecMath, TanhIsWithinThreeUlp) {
  EXPECT_LE(worst(
                tanh1, [](long double x) { return std::tanh(x); }, -1e30F, 1e30F),
            3.0);
  EXPECT_EQ(tanh1(kInf), 1.0F);
  EXPECT_EQ(tanh1(-kInf), -1.0F);
  EXPECT_TRUE(std::signbit(tanh1(-0.0F)));
  EXPECT_TRUE(std::isnan(tanh1(std::nanf(""))));
}

TEST(VecMath, TanhSlopeIsWithinFiveUlp) {
  const auto exact = [](long double x) {
    const long double c = std::cosh(x);
    return 1.0L / (c * c);
  };
  EXPECT_LE(worst(tanh_slope1, exact, -43.0F, 43.0F), 5.0);
  EXPECT_EQ(tanh_slope1(0.0F), 1.0F);
  EXPECT_EQ(tanh_slope1(kInf), 0.0F);
}

TEST(VecMath, LogSigmoidIsWithinFourUlp) {
  EXPECT_LE(
      worst(
          log_sigmoid1, [](long double x) { return -std::log1p(std::exp(-x)); }, -1e4F, 80.0F),
      4.0);
  EXPECT_TRUE(std::isnan(log_sigmoid1(std::nanf(""))));
}

TEST(VecMath, AllLanesGiveTheSameBits) {
  alignas(32) float in[8];
  alignas(32) float out[8];
  for (int i = 0; i < 8; ++i) in[i] = 0.37F * static_cast<float>(i - 4);
  store(out, exp8(load(in)));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(out[i], exp1(in[i]));
}

TEST(Vec, SumsOfAnyLengthTouchOnlyTheirElements) {
  for (int64_t n = 1; n <= 70; ++n) {
    std::vector<float> x(static_cast<size_t>(n) + 8, std::nanf(""));
    float want = 0.0F;
    for (int64_t i = 0; i < n; ++i) {
      x[static_cast<size_t>(i)] = static_cast<float>(i + 1);
      want += static_cast<float>((i + 1) * (i + 1));
    }
    EXPECT_EQ(dot(x.data(), x.data(), n), want);  // exact: all values are small integers
    scale_to(x.data(), 2.0F, x.data(), n);
    EXPECT_EQ(x[static_cast<size_t>(n - 1)], static_cast<float>(2 * n));
    EXPECT_TRUE(std::isnan(x[static_cast<size_t>(n)]));
  }
}

}  // namespace
}  // namespace swax::cpu
