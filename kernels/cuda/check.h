// Errors of the CUDA runtime as Status. A CUDA error is never an argument error of ours (validate()
// came first), so it means a lost device or a wrong kernel: kInternal with the call and the op.
// Out of memory is kResourceExhausted. An error is told once: status_of() and last_launch() clear
// the error state of the calling thread, but for what is sticky. Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <initializer_list>

#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax::cuda {

// `where`: the op or the step of the backend; `call`: the CUDA function.
Status status_of(cudaError_t error, const char* where, const char* call);
// After a kernel launch: its configuration error, or an error of earlier work that is sticky.
Status last_launch(const char* where);
// kInvalidArgument when one of them has a shape but no memory. Absent optional tensors are fine.
Status need_data(const char* op, std::initializer_list<const Tensor*> tensors);
// kInternal when the kernel was compiled with another number of registers a thread.
Status need_registers(const char* op, const void* kernel, int registers);

}  // namespace swax::cuda

// SWAX_CUDA_TRY(where, cudaFoo(...)): returns the status from this function when the call failed.
#define SWAX_CUDA_TRY(where, call) SWAX_TRY(::swax::cuda::status_of((call), (where), #call))
