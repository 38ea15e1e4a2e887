// Checks of the arguments and the choice of the form.
#include <initializer_list>

#include "kernels/cuda/swa_simple.h"
#include "kernels/cuda/swa_tuned.h"
#include "kernels/spec/checks.h"

namespace swax::cuda {
namespace {

// All of one dtype, f32 or bf16, with memory.
Status check_values(const char* op, std::initializer_list<const Tensor*> values) {
  const DType dtype = (*values.begin())->dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return invalid_argument(std::string(op) + ": dtype is " + dtype_name(dtype) +
                            ": must be f32 or bf16");
  }
  for (const Tensor* t : values) {
    if (t->dtype != dtype)
      return invalid_argument(std::string(op) + ": q, k, v, o differ in dtype");
    if (t->data == nullptr) return invalid_argument(std::string(op) + ": a tensor has no memory");
  }
  return ok();
}

Status check_shape(const char* op, const Tensor& q, const Tensor& k, const Tensor& lse,
                   const Tensor& doc_start, int64_t window) {
  if (lse.dtype != DType::kF32 || lse.elements() != q.dims[0] * q.dims[1]) {
    return invalid_argument(std::string(op) + ": lse_TH must be f32 [T,H]");
  }
  if (!doc_start.empty() && (doc_start.dtype != DType::kI32 || doc_start.dims[0] != q.dims[0])) {
    return invalid_argument(std::string(op) + ": doc_start_T must be i32 [T]");
  }
  if (k.dims[0] != q.dims[0] || k.dims[1] < 1 || q.dims[1] % k.dims[1] != 0 ||
      k.dims[2] != q.dims[2]) {
    return invalid_argument(std::string(op) + ": k_TGE does not fit q_THE");
  }
  constexpr int64_t kSizeMax = 1024;  // two vectors of it for each warp lie in shared memory
  if (q.dims[2] > kSizeMax) return spec::bad_value(op, "head size", q.dims[2], "at most 1024");
  if (window < 1) return spec::bad_value(op, "window", window, ">= 1");
  return ok();
}

}  // namespace

Status launch_swa(CUstream_st* stream, const SwaArgs& a, SwaForm form) {
  SWAX_TRY(check_values("swa", {&a.q_THE, &a.k_TGE, &a.v_TGE, &a.o_THE}));
  SWAX_TRY(check_shape("swa", a.q_THE, a.k_TGE, a.lse_TH, a.doc_start_T, a.window));
  if (form == SwaForm::kAuto && swa_tuned_takes(a)) return launch_swa_tuned(stream, a);
  return launch_swa_simple(stream, a);
}

Status launch_swa_backward(CUstream_st* stream, const SwaBackwardArgs& a, SwaForm form) {
  SWAX_TRY(check_values("swa_backward", {&a.q_THE, &a.k_TGE, &a.v_TGE, &a.o_THE, &a.do_THE,
                                         &a.dq_THE, &a.dk_TGE, &a.dv_TGE}));
  SWAX_TRY(check_shape("swa_backward", a.q_THE, a.k_TGE, a.lse_TH, a.doc_start_T, a.window));
  if (a.scratch.dtype != DType::kF32 ||
      a.scratch.elements() < swa_backward_scratch(a.q_THE.dims[0], a.q_THE.dims[1])) {
    return spec::bad_value("swa_backward", "scratch elements", a.scratch.elements(),
                           "f32 and at least swa_backward_scratch()");
  }
  if (form == SwaForm::kAuto && swa_tuned_takes(a)) return launch_swa_backward_tuned(stream, a);
  return launch_swa_backward_simple(stream, a);
}

}  // namespace swax::cuda
