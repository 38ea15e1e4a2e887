// Elementary functions whose bits do not depend on the C library or the CPU: built from + - * / in double, never
// contracted. For initial weights, learning rates, RoPE tables and bias corrections; not for kernels' inner loops.
// Error <= 2 ulp over the stated range (tested against long double); golden bits stand in the test. Threads: pure.
#pragma once

#include <cstdint>

namespace swax::math {

struct SinCos {
  double sin;
  double cos;
};

double exp(double x);                    // |x| <= 700; beyond: 0 or +inf; NaN stays NaN
double log(double x);                    // x > 0; 0: -inf; below: NaN
SinCos sincos(double x);                 // |x| <= 2^30 (Cody-Waite in three parts); beyond: NaN
double ipow(double base, int64_t n);     // n >= 0, by squaring in a fixed order
double pow(double base, double y);       // base > 0: exp(y * log(base)) in double-double; ranges of exp
constexpr double kPi = 3.14159265358979323846;

}  // namespace swax::math
