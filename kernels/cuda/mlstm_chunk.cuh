// What the kernels of the tuned mLSTM form share: weights of pairs, scans over the tokens of a
// chunk, vector loads. Internal to kernels/cuda.
#pragma once

#include "kernels/cuda/hopper_ring.cuh"
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

// A block of the kernel that gives rows of h: a half of the tokens of a chunk, and the keys that
// they see, in tiles.
struct MlstmBlock {
  int chunk, head, half;
  int token;  // first row of the block
  int tiles;
};

// Body of this kernel. produce(shared, block): one thread; consume(shared, block): the computing
// warpgroups.
template <typename Shared, typename Produce, typename Consume>
__device__ __forceinline__ void run_mlstm_block(int tokens, const Produce& produce,
                                                const Consume& consume) {
  Shared& s = shared_block<Shared>();
  const int half = static_cast<int>(blockIdx.x % 2);
  const int chunk = static_cast<int>(blockIdx.x / 2);
  const MlstmBlock b{.chunk = chunk,
                     .head = static_cast<int>(blockIdx.y),
                     .half = half,
                     .token = chunk * kMlstmChunk + half * kTileRows,
                     .tiles = half + 1};
  if (b.token >= tokens) return;
  if (threadIdx.x == 0) {
    barrier_init(&s.own_full, 1);
    s.ring.init();
    barrier_init_fence();
  }
  __syncthreads();
  run_roles(
      [&] {
        if (threadIdx.x == 0) produce(s, b);
      },
      [&] { consume(s, b); });
}

// Grid of this kernel.
inline dim3 mlstm_block_grid(const MlstmTuned& x) {
  return {static_cast<unsigned>(2 * x.chunks), static_cast<unsigned>(x.heads)};
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
