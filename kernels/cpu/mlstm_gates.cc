// Gate pre-activations, soft cap and their backward. N is small, so these are dot products and not
// a matrix product.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"
#include "proto/base/ids.h"

namespace swax::cpu {
namespace {

constexpr int64_t kTokenBlock = 32;
constexpr int64_t kColumnBlock = 64;

float capped(float z, float cap) { return cap > 0.0F ? cap * tanh1(z / cap) : z; }

float cap_slope(float value, float cap) {
  if (!(cap > 0.0F)) return 1.0F;
  const float ratio = value / cap;
  return (1.0F - ratio) * (1.0F + ratio);
}

// Columns [col, col + cols) of the weight gradients: tokens in rising order.
void weight_columns(const MlstmGatesBackwardArgs& a, int64_t col, int64_t cols) {
  const int64_t heads = a.wi_ND.dims[0];
  for (int64_t n = 0; n < heads; ++n) {
    fill_with(a.dwi_ND.f32() + n * a.dwi_ND.row_stride + col, 0.0F, cols);
    fill_with(a.dwf_ND.f32() + n * a.dwf_ND.row_stride + col, 0.0F, cols);
  }
  for (int64_t t = 0; t < a.x_TD.dims[0]; ++t) {
    const float* x = a.x_TD.f32() + t * a.x_TD.row_stride + col;
    for (int64_t n = 0; n < heads; ++n) {
      add_scaled(a.dwi_ND.f32() + n * a.dwi_ND.row_stride + col, a.di_TN.f32()[t * heads + n], x,
                 cols);
      add_scaled(a.dwf_ND.f32() + n * a.dwf_ND.row_stride + col, a.df_TN.f32()[t * heads + n], x,
                 cols);
    }
  }
}

}  // namespace

Status CpuBackend::mlstm_gates(Stream&, const MlstmGatesArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(
      need_data("mlstm_gates", {&a.x_TD, &a.wi_ND, &a.wf_ND, &a.bi_N, &a.bf_N, &a.i_TN, &a.f_TN}));
  const int64_t tokens = a.x_TD.dims[0];
  const int64_t dim = a.x_TD.dims[1];
  const int64_t heads = a.wi_ND.dims[0];
  pool_.run(div_ceil(tokens, kTokenBlock), [&](int64_t piece, int) {
    const int64_t end = std::min(tokens, (piece + 1) * kTokenBlock);
    for (int64_t t = piece * kTokenBlock; t < end; ++t) {
      const float* x = a.x_TD.f32() + t * a.x_TD.row_stride;
      for (int64_t n = 0; n < heads; ++n) {
        const float i = dot(x, a.wi_ND.f32() + n * a.wi_ND.row_stride, dim) + a.bi_N.f32()[n];
        const float f = dot(x, a.wf_ND.f32() + n * a.wf_ND.row_stride, dim) + a.bf_N.f32()[n];
        a.i_TN.f32()[t * heads + n] = capped(i, a.cap);
        a.f_TN.f32()[t * heads + n] = capped(f, a.cap);
      }
    }
  });
  return ok();
}

Status CpuBackend::mlstm_gates_backward(Stream&, const MlstmGatesBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("mlstm_gates_backward",
                     {&a.x_TD, &a.wi_ND, &a.wf_ND, &a.i_TN, &a.f_TN, &a.di_TN, &a.df_TN, &a.dx_TD,
                      &a.dwi_ND, &a.dwf_ND, &a.dbi_N, &a.dbf_N}));
  const int64_t tokens = a.x_TD.dims[0];
  const int64_t dim = a.x_TD.dims[1];
  const int64_t heads = a.wi_ND.dims[0];
  for (int64_t n = 0; n < heads; ++n) {
    float sum_i = 0.0F;
    float sum_f = 0.0F;
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t at = t * heads + n;
      a.di_TN.f32()[at] *= cap_slope(a.i_TN.f32()[at], a.cap);
      a.df_TN.f32()[at] *= cap_slope(a.f_TN.f32()[at], a.cap);
      sum_i += a.di_TN.f32()[at];
      sum_f += a.df_TN.f32()[at];
    }
    a.dbi_N.f32()[n] = sum_i;
    a.dbf_N.f32()[n] = sum_f;
  }
  pool_.run(div_ceil(dim, kColumnBlock), [&](int64_t piece, int) {
    const int64_t col = piece * kColumnBlock;
    weight_columns(a, col, std::min(kColumnBlock, dim - col));
  });
  pool_.run(div_ceil(tokens, kTokenBlock), [&](int64_t piece, int) {
    const int64_t end = std::min(tokens, (piece + 1) * kTokenBlock);
    for (int64_t t = piece * kTokenBlock; t < end; ++t) {
      float* dx = a.dx_TD.f32() + t * a.dx_TD.row_stride;
      for (int64_t n = 0; n < heads; ++n) {
        add_scaled(dx, a.di_TN.f32()[t * heads + n], a.wi_ND.f32() + n * a.wi_ND.row_stride, dim);
        add_scaled(dx, a.df_TN.f32()[t * heads + n], a.wf_ND.f32() + n * a.wf_ND.row_stride, dim);
      }
    }
  });
  return ok();
}

}  // namespace swax::cpu
