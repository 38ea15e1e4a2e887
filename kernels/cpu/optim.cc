// Row norms, the norm tree and AdamW.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vec.h"
#include "proto/base/ids.h"

namespace swax::cpu {
namespace {

constexpr int64_t kBlock = 1 << 15;  // elements of one piece

// Eight partial sums in f64; products of two f32 are exact in f64.
double sum_of_squares(const float* x, int64_t n) {
  __m256d low = _mm256_setzero_pd();
  __m256d high = _mm256_setzero_pd();
  for_lanes(n, [&](int64_t i, int64_t lanes) {
    const F8 v = load(x + i, lanes);
    const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
    const __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
    low = low + a * a;
    high = high + b * b;
  });
  alignas(32) double p[8];
  _mm256_store_pd(p, low);
  _mm256_store_pd(p + 4, high);
  return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
}

struct AdamW {
  F8 lr, clip, beta1, rest1, beta2, rest2, bias1, bias2, eps, decay;

  // Written out without fused operations: a GPU form gives the same bits.
  void step(float* master, float* m, float* v, const float* grad, int64_t n) const {
    for_lanes(n, [&](int64_t i, int64_t lanes) {
      const F8 g = load(grad + i, lanes) * clip;
      const F8 vm = beta1 * load(m + i, lanes) + rest1 * g;
      const F8 vv = beta2 * load(v + i, lanes) + rest2 * g * g;
      const F8 p = load(master + i, lanes);
      const F8 update = (vm / bias1) / (_mm256_sqrt_ps(vv / bias2) + eps) + decay * p;
      store(m + i, vm, lanes);
      store(v + i, vv, lanes);
      store(master + i, p - lr * update, lanes);
    });
  }
};

}  // namespace

Status CpuBackend::row_sumsq(Stream&, const RowSumsqArgs& a) {
  SWAX_TRY(validate(a));
  if (a.segments.empty()) return ok();
  SWAX_TRY(need_data("row_sumsq", {&a.x_S, &a.row_sums_R}));
  for (const RowSegment& s : a.segments) {
    const int64_t block = std::max<int64_t>(1, kBlock / s.row_elements);
    pool_.run(div_ceil(s.rows, block), [&](int64_t piece, int) {
      const int64_t end = std::min(s.rows, (piece + 1) * block);
      for (int64_t r = piece * block; r < end; ++r) {
        a.row_sums_R.f64()[s.first_row + r] =
            sum_of_squares(a.x_S.f32() + s.begin + r * s.row_elements, s.row_elements);
      }
    });
  }
  return ok();
}

Status CpuBackend::norm_tree(Stream&, const NormTreeArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("norm_tree", {&a.gathered_R, &a.order, &a.scratch}));
  if (a.scalars == nullptr) return invalid_argument("norm_tree: scalars must not be null");
  int64_t count = a.order.dims[0];
  double* v = a.scratch.f64();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = a.order.i64()[i];
    if (from < 0 || from >= a.gathered_R.dims[0]) {
      return invalid_argument("norm_tree: order points outside gathered_R");
    }
    v[i] = a.gathered_R.f64()[from];
  }
  for (; count > 1; count = div_ceil(count, 2)) {
    for (int64_t i = 0; i < count / 2; ++i) v[i] = v[2 * i] + v[2 * i + 1];
    if (count % 2 != 0) v[count / 2] = v[count - 1];
  }
  StepScalars& s = *a.scalars;
  s.grad_norm = std::sqrt(v[0]);
  s.nonfinite = std::abs(s.grad_norm) <= std::numeric_limits<double>::max() ? 0 : 1;
  const double limit = static_cast<double>(s.max_norm);
  const bool clipped = s.nonfinite == 0 && limit > 0.0 && s.grad_norm + 1e-6 > limit;
  s.clip = clipped ? static_cast<float>(limit / (s.grad_norm + 1e-6)) : 1.0F;
  return ok();
}

Status CpuBackend::adamw(Stream&, const AdamWArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("adamw", {&a.master_S, &a.m_S, &a.v_S, &a.grad_S}));
  if (a.scalars == nullptr) return invalid_argument("adamw: scalars must not be null");
  if (!a.values_S.empty()) SWAX_TRY(need_data("adamw", {&a.values_S}, false));
  const StepScalars& s = *a.scalars;
  if (s.skip != 0 || s.nonfinite != 0) return ok();
  for (const DecaySegment& segment : a.segments) {
    const AdamW step{splat(s.lr),    splat(s.clip),
                     splat(a.beta1), splat(1.0F - a.beta1),
                     splat(a.beta2), splat(1.0F - a.beta2),
                     splat(s.bias1), splat(s.bias2),
                     splat(a.eps),   splat(segment.decay ? s.weight_decay : 0.0F)};
    pool_.run(div_ceil(segment.end - segment.begin, kBlock), [&](int64_t piece, int) {
      const int64_t begin = segment.begin + piece * kBlock;
      const int64_t count = std::min(kBlock, segment.end - begin);
      float* master = a.master_S.f32() + begin;
      step.step(master, a.m_S.f32() + begin, a.v_S.f32() + begin, a.grad_S.f32() + begin, count);
      if (a.values_S.empty()) return;
      uint16_t* values = static_cast<uint16_t*>(a.values_S.data) + begin;
      for (int64_t i = 0; i < count; ++i) values[i] = to_bf16(master[i]);
    });
  }
  return ok();
}

}  // namespace swax::cpu
