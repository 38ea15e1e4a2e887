// Elementary functions on eight f32 lanes, branch-free, from + - * / and fma only: their bits
// depend on neither the C library nor the compiler. Polynomials are minimax fits (relative error
// below 2^-27.8), so the stated errors are those of the f32 operations around them; they are
// checked against double in tests/kernels/vec_math_test.cc. NaN gives NaN everywhere. Threads: pure
// functions.
#pragma once

#include "kernels/cpu/vec.h"

namespace swax::cpu {

// <= 2 ulp. Results below 2^-126 are exactly 0 (x < -87.33, -inf included): a masked score costs no
// subnormal arithmetic. x > 88.7228 gives +inf.
inline F8 exp8(F8 x) {
  const F8 low = splat(-87.33F);
  const F8 high = splat(88.72283F);
  const F8 clamped = max8(low, min8(high, x));  // operand order keeps NaN
  const F8 n =
      _mm256_round_ps(clamped * splat(1.44269504F), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 = 0.693359375 - 0.000212194440...; n * 0.693359375 is exact.
  F8 r = fma(n, splat(-0.693359375F), clamped);
  r = fma(n, splat(2.12194440e-4F), r);
  F8 q = splat(0.00138145371F);
  q = fma(q, r, splat(0.00836874508F));
  q = fma(q, r, splat(0.0416683908F));
  q = fma(q, r, splat(0.166665204F));
  q = fma(q, r, splat(0.499999934F));
  const F8 p = fma(q, r * r, r) + splat(1.0F);
  const __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  F8 y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shift));
  y = select(less(x, low), zero8(), y);
  y = select(less(high, x), splat(__builtin_inff()), y);
  return select(_mm256_cmp_ps(x, x, _CMP_UNORD_Q), x, y);
}

// log1p on [0, 1], <= 3 ulp: 2 atanh(e / (2 + e)).
inline F8 log1p_unit8(F8 e) {
  const F8 s = e / (splat(2.0F) + e);
  const F8 z = s * s;
  F8 p = splat(0.243016731F);
  p = fma(p, z, splat(0.214274774F));
  p = fma(p, z, splat(0.286168998F));
  p = fma(p, z, splat(0.399988773F));
  p = fma(p, z, splat(0.666666756F));
  return fma(p * z, s, s + s);
}

// log(1 / (1 + e^-x)), <= 4 ulp of the larger of its two terms.
inline F8 log_sigmoid8(F8 x) { return min8(zero8(), x) - log1p_unit8(exp8(zero8() - abs8(x))); }

// <= 3 ulp; 0 below -88.7 (the true value is then below 2^-127).
inline F8 sigmoid8(F8 x) { return splat(1.0F) / (splat(1.0F) + exp8(zero8() - x)); }

struct TanhSlope {
  F8 tanh;   // <= 3 ulp
  F8 slope;  // 1 - tanh^2, <= 5 ulp also where tanh is close to 1
};
// With e = e^{-2|x|}: tanh = (1 - e) / (1 + e), or a polynomial below 0.625 where 1 - e cancels;
// slope = 4 e / (1 + e)^2.
inline TanhSlope tanh_slope8(F8 x) {
  const F8 z = x * x;
  F8 p = splat(-0.00571704507F);
  p = fma(p, z, splat(0.0206505871F));
  p = fma(p, z, splat(-0.0537434979F));
  p = fma(p, z, splat(0.133314913F));
  p = fma(p, z, splat(-0.333332839F));
  const F8 a = abs8(x);
  const F8 small = fma(p * z, a, a);
  const F8 one = splat(1.0F);
  const F8 e = exp8(zero8() - (a + a));
  const F8 inverse = one / (one + e);
  const F8 magnitude = select(less(a, splat(0.625F)), small, (one - e) * inverse);
  TanhSlope out;
  out.tanh = _mm256_or_ps(magnitude, _mm256_and_ps(x, splat(-0.0F)));
  out.slope = splat(4.0F) * e * (inverse * inverse);
  return out;
}
inline F8 tanh8(F8 x) { return tanh_slope8(x).tanh; }

// Natural logarithm of positive normal numbers, <= 2 ulp away from 1 and 3 near it. Not for 0,
// subnormal or negative arguments; +inf gives +inf.
inline F8 log8(F8 x) {
  const __m256i bits = _mm256_castps_si256(x);
  // m in [sqrt(1/2), sqrt(2)) and x = 2^k m: subtract the bits of sqrt(1/2) to find k.
  const __m256i offset = _mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f3504f3));
  const __m256i k = _mm256_srai_epi32(offset, 23);
  const F8 m = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(k, 23)));
  const F8 kf = _mm256_cvtepi32_ps(k);
  const F8 f = m - splat(1.0F);
  const F8 s = f / (splat(2.0F) + f);
  const F8 z = s * s;
  F8 p = splat(0.235849865F);
  p = fma(p, z, splat(0.28537168F));
  p = fma(p, z, splat(0.400003372F));
  p = fma(p, z, splat(0.666666656F));
  // kf * 0.693359375 is exact; the small part of ln 2 joins the small part of log m.
  const F8 tail = fma(p * z, s, kf * splat(-2.12194440e-4F));
  const F8 y = fma(kf, splat(0.693359375F), (s + s) + tail);
  const F8 finite = less(x, splat(__builtin_inff()));
  return select(finite, y, x);
}

inline float exp1(float x) { return _mm256_cvtss_f32(exp8(splat(x))); }
inline float log1(float x) { return _mm256_cvtss_f32(log8(splat(x))); }
inline float log_sigmoid1(float x) { return _mm256_cvtss_f32(log_sigmoid8(splat(x))); }
inline float sigmoid1(float x) { return _mm256_cvtss_f32(sigmoid8(splat(x))); }
inline float tanh_slope1(float x) { return _mm256_cvtss_f32(tanh_slope8(splat(x)).slope); }
inline float tanh1(float x) { return _mm256_cvtss_f32(tanh8(splat(x))); }

}  // namespace swax::cpu
