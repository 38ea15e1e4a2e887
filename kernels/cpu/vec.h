// Eight f32 lanes (AVX2, the baseline of the project) with fixed-order reductions. Sums over a row
// run in 32 fixed lanes and are combined in one fixed order, so the bits depend on the length alone
// and not on the build type. Fused multiply-add only where it is written.
// Threads: pure functions.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace swax::cpu {

using F8 = __m256;
constexpr int64_t kLanes = 8;

inline F8 splat(float x) { return _mm256_set1_ps(x); }
inline F8 zero8() { return _mm256_setzero_ps(); }
inline F8 load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F8 x) { _mm256_storeu_ps(p, x); }
inline F8 fma(F8 a, F8 b, F8 c) { return _mm256_fmadd_ps(a, b, c); }
// The second operand is returned when either is NaN.
inline F8 max8(F8 a, F8 b) { return _mm256_max_ps(a, b); }
inline F8 min8(F8 a, F8 b) { return _mm256_min_ps(a, b); }
inline F8 abs8(F8 x) { return _mm256_andnot_ps(splat(-0.0F), x); }
inline F8 select(F8 mask, F8 if_set, F8 if_clear) {
  return _mm256_blendv_ps(if_clear, if_set, mask);
}
inline F8 less(F8 a, F8 b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }

// All ones in the first `lanes` (0..8) lanes.
inline __m256i lane_mask(int64_t lanes) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(lanes)), index);
}
// The first `lanes` (1..8) elements; the others read as 0 and are not touched in memory.
inline F8 load(const float* p, int64_t lanes) {
  return lanes == kLanes ? load(p) : _mm256_maskload_ps(p, lane_mask(lanes));
}
inline void store(float* p, F8 x, int64_t lanes) {
  if (lanes == kLanes) {
    store(p, x);
  } else {
    _mm256_maskstore_ps(p, lane_mask(lanes), x);
  }
}

// To the nearest bf16, ties to even.
inline uint16_t to_bf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>(bits >> 16 | 0x40U);  // NaN
  return static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

// ((0+4)+(2+6)) + ((1+5)+(3+7))
inline float add_lanes(F8 x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_lanes(F8 x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// body(i, lanes) for i = 0, 8, 16, ... below n.
template <typename Body>
inline void for_lanes(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, n - i);
}

// Sum of term(i, lanes, so_far), which adds its eight terms to so_far; lanes beyond the end must
// add 0. Element e goes to lane e mod 32 of four accumulators.
template <typename Term>
inline float sum_lanes(int64_t n, Term term) {
  F8 s0 = zero8();
  F8 s1 = zero8();
  F8 s2 = zero8();
  F8 s3 = zero8();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 = term(i, kLanes, s0);
    s1 = term(i + kLanes, kLanes, s1);
    s2 = term(i + 2 * kLanes, kLanes, s2);
    s3 = term(i + 3 * kLanes, kLanes, s3);
  }
  if (i < n) s0 = term(i, n - i < kLanes ? n - i : kLanes, s0);
  i += kLanes;
  if (i < n) s1 = term(i, n - i < kLanes ? n - i : kLanes, s1);
  i += kLanes;
  if (i < n) s2 = term(i, n - i < kLanes ? n - i : kLanes, s2);
  i += kLanes;
  if (i < n) s3 = term(i, n - i < kLanes ? n - i : kLanes, s3);
  return add_lanes((s0 + s1) + (s2 + s3));
}

inline float dot(const float* a, const float* b, int64_t n) {
  return sum_lanes(n, [&](int64_t i, int64_t lanes, F8 sum) {
    return fma(load(a + i, lanes), load(b + i, lanes), sum);
  });
}
// y += a x
inline void add_scaled(float* y, float a, const float* x, int64_t n) {
  const F8 va = splat(a);
  for_lanes(n, [&](int64_t i, int64_t lanes) {
    store(y + i, fma(va, load(x + i, lanes), load(y + i, lanes)), lanes);
  });
}
// y = a x; y may be x.
inline void scale_to(float* y, float a, const float* x, int64_t n) {
  const F8 va = splat(a);
  for_lanes(n, [&](int64_t i, int64_t lanes) { store(y + i, va * load(x + i, lanes), lanes); });
}
inline void fill_with(float* y, float value, int64_t n) {
  const F8 v = splat(value);
  for_lanes(n, [&](int64_t i, int64_t lanes) { store(y + i, v, lanes); });
}

}  // namespace swax::cpu
