// Checks of the arguments and the choice of the form.
#include "kernels/cuda/mlstm.h"

#include <initializer_list>
#include <string>

#include "kernels/cuda/mlstm_simple.h"
#include "kernels/cuda/mlstm_tuned.h"
#include "kernels/spec/checks.h"

namespace swax::cuda {
namespace {

Status check_values(const char* op, std::initializer_list<const Tensor*> values) {
  const DType dtype = (*values.begin())->dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return invalid_argument(std::string(op) + ": dtype is " + dtype_name(dtype) +
                            ": must be f32 or bf16");
  }
  for (const Tensor* t : values) {
    if (t->dtype != dtype)
      return invalid_argument(std::string(op) + ": q, k, v, h differ in dtype");
    if (t->data == nullptr) return invalid_argument(std::string(op) + ": a tensor has no memory");
  }
  return ok();
}

template <typename Args>
Status check(const char* op, const Args& a, int64_t scratch) {
  const int64_t n = a.q_TNK.dims[1];
  const int64_t k = a.q_TNK.dims[2];
  const int64_t u = a.v_TNU.dims[2];
  if (a.chunk < 1 || a.chunk > kMlstmChunkMax) {
    return spec::bad_value(op, "chunk", a.chunk, "1..kMlstmChunkMax");
  }
  const int64_t c = mlstm_chunks(a.q_TNK.dims[0], a.chunk);
  const bool bf16 = a.states_CNKU1.dtype == DType::kBF16;
  const int64_t states = bf16 ? mlstm_bf16_states(c, n, k, u) : (c + 1) * n * k * (u + 1);
  if ((bf16 && a.q_TNK.dtype != DType::kBF16) || (!bf16 && a.states_CNKU1.dtype != DType::kF32) ||
      a.states_CNKU1.elements() < states) {
    return spec::bad_value(op, "states elements", a.states_CNKU1.elements(),
                           "f32 [chunks + 1,N,K,U + 1], or bf16 (values too) with U + 2");
  }
  if (a.scratch.dtype != DType::kF32 || a.scratch.elements() < scratch) {
    return spec::bad_value(op, "scratch elements", a.scratch.elements(),
                           "f32 and at least what the scratch function of the op says");
  }
  return ok();
}

}  // namespace

Status launch_mlstm(CUstream_st* stream, const MlstmArgs& a, MlstmForm form) {
  SWAX_TRY(check_values("mlstm", {&a.q_TNK, &a.k_TNK, &a.v_TNU, &a.h_TNU}));
  SWAX_TRY(check(
      "mlstm", a,
      mlstm_scratch(a.q_TNK.dims[0], a.q_TNK.dims[1], a.q_TNK.dims[2], a.v_TNU.dims[2], a.chunk)));
  if (form == MlstmForm::kAuto && mlstm_tuned_takes(a)) return launch_mlstm_tuned(stream, a);
  return launch_mlstm_simple(stream, a);
}

Status launch_mlstm_backward(CUstream_st* stream, const MlstmBackwardArgs& a, MlstmForm form) {
  SWAX_TRY(check_values("mlstm_backward", {&a.q_TNK, &a.k_TNK, &a.v_TNU, &a.h_TNU, &a.dh_TNU,
                                           &a.dq_TNK, &a.dk_TNK, &a.dv_TNU}));
  SWAX_TRY(check("mlstm_backward", a,
                 mlstm_backward_scratch(a.q_TNK.dims[0], a.q_TNK.dims[1], a.q_TNK.dims[2],
                                        a.v_TNU.dims[2], a.chunk)));
  if (form == MlstmForm::kAuto && mlstm_tuned_takes(a)) {
    return launch_mlstm_backward_tuned(stream, a);
  }
  return launch_mlstm_backward_simple(stream, a);
}

}  // namespace swax::cuda
