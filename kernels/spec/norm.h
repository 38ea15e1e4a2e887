// RMSNorm: y = x * r * w, r_T = 1 / sqrt(mean_D(x^2) + eps). Source: arXiv 1910.07467. y may be
// x in forward. Backward: dx (+)= r (w dy) - x r^3 mean_D(x w dy); dw_D = sum_T dy x r, written,
// rows added in the fixed blocks of kNormRowBlock rows (left fold inside a block, left fold over
// blocks). accumulate_dx adds to dx_TD (the residual path). dx may be dy, not x. Else they lie
// apart.
//
// Head norm with output gate (mLSTM): y = sigmoid(o) * (LayerNorm_U(h) * w), LayerNorm per head
// over U with weight w_NU and no bias, mean_TN and rstd_TN saved. Source: model-spec 1.3
// (MultiHeadLayerNorm of xLSTM-7B). Backward: do = dy * LN * s(1-s); dyn = dy * s; dx = rstd (dyh -
// mean dyh - yhat mean(dyh yhat)); dw as for RMSNorm. All f32 on the CPU. Bounds: K = row length
// (dw: the number of rows), c = 3 forward, 6 backward.
#pragma once

#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax {

constexpr int64_t kNormRowBlock = 64;

struct RmsNormArgs {
  Tensor x_TD;
  Tensor w_D;
  Tensor y_TD;
  Tensor rstd_T;  // written
  float eps = 0.0F;
};
// Re-forms y from x and the saved rstd (light recompute): the same bits as the forward pass.
struct RmsNormApplyArgs {
  Tensor x_TD;
  Tensor w_D;
  Tensor rstd_T;
  Tensor y_TD;
};
struct RmsNormBackwardArgs {
  Tensor x_TD;
  Tensor w_D;
  Tensor rstd_T;
  Tensor dy_TD;
  Tensor dx_TD;
  Tensor dw_D;
  Tensor scratch;  // f32, rms_norm_backward_scratch(T, D) elements
  bool accumulate_dx = false;
};
struct HeadNormArgs {
  Tensor h_TNU;
  Tensor o_TNU;  // gate pre-activation
  Tensor w_NU;   // [N*U]
  Tensor y_TNU;
  Tensor mean_TN;
  Tensor rstd_TN;
  float eps = 0.0F;
};
struct HeadNormBackwardArgs {
  Tensor h_TNU;
  Tensor o_TNU;
  Tensor w_NU;
  Tensor mean_TN;
  Tensor rstd_TN;
  Tensor dy_TNU;
  Tensor dh_TNU;
  Tensor do_TNU;
  Tensor dw_NU;
  Tensor scratch;  // f32, rms_norm_backward_scratch(T, N*U) elements
};
constexpr int64_t rms_norm_backward_scratch(int64_t tokens, int64_t width) {
  return ((tokens + kNormRowBlock - 1) / kNormRowBlock) * width;
}
Status validate(const RmsNormArgs& a);
Status validate(const RmsNormApplyArgs& a);
Status validate(const RmsNormBackwardArgs& a);
Status validate(const HeadNormArgs& a);
Status validate(const HeadNormBackwardArgs& a);

}  // namespace swax
