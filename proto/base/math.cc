// Methods: argument reduction with constants cut so that the products are exact (Cody and Waite,
// "Software manual for the elementary functions", 1980), Taylor polynomials whose first dropped
// term is below 2^-57 of the result, and double-double steps (Dekker 1971, Knuth TAOCP 4.2.2)
// where one double is too short. Measured against long double: see math_test.cc.
#include "proto/base/math.h"

#include <bit>
#include <limits>

#include "proto/base/check.h"

namespace swax::math {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kExpMax = 700.0;
// ln 2 = kLn2Hi + kLn2Lo; the first has 40 bits, so k * kLn2Hi is exact for |k| < 2^13.
constexpr double kLn2Hi = 0x1.62e42fefa2p-1;
constexpr double kLn2Lo = 0x1.9ef35793c7673p-41;
constexpr double kInvLn2 = 0x1.71547652b82fep+0;
// pi/2 in three full doubles, 161 bits.
constexpr double kHalfPi1 = 0x1.921fb54442d18p+0;
constexpr double kHalfPi2 = 0x1.1a62633145c07p-54;
constexpr double kHalfPi3 = -0x1.f1976b7ed8fbcp-110;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kSqrt2 = 0x1.6a09e667f3bcdp+0;
// 1/3 in two doubles.
constexpr double kThirdHi = 0x1.5555555555555p-2;
constexpr double kThirdLo = 0x1.5555555555555p-56;

struct Double2 {  // hi + lo, |lo| <= ulp(hi)
  double hi;
  double lo;
};

Double2 two_sum(double a, double b) {  // exact
  const double sum = a + b;
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

Double2 fast_two_sum(double a, double b) {  // exact for |a| >= |b| or a == 0
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

Double2 split(double a) {  // two halves of at most 26 bits; |a| < 2^990
  const double t = a * 0x1.0000002p+27;
  const double hi = t - (t - a);
  return {hi, a - hi};
}

Double2 two_product(double a, double b) {  // exact without fused multiply-add
  const double product = a * b;
  const Double2 x = split(a);
  const Double2 y = split(b);
  return {product, ((x.hi * y.hi - product) + x.hi * y.lo + x.lo * y.hi) + x.lo * y.lo};
}

Double2 multiply(Double2 a, Double2 b) {  // relative error about 2^-102
  const Double2 p = two_product(a.hi, b.hi);
  return fast_two_sum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

// Horner's rule in the order written: coefficients from the lowest power up.
template <int N>
double polynomial(const double (&coefficients)[N], double x) {
  double sum = coefficients[N - 1];
  for (int i = N - 2; i >= 0; --i) sum = sum * x + coefficients[i];
  return sum;
}

int64_t round_half_away(double x) { return static_cast<int64_t>(x < 0 ? x - 0.5 : x + 0.5); }

double power_of_two(int64_t k) {  // -1022 <= k <= 1023
  return std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

// exp(hi + lo) for |hi| <= 700. The remainder r is below ln(2)/2, the first dropped term
// r^14/14! below 2^-57.
double exp_sum(double hi, double lo) {
  constexpr double kTaylor[] = {1.0 / 2,          1.0 / 6,          1.0 / 24,
                                1.0 / 120,        1.0 / 720,        1.0 / 5040,
                                1.0 / 40320,      1.0 / 362880,     1.0 / 3628800.0,
                                1.0 / 39916800.0, 1.0 / 479001600., 1 / 6227020800.};
  const int64_t k = round_half_away(hi * kInvLn2);
  const double n = static_cast<double>(k);
  const double head = hi - n * kLn2Hi;  // exact
  const double cut = n * kLn2Lo - lo;
  const double r = head - cut;
  const double rest = (head - r) - cut;
  const double tail = r * r * polynomial(kTaylor, r) + (rest + rest * r);
  return (1.0 + (r + tail)) * power_of_two(k);
}

struct Parts {  // x = mantissa * 2^exponent, mantissa in [sqrt(1/2), sqrt(2)]
  double mantissa;
  double exponent;
};

Parts parts_of(double x) {  // x finite and > 0
  int64_t exponent = 0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    exponent = -54;
  }
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  exponent += static_cast<int64_t>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);
  if (mantissa > kSqrt2) {
    mantissa *= 0.5;
    ++exponent;
  }
  return {mantissa, static_cast<double>(exponent)};
}

// With s = f / (2 + f): log(1 + f) = 2 (s + s^3/3 + s^5/5 + ...), s^2 < 0.0295.
// log(x) to about 2^-64 of its size: s, s^2 and the first term are double-double, the rest of the
// series is 0.02 of that term and stays double.
Double2 log_long(double x) {
  constexpr double kSeries[] = {1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11, 1.0 / 13, 1.0 / 15,
                                1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25, 1.0 / 27};
  const Parts parts = parts_of(x);
  const double f = parts.mantissa - 1.0;  // exact
  const Double2 d = two_sum(parts.mantissa, 1.0);
  const double quotient = f / d.hi;
  const Double2 back = two_product(quotient, d.hi);
  const Double2 s{quotient, (((f - back.hi) - back.lo) - quotient * d.lo) / d.hi};
  const Double2 z = multiply(s, s);
  Double2 sum = fast_two_sum(kThirdHi, z.hi * polynomial(kSeries, z.hi));
  sum.lo += kThirdLo;
  const Double2 cubic = multiply(s, multiply(z, sum));
  const Double2 a = two_sum(parts.exponent * kLn2Hi, 2.0 * s.hi);
  const Double2 b = two_sum(a.hi, 2.0 * cubic.hi);
  const double low = parts.exponent * kLn2Lo + 2.0 * s.lo;
  return fast_two_sum(b.hi, (b.lo + a.lo) + (low + 2.0 * cubic.lo));
}

// x - k * pi/2 to about 2^-120. Doubles up to 2^30 come no nearer than 2^-60.5 to a multiple of
// pi/2 (continued fractions; math_test.cc has them), so the relative error stays below 2^-59.
Double2 reduce_half_pi(double x, double k) {
  const Double2 p1 = two_product(k, kHalfPi1);
  const Double2 p2 = two_product(k, kHalfPi2);
  const Double2 a = two_sum(x - p1.hi, -p1.lo);  // the difference is exact: both lie close together
  const Double2 b = two_sum(a.hi, -p2.hi);
  const Double2 c = two_sum(b.hi, -p2.lo);
  return fast_two_sum(c.hi, ((a.lo + b.lo) + c.lo) - k * kHalfPi3);
}

// |r.hi| <= pi/4 and a little. First dropped terms: r^19/19! and r^20/20!.
double sin_near(Double2 r) {
  constexpr double kTaylor[] = {-1.0 / 6,
                                1.0 / 120,
                                -1.0 / 5040,
                                1.0 / 362880,
                                -1.0 / 39916800.0,
                                1.0 / 6227020800.0,
                                -1.0 / 1307674368000.0,
                                1.0 / 355687428096000.0};
  const double z = r.hi * r.hi;
  return r.hi + (z * r.hi * polynomial(kTaylor, z) + r.lo * (1.0 - 0.5 * z));
}

double cos_near(Double2 r) {
  constexpr double kTaylor[] = {1.0 / 24,
                                -1.0 / 720,
                                1.0 / 40320,
                                -1.0 / 3628800.0,
                                1.0 / 479001600.0,
                                -1.0 / 87178291200.0,
                                1.0 / 20922789888000.0,
                                -1.0 / 6402373705728000.0};
  const double z = r.hi * r.hi;
  const double half = 0.5 * z;
  const double head = 1.0 - half;
  const double lost = (1.0 - head) - half;
  return head + (lost + (z * z * polynomial(kTaylor, z) - r.hi * r.lo));
}

}  // namespace

double exp(double x) {
  if (x != x) return x;
  if (x > kExpMax) return kInf;
  if (x < -kExpMax) return 0.0;
  return exp_sum(x, 0.0);
}

// log(1 + f) = f - (f^2/2 - s (f^2/2 + R)) with R = 2 s^2/3 + 2 s^4/5 + ...: f is exact and the
// bracket is small, so the roundings of the bracket hardly count.
double log(double x) {
  constexpr double kSeries[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11, 2.0 / 13,
                                2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21, 2.0 / 23};
  if (!(x > 0.0)) return x == 0.0 ? -kInf : kNan;
  if (x == kInf) return x;
  const Parts parts = parts_of(x);
  const double f = parts.mantissa - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double half_square = 0.5 * f * f;
  const double series = s * (half_square + z * polynomial(kSeries, z));
  const double low = half_square - (series + parts.exponent * kLn2Lo);
  return parts.exponent * kLn2Hi + (f - low);
}

SinCos sincos(double x) {
  if (!(x <= 0x1p30 && x >= -0x1p30)) return {kNan, kNan};
  const int64_t k = round_half_away(x * kTwoOverPi);
  const Double2 r = reduce_half_pi(x, static_cast<double>(k));
  const double s = sin_near(r);
  const double c = cos_near(r);
  switch (k & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

double ipow(double base, int64_t n) {
  SWAX_CHECK(n >= 0);
  double power = 1.0;
  for (double square = base; n > 0; n >>= 1, square *= square) {
    if (n & 1) power *= square;
  }
  return power;
}

double pow(double base, double y) {
  if (!(base > 0.0 && base < kInf) || y != y) return kNan;
  if (base == 1.0) return 1.0;
  const bool grows = (base > 1.0) == (y > 0.0);
  if (y > 0x1p64 || y < -0x1p64) return grows ? kInf : 0.0;  // |log(base)| is at least 2^-53
  const Double2 logarithm = log_long(base);
  const Double2 p = two_product(y, logarithm.hi);
  const double low = p.lo + y * logarithm.lo;
  if (p.hi > kExpMax || p.hi < -kExpMax) return grows ? kInf : 0.0;
  return exp_sum(p.hi, low);
}

}  // namespace swax::math
