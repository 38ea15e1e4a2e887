// Soft-capped cross-entropy, one row at a time.
#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"
#include "proto/base/ids.h"
#include "proto/base/math.h"
#include "proto/base/text.h"

namespace swax::cpu {
namespace {

struct Capped {
  F8 z;
  F8 slope;  // dz / du = 1 - (z / cap)^2, from u: no cancellation where z is close to the cap
};
// cap 0 means no cap.
struct Cap {
  F8 cap;
  bool on;
  explicit Cap(float c) : cap(splat(c)), on(c > 0.0F) {}
  Capped operator()(F8 u) const {
    if (!on) return {u, splat(1.0F)};
    const TanhSlope t = tanh_slope8(u / cap);
    return {cap * t.tanh, t.slope};
  }
};

// z of the largest logit: the cap keeps the order.
float row_shift(const float* u, int64_t vocab, const Cap& cap) {
  const F8 lowest = splat(-std::numeric_limits<float>::infinity());
  F8 top = lowest;
  for_lanes(vocab, [&](int64_t i, int64_t lanes) {
    const F8 in = _mm256_castsi256_ps(lane_mask(lanes));
    top = max8(select(in, load(u + i, lanes), lowest), top);
  });
  return _mm256_cvtss_f32(cap(splat(max_lanes(top))).z);
}

// Sum of exp(z - shift); with keep_terms each logit is overwritten by its term times its slope.
template <bool kKeepTerms>
float row_sum(float* u, int64_t vocab, const Cap& cap, float shift) {
  const F8 down = splat(shift);
  return sum_lanes(vocab, [&](int64_t i, int64_t lanes, F8 so_far) {
    const Capped c = cap(load(u + i, lanes));
    const F8 e = exp8(c.z - down);
    if constexpr (kKeepTerms) store(u + i, e * c.slope, lanes);
    return so_far + (lanes == kLanes ? e : _mm256_and_ps(e, _mm256_castsi256_ps(lane_mask(lanes))));
  });
}

double row_loss(const CrossEntropyArgs& a, int64_t t, const Cap& cap, float inv_targets) {
  float* u = a.logits_TV.f32() + t * a.logits_TV.row_stride;
  const int64_t vocab = a.logits_TV.dims[1];
  const int32_t target = a.targets_T.i32()[t];
  if (target < 0) {
    if (a.write_gradient) fill_with(u, 0.0F, vocab);
    return 0.0;
  }
  const Capped at_target = cap(splat(u[target]));
  const float z_target = _mm256_cvtss_f32(at_target.z);
  const float shift = row_shift(u, vocab, cap);
  float row_total = 0.0F;
  if (a.write_gradient) {
    row_total = row_sum<true>(u, vocab, cap, shift);
    scale_to(u, inv_targets / row_total, u, vocab);
    const float p = exp1(z_target - shift) / row_total;
    u[target] = (p - 1.0F) * (inv_targets * _mm256_cvtss_f32(at_target.slope));
  } else {
    row_total = row_sum<false>(u, vocab, cap, shift);
  }
  // Not math::log of a NaN or infinite sum: its domain is the positive finite numbers.
  const double sum = static_cast<double>(row_total);
  const double log_sum = row_total < std::numeric_limits<float>::infinity() ? math::log(sum) : sum;
  return log_sum + (static_cast<double>(shift) - static_cast<double>(z_target));
}

}  // namespace

Status CpuBackend::cross_entropy(Stream&, const CrossEntropyArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("cross_entropy", {&a.logits_TV, &a.targets_T, &a.loss_sum, &a.token_loss_T}));
  if (a.write_gradient && a.scalars == nullptr) {
    return invalid_argument("cross_entropy: write_gradient needs scalars");
  }
  const int64_t tokens = a.logits_TV.dims[0];
  const int64_t vocab = a.logits_TV.dims[1];
  for (int64_t t = 0; t < tokens; ++t) {
    if (a.targets_T.i32()[t] >= vocab) {
      return invalid_argument("cross_entropy: target " + to_text(int64_t{a.targets_T.i32()[t]}) +
                              " at " + to_text(t) + ": must be below " + to_text(vocab));
    }
  }
  const Cap cap(a.cap);
  const float inv_targets = a.write_gradient ? a.scalars->inv_targets : 0.0F;
  constexpr int64_t kBatch = 1024;  // losses kept on the stack until they are added in order
  double losses[kBatch];
  for (int64_t begin = 0; begin < tokens; begin += kBatch) {
    const int64_t count = std::min(kBatch, tokens - begin);
    constexpr int64_t kRows = 8;
    pool_.run(div_ceil(count, kRows), [&](int64_t piece, int) {
      for (int64_t i = piece * kRows; i < std::min(count, (piece + 1) * kRows); ++i) {
        losses[i] = row_loss(a, begin + i, cap, inv_targets);
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      if (!a.token_loss_T.empty()) a.token_loss_T.f64()[begin + i] = losses[i];
      a.loss_sum.f64()[0] += losses[i];
    }
  }
  return ok();
}

}  // namespace swax::cpu
