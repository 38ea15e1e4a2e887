// Goal: the helpers that judge all other tests are right and can fail.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/grad_check.h"
#include "tests/support/tensor_check.h"

namespace swax::test {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

TEST(RelError, IsTheRatioOfNorms) {
  EXPECT_DOUBLE_EQ(rel_error(Doubles{3, 4.5}, Doubles{3, 4}), 0.1);
  EXPECT_EQ(rel_error(Floats{0, 0}, Doubles{0, 0}), 0.0);
  EXPECT_EQ(rel_error(Floats{0, 1e-30F}, Doubles{0, 0}), std::numeric_limits<double>::infinity());
  EXPECT_EQ(rel_error(Floats{NAN}, Doubles{1}), std::numeric_limits<double>::infinity());
}

TEST(RoundingBound, IsHalfUlpTimesRootOfLength) {
  EXPECT_DOUBLE_EQ(rounding_bound(4, 3), 3 * std::ldexp(1.0, -24));
  EXPECT_DOUBLE_EQ(tuned_bound(1.0), 2 + std::ldexp(1.0, -26));
}

TEST(TensorNear, NamesTensorErrorBoundAndWorstElement) {
  EXPECT_TRUE(tensor_near("y", Floats{1, 2, 3}, Doubles{1, 2, 3.0001}, 1e-4));
  const testing::AssertionResult bad =
      tensor_near("y", Floats{1, 2.5F, 3}, Doubles{1, 2, 3.001}, 1e-4);
  ASSERT_FALSE(bad);
  for (const char* part :
       {"y: relative error 0.13", "bound 0.0001", "worst element 1 of 3", "got 2.5", "want 2"}) {
    EXPECT_NE(std::string(bad.message()).find(part), std::string::npos)
        << part << " in " << bad.message();
  }
  EXPECT_FALSE(tensor_near("y", Floats{1}, Doubles{1, 1}, 1.0));
  EXPECT_FALSE(tensor_near("y", Floats{NAN}, Doubles{1}, 1e9));
  EXPECT_FALSE(tensor_near("y", Floats{1}, Doubles{INFINITY}, 1e9));
}

TEST(AllFinite, FindsNanAndInf) {
  EXPECT_TRUE(all_finite("x", Floats{0, -1, 3e38F}));
  EXPECT_FALSE(all_finite("x", Floats{0, NAN}));
  EXPECT_FALSE(all_finite("x", Doubles{-INFINITY}));
}

TEST(SameBits, SeesSignedZeroAndNan) {
  EXPECT_TRUE(same_bits("x", Floats{1, NAN}, Floats{1, NAN}));
  EXPECT_FALSE(same_bits("x", Floats{0.0F}, Floats{-0.0F}));
  EXPECT_FALSE(same_bits("x", Floats{1}, Floats{1, 2}));
}

TEST(Bf16Round, IsNearestTiesToEven) {
  EXPECT_EQ(bf16_round(1.0F), 1.0F);
  EXPECT_EQ(bf16_round(1.00390625F), 1.0F);          // 1 + 2^-8: a tie, down to even
  EXPECT_EQ(bf16_round(1.01171875F), 1.015625F);     // 1 + 3 * 2^-8: a tie, up to even
  EXPECT_EQ(bf16_round(-1.0039064F), -1.0078125F);  // just above the tie
}

TEST(Inputs, DependOnSeedStreamAndIndexOnly) {
  EXPECT_EQ(random_normal(1, "q", 5), random_normal(1, "q", 5));
  EXPECT_NE(random_normal(1, "q", 5), random_normal(2, "q", 5));
  EXPECT_NE(random_normal(1, "q", 5), random_normal(1, "k", 5));
  const Floats longer = random_normal(1, "q", 9);
  EXPECT_EQ(Floats(longer.begin(), longer.begin() + 5), random_normal(1, "q", 5));
  double sum = 0, squares = 0;
  const Floats many = random_normal(3, "x", 4096, {.mean = 2.0, .std = 0.5});
  for (const float x : many) {
    sum += x;
    squares += (x - 2.0) * (x - 2.0);
  }
  EXPECT_NEAR(sum / 4096, 2.0, 5 * 0.5 / 64);              // five standard errors of the mean
  EXPECT_NEAR(squares / 4096, 0.25, 5 * 0.25 / 64 * 1.5);  // of the variance: sqrt(2 / n) times it
  for (const float x : random_normal(3, "x", 64, {.bf16 = true})) EXPECT_EQ(bf16_round(x), x);
  for (const float x : random_uniform(3, "u", 500, -2.0, 3.0)) {
    EXPECT_GE(x, -2.0F);
    EXPECT_LE(x, 3.0F);
  }
  std::vector<int> seen(7, 0);
  for (const int32_t id : random_ints(3, "ids", 500, 7)) ++seen.at(static_cast<size_t>(id));
  for (const int count : seen) EXPECT_GT(count, 0);
}

TEST(DocStarts, MarksFirstTokens) {
  EXPECT_EQ(doc_starts(4, {0, 3}), (std::vector<int32_t>{1, 0, 0, 1}));
}

TEST(GuardedBuffer, StartsAsNanAlignedAndKeepsValues) {
  GuardedBuffer<float> x("x", 5);
  for (const float value : x.span()) EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x.data()) % 64, 0U);
  for (float& value : x.span()) value = 1;
  EXPECT_TRUE(x.intact());
  const GuardedBuffer<float> y("y", Floats{1, 2, 3});
  EXPECT_EQ(y.values(), (Floats{1, 2, 3}));
}

TEST(GuardedBuffer, SeesWritesOutside) {
  for (const int64_t place : {-1, -64, 5, 20}) {
    GuardedBuffer<float> x("x", 5);
    float* data = x.data();
    data[place] = 0;
    const testing::AssertionResult result = x.intact();
    EXPECT_FALSE(result) << place;
    EXPECT_NE(std::string(result.message()).find("x: byte at offset " + std::to_string(place * 4)),
              std::string::npos);
    x.guard().restore();
    EXPECT_TRUE(x.intact());
  }
}

TEST(GuardedBuffer, FailsTheTestWhenItEnds) {
  EXPECT_NONFATAL_FAILURE(
      {
        GuardedBuffer<float> x("scratch", 3);
        float* data = x.data();
        data[3] = 1;
      },
      "scratch: byte at offset 12");
}

TEST(GradientMatches, AcceptsTheGradientAndRejectsAnother) {
  const Doubles x{0.3, -1.2, 2.0};
  const auto loss = [](std::span<const double> p) {
    return std::sin(p[0]) * p[1] + std::exp(p[2]);
  };
  Doubles grad{std::cos(0.3) * -1.2, std::sin(0.3), std::exp(2.0)};
  EXPECT_TRUE(gradient_matches("x", loss, x, grad, {.bound = 1e-9}));
  grad[1] += 1e-3;
  EXPECT_FALSE(gradient_matches("x", loss, x, grad));
  EXPECT_FALSE(gradient_matches("x", loss, x, Doubles{1}));
}

}  // namespace
}  // namespace swax::test
