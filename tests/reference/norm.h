// RMSNorm (arXiv 1910.07467) and the per-head LayerNorm with output gate of the mLSTM layer
// (model-spec 1.3, 7).
#pragma once

#include "tests/reference/types.h"

namespace swax::reference {

struct RmsNormOut {
  Vec y_TD;
  Vec rstd_T;  // 1 / sqrt(mean_D(x^2) + eps)
};
// y = x * rstd * w.
RmsNormOut rms_norm(View x_TD, View w_D, double eps);

struct RmsNormGrad {
  Vec dx_TD;
  Vec dw_D;
};
// dx = r (w dy) - x r^3 mean(x w dy);  dw = sum_T dy x r.
RmsNormGrad rms_norm_backward(View x_TD, View w_D, View dy_TD, double eps,
                              Canary canary = Canary::kNone);

struct HeadNormSizes {
  int64_t tokens, heads, dim;
};
struct HeadNormOut {
  Vec y_THV;
  Vec mean_TH;
  Vec rstd_TH;  // 1 / sqrt(biased variance + eps)
};
// y = sigmoid(gate) * (h - mean) * rstd * w, mean and variance over V inside a head, no bias.
// gate_THV is the pre-activation; an empty view means "no gate" (factor 1).
HeadNormOut head_norm(const HeadNormSizes& s, View h_THV, View w_HV, View gate_THV, double eps);

struct HeadNormGrad {
  Vec dh_THV;
  Vec dw_HV;
  Vec dgate_THV;  // of the pre-activation; empty without gate
};
HeadNormGrad head_norm_backward(const HeadNormSizes& s, View h_THV, View w_HV, View gate_THV,
                                View dy_THV, double eps);

}  // namespace swax::reference
