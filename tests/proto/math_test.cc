// Goal: our elementary functions are accurate (<= 2 ulp) and keep their bits for ever.
// Method: 80-bit long double functions of the C library at points drawn by Philox and at hard
// points (next to multiples of pi/2, around 1, subnormal); golden bits, each of which was compared
// with 400-bit arithmetic when it was written down.
#include "proto/base/math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "proto/base/rng.h"

namespace swax {
namespace {

constexpr int kPoints = 100'000;
constexpr double kInf = std::numeric_limits<double>::infinity();
// The comparison itself: long double functions are good to 1 of their own ulp, 2^-11 of ours.
constexpr double kReferenceUlp = 0x1p-10;

double ulp_error(double ours, long double exact) {
  const double nearest = static_cast<double>(exact);
  const int exponent = nearest == 0 ? -1074 : std::ilogb(nearest) - 52;
  const long double ulp = std::ldexp(1.0L, std::max(exponent, -1074));
  return static_cast<double>(std::abs(static_cast<long double>(ours) - exact) / ulp);
}

double draw(uint64_t index, double from, double to) {
  const PhiloxBlock b = random_block(2026, Purpose::kTest, index);
  const double unit = unit_open_closed(b[0]) - unit_open_closed(b[1]) * 0x1p-32;
  return from + (to - from) * unit;
}

struct Worst {
  double ulp = 0;
  double at = 0;
  void see(double error, double x) {
    if (error > ulp) *this = {error, x};
  }
};

void expect_within(const char* what, const Worst& worst, double bound) {
  EXPECT_LE(worst.ulp, bound + kReferenceUlp) << what << " at " << worst.at;
  ::testing::Test::RecordProperty(std::string(what) + "_ulp", std::to_string(worst.ulp));
}

TEST(Math, ExpWithinTwoUlp) {
  Worst worst;
  for (uint64_t i = 0; i < kPoints; ++i) {
    for (const double range : {700.0, 10.0, 0.4, 1e-6}) {
      const double x = draw(i, -range, range);
      worst.see(ulp_error(math::exp(x), std::exp(static_cast<long double>(x))), x);
    }
  }
  expect_within("exp", worst, 2);
}

TEST(Math, LogWithinTwoUlp) {
  Worst worst;
  const auto see = [&](double x) {
    worst.see(ulp_error(math::log(x), std::log(static_cast<long double>(x))), x);
  };
  for (uint64_t i = 0; i < kPoints; ++i) {
    see(draw(i, 0, 1));
    see(draw(i, 0.99, 1.01));
    see(1 + draw(i, -1e-9, 1e-9));
    see(std::ldexp(draw(i, 1, 2), static_cast<int>(i % 2097) - 1074));
    see(unit_open_closed(static_cast<uint32_t>(i)));
  }
  expect_within("log", worst, 2);
}

TEST(Math, SinCosWithinTwoUlp) {
  Worst worst_sin;
  Worst worst_cos;
  const auto see = [&](double x) {
    const math::SinCos ours = math::sincos(x);
    worst_sin.see(ulp_error(ours.sin, std::sin(static_cast<long double>(x))), x);
    worst_cos.see(ulp_error(ours.cos, std::cos(static_cast<long double>(x))), x);
  };
  for (uint64_t i = 0; i < kPoints; ++i) {
    see(draw(i, -0x1p30, 0x1p30));
    see(draw(i, -10, 10));
    see(draw(i, -1e5, 1e5));
    see(draw(i, -1e-4, 1e-4));
    // The doubles around a multiple of pi/2, where one of the two loses its leading digits.
    const double k = static_cast<double>(i * 6'800);
    const double near = k * (math::kPi / 2);
    see(near);
    see(std::nextafter(near, 0.0));
  }
  expect_within("sin", worst_sin, 2);
  expect_within("cos", worst_cos, 2);
}

TEST(Math, PowWithinTwoUlp) {
  Worst worst;
  for (uint64_t i = 0; i < kPoints; ++i) {
    for (const double base_max : {2.0, 1e6, 1.001}) {
      const double base = draw(i, 1 / base_max, base_max);
      const double y_max = std::min(1e9, 690 / std::max(std::abs(std::log(base)), 1e-7));
      const double y = draw(i + kPoints, -y_max, y_max);
      // powl is good to 1 of its ulp too.
      const long double exact = std::pow(static_cast<long double>(base), y);
      worst.see(ulp_error(math::pow(base, y), exact), base);
    }
  }
  expect_within("pow", worst, 2);
}

// A chain of n multiplications: relative error at most (n - 1) * 2^-53 and second-order terms.
TEST(Math, IpowWithinItsChain) {
  for (const double base : {0.9, 0.95, 0.999, 1.0001, -1.5, 3.0}) {
    for (int64_t n = 0; n <= 400; ++n) {
      const long double exact = std::pow(static_cast<long double>(base), n);
      const long double error = std::abs(math::ipow(base, n) - exact) / std::abs(exact);
      const double steps = static_cast<double>(n < 2 ? 0 : n - 1);
      ASSERT_LE(error, steps * 0x1p-53 * 1.001 + 0x1p-62) << base << " " << n;
    }
  }
  EXPECT_EQ(math::ipow(2, 1023), 0x1p1023);
  EXPECT_EQ(math::ipow(0, 0), 1.0);
  EXPECT_EQ(math::ipow(0.5, int64_t{1} << 40), 0.0);
}

TEST(Math, EdgesOfTheRanges) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(math::exp(0.0), 1.0);
  EXPECT_EQ(math::exp(700.0000001), kInf);
  EXPECT_EQ(math::exp(kInf), kInf);
  EXPECT_EQ(math::exp(-700.0000001), 0.0);
  EXPECT_EQ(math::exp(-kInf), 0.0);
  EXPECT_TRUE(std::isnan(math::exp(nan)));
  EXPECT_EQ(math::log(1.0), 0.0);
  EXPECT_EQ(math::log(0.0), -kInf);
  EXPECT_EQ(math::log(kInf), kInf);
  EXPECT_TRUE(std::isnan(math::log(-1.0)));
  EXPECT_TRUE(std::isnan(math::log(nan)));
  EXPECT_EQ(math::sincos(0.0).sin, 0.0);
  EXPECT_EQ(math::sincos(0.0).cos, 1.0);
  EXPECT_TRUE(std::isnan(math::sincos(0x1.0000001p30).sin));
  EXPECT_TRUE(std::isnan(math::sincos(kInf).cos));
  EXPECT_TRUE(std::isnan(math::sincos(nan).cos));
  EXPECT_EQ(math::pow(1.0, 1e300), 1.0);
  EXPECT_EQ(math::pow(7.0, 0.0), 1.0);
  EXPECT_EQ(math::pow(2.0, 1e300), kInf);
  EXPECT_EQ(math::pow(2.0, -1e300), 0.0);
  EXPECT_EQ(math::pow(0.5, -kInf), kInf);
  EXPECT_EQ(math::pow(0.5, 1100.0), 0.0);
  EXPECT_TRUE(std::isnan(math::pow(-1.0, 2.0)));
  EXPECT_TRUE(std::isnan(math::pow(0.0, 2.0)));
  EXPECT_TRUE(std::isnan(math::pow(2.0, nan)));
}

uint64_t bits(double x) { return std::bit_cast<uint64_t>(x); }

struct Golden1 {
  double x;
  uint64_t bits;
};

TEST(Math, ExpGoldenBits) {
  constexpr Golden1 kGolden[] = {
      {0x1p+0, 0x4005bf0a8b145769ULL},
      {-0x1p+0, 0x3fd78b56362cef38ULL},
      {0x1p-1, 0x3ffa61298e1e069cULL},
      {0x1.b7cdfd9d7bdbbp-34, 0x3ff000000006df38ULL},
      {0x1.48p+3, 0x40db9ea2aed2a0f2ULL},  // 1 ulp above the nearest double
      {-0x1.5d33333333333p+6, 0x38109874c0b9cacbULL},
      {0x1.5ep+9, 0x7f0d945df4f8ec8eULL},
      {-0x1.5ep+9, 0x00d14f2b0fb9307fULL},
      {0x1.62e42fefa39efp-2, 0x3ff6a09e667f3bccULL},
  };
  for (const Golden1& g : kGolden) EXPECT_EQ(bits(math::exp(g.x)), g.bits) << g.x;
}

TEST(Math, LogGoldenBits) {
  constexpr Golden1 kGolden[] = {
      {0x1p+1, 0x3fe62e42fefa39efULL},
      {0x1.4p+3, 0x40026bb1bbb55516ULL},
      {0x1p-1, 0xbfe62e42fefa39efULL},
      {0x1.000001ad7f29bp+0, 0x3e7ad7f2847b6492ULL},
      {0x1.ff7ced916872bp-1, 0xbf5064670d979b73ULL},
      {0x1.7e43c8800759cp+996, 0x4085963447f87fb5ULL},
      {0x1p-1074, 0xc0874385446d71c3ULL},
      {0x1p-32, 0xc0362e42fefa39efULL},
      {0x1.3a92a30553261p-12, 0xc02039346c5fb4b4ULL},
  };
  for (const Golden1& g : kGolden) EXPECT_EQ(bits(math::log(g.x)), g.bits) << g.x;
}

// The last two are the doubles below 2^30 that come nearest to a multiple of pi/2: 2^-60.5.
TEST(Math, SinCosGoldenBits) {
  struct Golden {
    double x;
    uint64_t sin;
    uint64_t cos;
  };
  constexpr Golden kGolden[] = {
      {0x1p+0, 0x3feaed548f090ceeULL, 0x3fe14a280fb5068cULL},
      {-0x1p+0, 0xbfeaed548f090ceeULL, 0x3fe14a280fb5068cULL},
      {0x1p-1, 0x3fdeaee8744b05f0ULL, 0x3fec1528065b7d50ULL},
      {0x1.8p+1, 0x3fc210386db6d55bULL, 0xbfefae04be85e5d2ULL},
      {0x1.e848033333333p+19, 0xbfd04d6d8e2aef7dULL, 0x3feef1c5e8cbb69aULL},
      {0x1p+30, 0xbfe3c12353728cafULL, 0x3fe92cb46a920144ULL},
      {0x1.4f8b588e368f1p-17, 0x3ee4f8b588e1e8a2ULL, 0x3feffffffff920c8ULL},
      {0x1.6c6cbc45dc8dep+5, 0x3ff0000000000000ULL, 0xbc26d61b58c99c43ULL},
      {0x1.6c6cbc45dc8dep+6, 0xbc36d61b58c99c43ULL, 0xbff0000000000000ULL},
  };
  for (const Golden& g : kGolden) {
    EXPECT_EQ(bits(math::sincos(g.x).sin), g.sin) << g.x;
    EXPECT_EQ(bits(math::sincos(g.x).cos), g.cos) << g.x;
  }
}

TEST(Math, PowGoldenBits) {
  struct Golden {
    double base;
    double y;
    uint64_t bits;
  };
  constexpr Golden kGolden[] = {
      {10000.0, -0.015625, 0x3febb5fad00ab22cULL},  // RoPE
      {500000.0, -0.984375, 0x3ec4985fec80a8cbULL},
      {0.95, 1000.0, 0x3b4ffcb2f699313dULL},
      {2.0, 0.5, 0x3ff6a09e667f3bccULL},  // 1 ulp below the nearest double
      {0x1.000001ad7f29bp+0, 1e9, 0x48f349445c228792ULL},
      {3.0, -400.0, 0x18502aceec91d9d2ULL},
  };
  for (const Golden& g : kGolden) EXPECT_EQ(bits(math::pow(g.base, g.y)), g.bits) << g.base;
}

}  // namespace
}  // namespace swax
