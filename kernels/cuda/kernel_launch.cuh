// Launching kernels without the <<<>>> syntax, errors as Status, and element access for the two
// storage types. Threads: stateless.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <type_traits>

#include "kernels/cuda/check.h"

namespace swax::cuda {

constexpr size_t kSharedMax = 232448;  // bytes that a block may have

struct Launch {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  // Of a thread, where roles take registers from each other: a kernel compiled with another number
  // is refused, since with fewer its roles would wait for ever. 0: any number.
  int registers = 0;
};

template <typename... Params>
Status launch(const char* op, const Launch& l, void (*kernel)(Params...),
              std::type_identity_t<Params>... args) {
  const void* entry = reinterpret_cast<const void*>(kernel);
  constexpr size_t kDefaultShared = 48 * 1024;  // more must be asked for
  if (l.shared_bytes > kDefaultShared) {
    SWAX_TRY(status_of(cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(l.shared_bytes)),
                       op, "cudaFuncSetAttribute"));
  }
  if (l.registers != 0) SWAX_TRY(need_registers(op, entry, l.registers));
  void* pointers[] = {static_cast<void*>(&args)...};
  return status_of(cudaLaunchKernel(entry, l.grid, l.block, pointers, l.shared_bytes, l.stream), op,
                   "cudaLaunchKernel");
}

__device__ inline float load_f32(const float* p) { return *p; }
__device__ inline float load_f32(const __nv_bfloat16* p) { return __bfloat162float(*p); }
__device__ inline void store_f32(float* p, float x) { *p = x; }
__device__ inline void store_f32(__nv_bfloat16* p, float x) { *p = __float2bfloat16_rn(x); }

// The value as an operand of a matrix product of T: rounded to bf16 there, as it is in f32.
template <typename T>
__device__ inline float as_operand(float x);
template <>
__device__ inline float as_operand<float>(float x) {
  return x;
}
template <>
__device__ inline float as_operand<__nv_bfloat16>(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

// Sum over the warp in a fixed tree; every lane gets it.
__device__ inline float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffU, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, step));
  return x;
}

}  // namespace swax::cuda
