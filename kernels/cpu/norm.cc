// RMSNorm. Row blocks of kNormRowBlock are the pieces; the weight gradient of a block lies in its
// own row of scratch and the rows are folded at the end.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fold_rows.h"
#include "kernels/cpu/vec.h"
#include "proto/base/ids.h"

namespace swax::cpu {
namespace {

void apply_row(const float* x, const float* w, float rstd, float* y, int64_t dim) {
  const F8 r = splat(rstd);
  for_lanes(dim, [&](int64_t i, int64_t lanes) {
    store(y + i, load(x + i, lanes) * r * load(w + i, lanes), lanes);
  });
}

}  // namespace

void fold_rows(ThreadPool& pool, const float* rows_RD, int64_t rows, int64_t dim, float* out_D) {
  constexpr int64_t kCols = 256;
  pool.run(div_ceil(dim, kCols), [&](int64_t piece, int) {
    const int64_t col = piece * kCols;
    for_lanes(std::min(kCols, dim - col), [&](int64_t i, int64_t lanes) {
      F8 sum = load(rows_RD + col + i, lanes);
      for (int64_t r = 1; r < rows; ++r) sum = sum + load(rows_RD + r * dim + col + i, lanes);
      store(out_D + col + i, sum, lanes);
    });
  });
}

Status CpuBackend::rms_norm(Stream&, const RmsNormArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("rms_norm", {&a.x_TD, &a.w_D, &a.y_TD, &a.rstd_T}));
  const int64_t tokens = a.x_TD.dims[0];
  const int64_t dim = a.x_TD.dims[1];
  pool_.run(div_ceil(tokens, kNormRowBlock), [&](int64_t piece, int) {
    const int64_t end = std::min(tokens, (piece + 1) * kNormRowBlock);
    for (int64_t t = piece * kNormRowBlock; t < end; ++t) {
      const float* x = a.x_TD.f32() + t * a.x_TD.row_stride;
      const float mean = dot(x, x, dim) / static_cast<float>(dim);
      const float rstd = 1.0F / std::sqrt(mean + a.eps);
      a.rstd_T.f32()[t] = rstd;
      apply_row(x, a.w_D.f32(), rstd, a.y_TD.f32() + t * a.y_TD.row_stride, dim);
    }
  });
  return ok();
}

Status CpuBackend::rms_norm_apply(Stream&, const RmsNormApplyArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("rms_norm_apply", {&a.x_TD, &a.w_D, &a.rstd_T, &a.y_TD}));
  const int64_t tokens = a.x_TD.dims[0];
  pool_.run(div_ceil(tokens, kNormRowBlock), [&](int64_t piece, int) {
    const int64_t end = std::min(tokens, (piece + 1) * kNormRowBlock);
    for (int64_t t = piece * kNormRowBlock; t < end; ++t) {
      apply_row(a.x_TD.f32() + t * a.x_TD.row_stride, a.w_D.f32(), a.rstd_T.f32()[t],
                a.y_TD.f32() + t * a.y_TD.row_stride, a.x_TD.dims[1]);
    }
  });
  return ok();
}

Status CpuBackend::rms_norm_backward(Stream&, const RmsNormBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("rms_norm_backward",
                     {&a.x_TD, &a.w_D, &a.rstd_T, &a.dy_TD, &a.dx_TD, &a.dw_D, &a.scratch}));
  const int64_t tokens = a.x_TD.dims[0];
  const int64_t dim = a.x_TD.dims[1];
  const int64_t blocks = div_ceil(tokens, kNormRowBlock);
  const float* w = a.w_D.f32();
  pool_.run(blocks, [&](int64_t piece, int) {
    float* dw = a.scratch.f32() + piece * dim;
    fill_with(dw, 0.0F, dim);
    const int64_t end = std::min(tokens, (piece + 1) * kNormRowBlock);
    for (int64_t t = piece * kNormRowBlock; t < end; ++t) {
      const float* x = a.x_TD.f32() + t * a.x_TD.row_stride;
      const float* dy = a.dy_TD.f32() + t * a.dy_TD.row_stride;
      float* dx = a.dx_TD.f32() + t * a.dx_TD.row_stride;
      const float rstd = a.rstd_T.f32()[t];
      const F8 r = splat(rstd);
      const float projected = sum_lanes(dim, [&](int64_t i, int64_t lanes, F8 sum) {
        return fma(load(x + i, lanes), load(w + i, lanes) * load(dy + i, lanes), sum);
      });
      // With xhat = x r: dx = r (w dy - xhat mean(xhat w dy)).
      const F8 mean = splat(projected * rstd / static_cast<float>(dim));
      for_lanes(dim, [&](int64_t i, int64_t lanes) {
        const F8 vdy = load(dy + i, lanes);
        const F8 xhat = load(x + i, lanes) * r;
        store(dw + i, load(dw + i, lanes) + vdy * xhat, lanes);
        const F8 grad = r * (load(w + i, lanes) * vdy - xhat * mean);
        store(dx + i, a.accumulate_dx ? load(dx + i, lanes) + grad : grad, lanes);
      });
    }
  });
  fold_rows(pool_, a.scratch.f32(), blocks, dim, a.dw_D.f32());
  return ok();
}

}  // namespace swax::cpu
