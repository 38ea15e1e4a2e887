#include "kernels/spec/norm_gates.h"

#include <algorithm>

namespace swax {
namespace {

bool same(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rank == b.rank &&
         std::equal(a.dims, a.dims + a.rank, b.dims) && a.row_stride == b.row_stride;
}

}  // namespace

Status validate(const RmsNormGatesArgs& a) {
  SWAX_TRY(validate(a.norm));
  SWAX_TRY(validate(a.gates));
  if (same(a.gates.x_TD, a.norm.y_TD)) return ok();
  return invalid_argument("rms_norm_gates: x_TD of the gates must be y_TD of the norm");
}

Status validate(const RmsNormGatesBackwardArgs& a) {
  SWAX_TRY(validate(a.gates));
  SWAX_TRY(validate(a.norm));
  if (same(a.gates.dx_TD, a.norm.dy_TD)) return ok();
  return invalid_argument("rms_norm_gates_backward: dx_TD of the gates must be dy_TD of the norm");
}

}  // namespace swax
