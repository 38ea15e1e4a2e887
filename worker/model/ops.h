// The few calls every layer repeats: linear layers with their gradients, and finding a unit's
// tensors by name. Internal to worker/model. Legend: O out, I in.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "worker/model/layer.h"

namespace swax {

// Position of the tensor `name` in UnitTensors of its unit; the name must be in the table.
int unit_index(const ModelShape& shape, std::string_view name);
// "layers.3." + name.
int layer_index(const ModelShape& shape, int64_t layer, std::string_view name);

inline Tensor weight(const StepCtx& ctx, int index) {
  return ctx.weights->tensors[static_cast<size_t>(index)];
}
inline Tensor grad(const StepCtx& ctx, int index) {
  return ctx.grads->tensors[static_cast<size_t>(index)];
}
// Scratch of the value type, and of the same dimensions as another tensor.
inline Tensor take_values(StepCtx& ctx, std::initializer_list<int64_t> dims) {
  return ctx.arena.take(ctx.precision.values, dims);
}
inline Tensor take_like(StepCtx& ctx, const Tensor& t) {
  return ctx.arena.take(t.dtype, std::span<const int64_t>(t.dims, static_cast<size_t>(t.rank)));
}
inline Tensor as_rows(const Tensor& x) {
  Tensor rows = Tensor::of(x.data, x.dtype, {x.dims[0], x.row_elements()});
  rows.row_stride = x.row_stride;
  return rows;
}
// Columns [begin, begin + product of dims) of x_TC as [T, dims...].
Tensor columns(const Tensor& x_TC, int64_t begin, std::initializer_list<int64_t> dims);

enum class Into { kWrite, kAdd };
// y_TO (+)= x_TI w_OI^T. Tensors of more than two dimensions count as rows of dimension 0.
Status linear(StepCtx& ctx, Tensor x_TI, Tensor w_OI, Tensor y_TO, Into into = Into::kWrite);
// y_TO = x_TI w_OI^T + from_TO.
Status linear_onto(StepCtx& ctx, Tensor x_TI, Tensor w_OI, Tensor from_TO, Tensor y_TO);
// dx_TI (+)= dy_TO w_OI.
Status linear_dx(StepCtx& ctx, Tensor dy_TO, Tensor w_OI, Tensor dx_TI, Into into = Into::kWrite);
// dw_OI (+)= dy_TO^T x_TI.
Status linear_dw(StepCtx& ctx, Tensor dy_TO, Tensor x_TI, Tensor dw_OI, Into into = Into::kWrite);

// The same for several weights of one input, which lie one behind the other in their unit, and
// outputs that are neighbouring columns of one tensor: one product each where ctx.precision joins
// them, else one a weight. dx is the sum over all weights.
using TensorList = std::initializer_list<Tensor>;
Status linears(StepCtx& ctx, Tensor x_TI, TensorList w_OI, TensorList y_TO);
Status linears_dx(StepCtx& ctx, TensorList dy_TO, TensorList w_OI, Tensor dx_TI);
Status linears_dw(StepCtx& ctx, TensorList dy_TO, Tensor x_TI, TensorList dw_OI);

// What the norm of a layer takes, alone or with the ops that a backend joins to it.
RmsNormArgs norm_args(const StepCtx& ctx, Tensor x_TD, Tensor w_D, Tensor y_TD, Tensor rstd_T);
Status norm_forward(StepCtx& ctx, Tensor x_TD, Tensor w_D, Tensor y_TD, Tensor rstd_T);
// dx_TD += gradient through the norm: dx_TD holds the gradient of the residual path before.
// Scratch comes from the arena.
struct NormBackward {
  Tensor x_TD, w_D, rstd_T, dy_TD, dx_TD, dw_D;
};
Status norm_backward(StepCtx& ctx, const NormBackward& n);
// Its scratch stays in the arena until the caller's scope ends.
RmsNormBackwardArgs norm_backward_args(StepCtx& ctx, const NormBackward& n);

}  // namespace swax
