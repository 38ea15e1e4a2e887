#include "worker/model/ops.h"

#include <algorithm>
#include <span>
#include <string>

#include "proto/base/text.h"
#include "worker/model/recompute.h"

namespace swax {
namespace {

// `part` begins `elements` elements behind the beginning of `first`.
bool follows(const Tensor& part, const Tensor& first, int64_t elements) {
  return part.data == static_cast<char*>(first.data) + elements * dtype_bytes(first.dtype);
}

// The matrix of all rows of `parts`. That they are joined decides bits, so it must be possible.
Tensor stacked(TensorList parts) {
  Tensor all = *parts.begin();
  for (const Tensor& part : std::span(parts).subspan(1)) {
    SWAX_CHECK(part.dims[1] == all.dims[1]);
    SWAX_CHECK(follows(part, all, all.elements()));
    all.dims[0] += part.dims[0];
  }
  return all;
}

// The matrix of all columns.
Tensor beside(TensorList parts) {
  Tensor all = as_rows(*parts.begin());
  for (const Tensor& part : std::span(parts).subspan(1)) {
    SWAX_CHECK(part.row_stride == all.row_stride);
    SWAX_CHECK(follows(part, all, all.dims[1]));
    all.dims[1] += part.row_elements();
  }
  return all;
}

}  // namespace

Tensor columns(const Tensor& x_TC, int64_t begin, std::initializer_list<int64_t> dims) {
  Tensor t = x_TC;
  for (const int64_t d : dims) t.dims[t.rank++ - 1] = d;
  --t.rank;
  SWAX_CHECK(begin >= 0);
  SWAX_CHECK(begin + t.row_elements() <= x_TC.dims[1]);
  t.data = static_cast<char*>(t.data) + begin * dtype_bytes(t.dtype);
  return t;
}

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

Status linear_onto(StepCtx& ctx, Tensor x_TI, Tensor w_OI, Tensor from_TO, Tensor y_TO) {
  return ctx.backend.gemm(ctx.stream, {.a = as_rows(x_TI),
                                       .b = w_OI,
                                       .c = as_rows(y_TO),
                                       .trans_a = false,
                                       .trans_b = true,
                                       .addend = as_rows(from_TO)});
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

Status linears(StepCtx& ctx, Tensor x_TI, TensorList w_OI, TensorList y_TO) {
  if (ctx.precision.joined) return linear(ctx, x_TI, stacked(w_OI), beside(y_TO));
  const Tensor* y = y_TO.begin();
  for (const Tensor& w : w_OI) SWAX_TRY(linear(ctx, x_TI, w, *y++));
  return ok();
}

Status linears_dx(StepCtx& ctx, TensorList dy_TO, TensorList w_OI, Tensor dx_TI) {
  if (ctx.precision.joined) return linear_dx(ctx, beside(dy_TO), stacked(w_OI), dx_TI);
  const Tensor* dy = dy_TO.begin();
  Into into = Into::kWrite;
  for (const Tensor& w : w_OI) {
    SWAX_TRY(linear_dx(ctx, *dy++, w, dx_TI, into));
    into = Into::kAdd;
  }
  return ok();
}

Status linears_dw(StepCtx& ctx, TensorList dy_TO, Tensor x_TI, TensorList dw_OI) {
  if (ctx.precision.joined) return linear_dw(ctx, beside(dy_TO), x_TI, stacked(dw_OI));
  const Tensor* dy = dy_TO.begin();
  for (const Tensor& dw : dw_OI) SWAX_TRY(linear_dw(ctx, *dy++, x_TI, dw));
  return ok();
}

RmsNormArgs norm_args(const StepCtx& ctx, Tensor x_TD, Tensor w_D, Tensor y_TD, Tensor rstd_T) {
  return {.x_TD = x_TD,
          .w_D = w_D,
          .y_TD = y_TD,
          .rstd_T = rstd_T,
          .eps = static_cast<float>(ctx.shape.norm_eps)};
}

Status norm_forward(StepCtx& ctx, Tensor x_TD, Tensor w_D, Tensor y_TD, Tensor rstd_T) {
  return ctx.backend.rms_norm(ctx.stream, norm_args(ctx, x_TD, w_D, y_TD, rstd_T));
}

RmsNormBackwardArgs norm_backward_args(StepCtx& ctx, const NormBackward& n) {
  const int64_t elements = rms_norm_backward_scratch(n.x_TD.dims[0], n.x_TD.dims[1]);
  return {.x_TD = n.x_TD,
          .w_D = n.w_D,
          .rstd_T = n.rstd_T,
          .dy_TD = n.dy_TD,
          .dx_TD = n.dx_TD,
          .dw_D = n.dw_D,
          .scratch = ctx.arena.take(DType::kF32, {elements}),
          .accumulate_dx = true};
}

Status norm_backward(StepCtx& ctx, const NormBackward& n) {
  const ScratchScope scope(ctx);
  return ctx.backend.rms_norm_backward(ctx.stream, norm_backward_args(ctx, n));
}

}  // namespace swax
