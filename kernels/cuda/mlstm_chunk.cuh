// What the kernels of the tuned mLSTM form share: weights of pairs, scans over the tokens of a
// chunk, vector loads. Internal to kernels/cuda.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/mlstm_tuned.h"

namespace swax::cuda {

__device__ __forceinline__ float pair_weight(MlstmLog row, MlstmLog column) {
  return exp2_fast((row.whole + column.whole) + (row.rest + column.rest));
}

struct MlstmAdd {
  __device__ double operator()(double a, double b) const { return a + b; }
};

// Inclusive scan over the kMlstmChunk threads of the block in a fixed tree: value[t] = f(value[t -
// d], value[t]) for d = 1, 2, 4, ... while t - d >= low. shared: a value for each thread.
template <typename T, typename F>
__device__ T mlstm_scan(T value, int low, T* shared, const F& f) {
  const int t = static_cast<int>(threadIdx.x);
  for (int d = 1; d < kMlstmChunk; d *= 2) {
    shared[t] = value;
    __syncthreads();
    if (t - d >= low) value = f(shared[t - d], value);
    __syncthreads();
  }
  return value;
}

// 8 bf16 from 16 aligned bytes.
struct Bf16x8 {
  uint4 bits;
  __device__ float get(int i) const {
    const uint32_t word = i / 2 == 0 ? bits.x : i / 2 == 1 ? bits.y : i / 2 == 2 ? bits.z : bits.w;
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000U);
  }
};

__device__ inline Bf16x8 load8(const __nv_bfloat16* p) {
  return {*reinterpret_cast<const uint4*>(p)};
}

}  // namespace swax::cuda
