// What a logit of a long bf16 row costs: e^z and the gradient's share of it, eight neighbours at a
// time.
//
// With a cap no maximum is needed: |z| <= cap <= kCapMax, so e^z and its sum over a row neither
// overflow nor vanish. y = z log2 e is a polynomial in u where |u| <= cap / 2, with a relative
// error below 2.5 * 2^-24 (fit 0.25, roundings), so e^z has that of the exponent, |z| times it,
// plus 2^-22 of exp2_fast. Vectors with a larger logit, or NaN, take tanh(x) = 2 r - 1 of
// r = 1 / (1 + e^-2x): the error of z is at most 2 cap r (2^-23 + 2^-24) of the quotient and
// cap / 2 (1 - tanh^2) (2^-22 + 2 |x| 2^-23) of the exponential, together below cap 2^-21.
// Without a cap the exponent is fma(u, log2 e, -shift): relative error of the sum at most
// 2^-24 ln V + 2^-22, because the mean of -log p is at most ln V. Device code.
#pragma once

#include <cstring>

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {

struct Capped {
  float z;
  float slope;  // dz / du = 1 - (z / cap)^2, from u: no cancellation where z is close to the cap
};
__device__ __forceinline__ Capped capped(float u, float cap) {
  if (!(cap > 0.0F)) return {u, 1.0F};
  const TanhSlope t = tanh_slope(u / cap);
  return {cap * t.tanh, t.slope};
}

__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fc00000); }
__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

__device__ __forceinline__ float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
__device__ __forceinline__ __nv_bfloat162 pair(uint32_t two) {
  return *reinterpret_cast<const __nv_bfloat162*>(&two);
}

constexpr float kCapMin = 0.125F;
constexpr float kCapMax = 40.0F;
constexpr int kCapTerms = 5;
// Near: z log2 e = u (c[0] + c[1] u^2 + ...); slope = 1 - curve (z log2 e)^2.
// Far: with E = 2^(inner u) and r = 1 / (1 + E), z log2 e = 2 edge r - edge; slope = 4 E r^2.
struct CapMath {
  uint32_t limit = 0;  // of near |u|, twice bf16
  float curve = 0.0F;
  float inner = 0.0F;
  float edge = 0.0F;
  float c[kCapTerms] = {};
};
inline CapMath cap_math(float cap) {
  // tanh(x) / x in powers of x^2 for x^2 in [0, 1/4], of the least relative error.
  constexpr double kTanh[kCapTerms] = {0.99999998687209098, -0.33333069395865042,
                                       0.13324779337482626, -0.052986075847467434,
                                       0.017135006731566068};
  const double wide = static_cast<double>(cap);
  CapMath m;
  uint32_t half = 0;
  const float limit = 0.5F * cap;
  std::memcpy(&half, &limit, sizeof(half));
  m.limit = (half & 0xffff0000U) | half >> 16;  // rounded down
  m.curve = static_cast<float>(kLn2 * kLn2 / (wide * wide));
  m.inner = static_cast<float>(-2.0 / (kLn2 * wide));
  m.edge = static_cast<float>(wide / kLn2);
  double scale = 1.0 / kLn2;
  for (int k = 0; k < kCapTerms; ++k, scale /= wide * wide) {
    m.c[k] = static_cast<float>(kTanh[k] * scale);
  }
  return m;
}

// e^(z - shift) of one logit, and that times the slope.
struct Term {
  float e;
  float gradient;
};

__device__ __forceinline__ uint32_t two(__nv_bfloat162 x) {
  return *reinterpret_cast<const uint32_t*>(&x);
}

struct TargetTerm {
  float e;
  float z;  // without a cap the logit
  float slope;
};

template <bool kCapped>
struct RowMath {
  CapMath cap;
  float shift;  // in units of log2

  __device__ __forceinline__ Term near(float u) const {
    if constexpr (kCapped) {
      const float square = u * u;
      float p = cap.c[kCapTerms - 1];
#pragma unroll
      for (int k = kCapTerms - 2; k >= 0; --k) p = fmaf(p, square, cap.c[k]);
      const float y = u * p;
      const float e = exp2_fast(y);
      return {e, e * fmaf(y * y, -cap.curve, 1.0F)};
    } else {
      const float e = exp2_fast(fmaf(u, kLog2E, -shift));
      return {e, e};
    }
  }
  __device__ __forceinline__ Term far(float u) const {
    const float inverse = exp2_fast(min_nan(cap.inner * u, 126.0F));
    const float r = reciprocal_fast(1.0F + inverse);
    const float e = exp2_fast(fmaf(r, 2.0F * cap.edge, -cap.edge));
    return {e, e * (inverse * r * (4.0F * r))};
  }
  // Of logit i of the eight, as terms() has it.
  __device__ __forceinline__ TargetTerm target(const Pack<bf16>& x, int i, float c) const {
    float u = 0.0F;
    float all[kVec];
    unpack(x, all);
#pragma unroll
    for (int k = 0; k < kVec; ++k) u = k == i ? all[k] : u;
    const Capped z = capped(u, kCapped ? c : 0.0F);
    return {is_far(x) ? far(u).e : near(u).e, z.z, z.slope};
  }
  // One of the eight logits is outside the polynomial's range or NaN.
  __device__ __forceinline__ bool is_far(const Pack<bf16>& x) const {
    if constexpr (!kCapped) return false;
    const uint32_t least = cap.limit ^ 0x80008000U;
    const __nv_bfloat162 top = __hmax2_nan(
        __hmax2_nan(__hmax2_nan(__hmax2_nan(pair(x.v.x), pair(x.v.y)), pair(x.v.z)), pair(x.v.w)),
        pair(cap.limit));
    const __nv_bfloat162 low = __hmin2_nan(
        __hmin2_nan(__hmin2_nan(__hmin2_nan(pair(x.v.x), pair(x.v.y)), pair(x.v.z)), pair(x.v.w)),
        pair(least));
    return two(top) != cap.limit || two(low) != least;
  }
  __device__ __forceinline__ void terms(const Pack<bf16>& x, float (&e)[kVec],
                                        float (&gradient)[kVec]) const {
    float u[kVec];
    unpack(x, u);
    const auto all = [&](auto term) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const Term t = term(u[i]);
        e[i] = t.e;
        gradient[i] = t.gradient;
      }
    };
    if (is_far(x)) {
      all([&](float v) { return far(v); });
    } else {
      all([&](float v) { return near(v); });
    }
  }
};

}  // namespace swax::cuda
