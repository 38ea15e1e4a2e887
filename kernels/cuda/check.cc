#include "kernels/cuda/check.h"

#include <string>

#include "proto/base/text.h"

namespace swax::cuda {

Status status_of(cudaError_t error, const char* where, const char* call) {
  if (error == cudaSuccess) return ok();
  cudaGetLastError();  // or it would show as the error of this thread's next launch
  std::string text = std::string(where) + ": " + call + ": " + cudaGetErrorName(error) + " (" +
                     cudaGetErrorString(error) + ")";
  if (error == cudaErrorMemoryAllocation) return resource_exhausted(std::move(text));
  return internal_error(std::move(text));
}

Status last_launch(const char* where) {
  return status_of(cudaGetLastError(), where, "kernel launch");
}

Status need_registers(const char* op, const void* kernel, int registers) {
  cudaFuncAttributes found{};
  SWAX_TRY(status_of(cudaFuncGetAttributes(&found, kernel), op, "cudaFuncGetAttributes"));
  if (found.numRegs == registers) return ok();
  return internal_error(std::string(op) + ": compiled with " + to_text(int64_t{found.numRegs}) +
                        " registers a thread: its roles need " + to_text(int64_t{registers}));
}

Status need_data(const char* op, std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* t : tensors) {
    if (!t->empty() && t->data == nullptr) {
      return invalid_argument(std::string(op) + ": a tensor has no memory");
    }
  }
  return ok();
}

}  // namespace swax::cuda
