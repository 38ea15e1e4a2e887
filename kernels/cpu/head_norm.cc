// Per-head LayerNorm with output gate.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fold_rows.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"
#include "proto/base/ids.h"

namespace swax::cpu {
namespace {

// Lanes beyond the end as 0, whatever the expression gives for them.
F8 keep(F8 x, int64_t lanes) {
  return lanes == kLanes ? x : _mm256_and_ps(x, _mm256_castsi256_ps(lane_mask(lanes)));
}

struct Row {
  const float* h;
  const float* o;
  const float* w;
  int64_t size;
};

void forward_row(const Row& x, float eps, float* y, float* mean_out, float* rstd_out) {
  const float size = static_cast<float>(x.size);
  const float mean = sum_lanes(x.size, [&](int64_t i, int64_t lanes,
                                           F8 sum) { return sum + load(x.h + i, lanes); }) /
                     size;
  const F8 m = splat(mean);
  const float variance = sum_lanes(x.size,
                                   [&](int64_t i, int64_t lanes, F8 sum) {
                                     const F8 d = keep(load(x.h + i, lanes) - m, lanes);
                                     return fma(d, d, sum);
                                   }) /
                         size;
  const float rstd = 1.0F / std::sqrt(variance + eps);
  *mean_out = mean;
  *rstd_out = rstd;
  const F8 r = splat(rstd);
  for_lanes(x.size, [&](int64_t i, int64_t lanes) {
    const F8 hat = (load(x.h + i, lanes) - m) * r;
    store(y + i, sigmoid8(load(x.o + i, lanes)) * (hat * load(x.w + i, lanes)), lanes);
  });
}

struct RowGrad {
  const float* dy;
  float* dh;
  float* d_o;
  float* dw;  // +=
  float mean;
  float rstd;
};

void backward_row(const Row& x, const RowGrad& g) {
  const F8 m = splat(g.mean);
  const F8 r = splat(g.rstd);
  const F8 one = splat(1.0F);
  // First pass: do, dw, and dh holds dyh = dy sigmoid(o) w; the two means come with it.
  F8 sum_v = zero8();
  F8 sum_hat_v = zero8();
  for_lanes(x.size, [&](int64_t i, int64_t lanes) {
    const F8 hat = keep((load(x.h + i, lanes) - m) * r, lanes);
    const F8 s = sigmoid8(load(x.o + i, lanes));
    const F8 dy = load(g.dy + i, lanes);
    const F8 w = load(x.w + i, lanes);
    const F8 through = dy * s;
    store(g.d_o + i, through * (one - s) * (hat * w), lanes);
    store(g.dw + i, load(g.dw + i, lanes) + through * hat, lanes);
    const F8 v = through * w;
    sum_v = sum_v + v;
    sum_hat_v = fma(v, hat, sum_hat_v);
    store(g.dh + i, v, lanes);
  });
  const float size = static_cast<float>(x.size);
  const F8 mean_v = splat(add_lanes(sum_v) / size);
  const F8 mean_hat_v = splat(add_lanes(sum_hat_v) / size);
  for_lanes(x.size, [&](int64_t i, int64_t lanes) {
    const F8 hat = (load(x.h + i, lanes) - m) * r;
    store(g.dh + i, r * (load(g.dh + i, lanes) - mean_v - hat * mean_hat_v), lanes);
  });
}

}  // namespace

Status CpuBackend::head_norm(Stream&, const HeadNormArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("head_norm", {&a.h_TNU, &a.o_TNU, &a.w_NU, &a.y_TNU, &a.mean_TN, &a.rstd_TN}));
  const int64_t tokens = a.h_TNU.dims[0];
  const int64_t heads = a.h_TNU.dims[1];
  const int64_t size = a.h_TNU.dims[2];
  pool_.run(div_ceil(tokens, kNormRowBlock), [&](int64_t piece, int) {
    const int64_t end = std::min(tokens, (piece + 1) * kNormRowBlock);
    for (int64_t t = piece * kNormRowBlock; t < end; ++t) {
      for (int64_t n = 0; n < heads; ++n) {
        const Row row{a.h_TNU.f32() + t * a.h_TNU.row_stride + n * size,
                      a.o_TNU.f32() + t * a.o_TNU.row_stride + n * size, a.w_NU.f32() + n * size,
                      size};
        forward_row(row, a.eps, a.y_TNU.f32() + t * a.y_TNU.row_stride + n * size,
                    a.mean_TN.f32() + t * heads + n, a.rstd_TN.f32() + t * heads + n);
      }
    }
  });
  return ok();
}

Status CpuBackend::head_norm_backward(Stream&, const HeadNormBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(
      need_data("head_norm_backward", {&a.h_TNU, &a.o_TNU, &a.w_NU, &a.mean_TN, &a.rstd_TN,
                                       &a.dy_TNU, &a.dh_TNU, &a.do_TNU, &a.dw_NU, &a.scratch}));
  const int64_t tokens = a.h_TNU.dims[0];
  const int64_t heads = a.h_TNU.dims[1];
  const int64_t size = a.h_TNU.dims[2];
  const int64_t blocks = div_ceil(tokens, kNormRowBlock);
  pool_.run(blocks, [&](int64_t piece, int) {
    float* dw = a.scratch.f32() + piece * heads * size;
    fill_with(dw, 0.0F, heads * size);
    const int64_t end = std::min(tokens, (piece + 1) * kNormRowBlock);
    for (int64_t t = piece * kNormRowBlock; t < end; ++t) {
      for (int64_t n = 0; n < heads; ++n) {
        const Row row{a.h_TNU.f32() + t * a.h_TNU.row_stride + n * size,
                      a.o_TNU.f32() + t * a.o_TNU.row_stride + n * size, a.w_NU.f32() + n * size,
                      size};
        RowGrad g;
        g.dy = a.dy_TNU.f32() + t * a.dy_TNU.row_stride + n * size;
        g.dh = a.dh_TNU.f32() + t * a.dh_TNU.row_stride + n * size;
        g.d_o = a.do_TNU.f32() + t * a.do_TNU.row_stride + n * size;
        g.dw = dw + n * size;
        g.mean = a.mean_TN.f32()[t * heads + n];
        g.rstd = a.rstd_TN.f32()[t * heads + n];
        backward_row(row, g);
      }
    }
  });
  fold_rows(pool_, a.scratch.f32(), blocks, heads * size, a.dw_NU.f32());
  return ok();
}

}  // namespace swax::cpu
