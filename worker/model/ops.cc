#include "worker/model/ops.h"

#include <algorithm>
#include <string>

#include "proto/base/text.h"
#include "worker/model/recompute.h"

namespace swax {

int unit_index(const ModelShape& shape, std::string_view name) {
  const int tensor = shape.find(std::string(name));
  SWAX_CHECK(tensor >= 0);
  const std::vector<int> unit = shape.unit_tensors(shape.tensors[static_cast<size_t>(tensor)].unit);
  const auto it = std::find(unit.begin(), unit.end(), tensor);
  SWAX_CHECK(it != unit.end());
  return static_cast<int>(it - unit.begin());
}

int layer_index(const ModelShape& shape, int64_t layer, std::string_view name) {
  return unit_index(shape, "layers." + to_text(layer) + "." + std::string(name));
}

Status linear(StepCtx& ctx, Tensor x_TI, Tensor w_OI, Tensor y_TO, Into into) {
  return ctx.backend.gemm(ctx.stream, {.a = as_rows(x_TI),
                                       .b = w_OI,
                                       .c = as_rows(y_TO),
                                       .trans_a = false,
                                       .trans_b = true,
                                       .accumulate = into == Into::kAdd});
}

Status linear_dx(StepCtx& ctx, Tensor dy_TO, Tensor w_OI, Tensor dx_TI, Into into) {
  return ctx.backend.gemm(ctx.stream, {.a = as_rows(dy_TO),
                                       .b = w_OI,
                                       .c = as_rows(dx_TI),
                                       .trans_a = false,
                                       .trans_b = false,
                                       .accumulate = into == Into::kAdd});
}

Status linear_dw(StepCtx& ctx, Tensor dy_TO, Tensor x_TI, Tensor dw_OI, Into into) {
  return ctx.backend.gemm(ctx.stream, {.a = as_rows(dy_TO),
                                       .b = as_rows(x_TI),
                                       .c = dw_OI,
                                       .trans_a = true,
                                       .trans_b = false,
                                       .accumulate = into == Into::kAdd});
}

Status norm_forward(StepCtx& ctx, Tensor x_TD, Tensor w_D, Tensor y_TD, Tensor rstd_T) {
  return ctx.backend.rms_norm(ctx.stream, {.x_TD = x_TD,
                                           .w_D = w_D,
                                           .y_TD = y_TD,
                                           .rstd_T = rstd_T,
                                           .eps = static_cast<float>(ctx.shape.norm_eps)});
}

Status norm_backward(StepCtx& ctx, const NormBackward& n) {
  const ScratchScope scope(ctx);
  const int64_t elements = rms_norm_backward_scratch(n.x_TD.dims[0], n.x_TD.dims[1]);
  return ctx.backend.rms_norm_backward(ctx.stream,
                                       {.x_TD = n.x_TD,
                                        .w_D = n.w_D,
                                        .rstd_T = n.rstd_T,
                                        .dy_TD = n.dy_TD,
                                        .dx_TD = n.dx_TD,
                                        .dw_D = n.dw_D,
                                        .scratch = ctx.arena.take(DType::kF32, {elements}),
                                        .accumulate_dx = true});
}

}  // namespace swax
