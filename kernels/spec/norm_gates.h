// RMSNorm of an mLSTM layer together with the gates that read it: rms_norm, then mlstm_gates of its
// y; backward: mlstm_gates_backward, then rms_norm_backward of what it added to. A backend makes
// the two calls (the CPU: their bits) or has one that reads x, y and the gradients once. The gates
// see y as it is stored, rounded to its type. Bounds: those of the two ops (kernels/spec/norm.h,
// mlstm.h).
#pragma once

#include "kernels/spec/mlstm.h"
#include "kernels/spec/norm.h"
#include "proto/base/status.h"

namespace swax {

struct RmsNormGatesArgs {
  RmsNormArgs norm;
  MlstmGatesArgs gates;  // x_TD: norm.y_TD
};
struct RmsNormGatesBackwardArgs {
  // x_TD: what rms_norm gave for norm.x_TD, w_D and rstd_T; a backend may form it again instead.
  MlstmGatesBackwardArgs gates;
  // dy_TD: gates.dx_TD, without the gates' share; what it holds afterwards is not specified.
  RmsNormBackwardArgs norm;
};
Status validate(const RmsNormGatesArgs& a);
Status validate(const RmsNormGatesBackwardArgs& a);

}  // namespace swax
