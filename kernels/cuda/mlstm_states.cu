// States before each chunk, C <- carry C + K'^T V, or their gradients with the last chunk first,
// dC <- carry dC + Q'^T dH. A block owns 64 x 64 of a head's state in the f32 registers of one
// warpgroup and walks the chunks; what it stores is bf16. Small, so that few heads fill a device
// and two blocks fit a multiprocessor.
#include <algorithm>
#include <cstddef>

#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/hopper_ring.cuh"
#include "kernels/cuda/mlstm_tuned.h"

namespace swax::cuda {
namespace {

constexpr int kStages = 3;
constexpr int kThreads = 2 * 128;  // one warpgroup copies, one computes
constexpr int kSide = 64;          // rows and columns of the block's part of the state
constexpr int kPartBytes = kTileRows * kSide * 2;

struct Params {
  TensorMap weighted;  // keys or queries
  TensorMap values;
  const float* carry_weight;  // [N, C]
  __nv_bfloat16* out;         // [.., N, K, U]
  int heads, chunks;
  bool backward;
  bool initial_state;
};

struct Shared {
  unsigned char weighted[kStages][kPartBytes];
  unsigned char values[kStages][kPartBytes];
  uint64_t full[kStages];
  uint64_t empty[kStages];
};
constexpr size_t kSharedBytes = sizeof(Shared);

struct Block {
  int head;
  int key;    // first row of the state
  int value;  // first column
  int steps;  // chunks that add something
};

__device__ __forceinline__ int chunk_of(const Params& p, int step) {
  return p.backward ? p.chunks - 1 - step : step;
}

__device__ void produce(const Params& p, Shared& s, const Block& b) {
  for (int i = 0; i < 2 * b.steps; ++i) {
    const int stage = i % kStages;
    const int token = chunk_of(p, i / 2) * kMlstmChunk + i % 2 * kTileRows;
    barrier_wait(&s.empty[stage], static_cast<uint32_t>(i / kStages + 1) % 2);
    barrier_expect(&s.full[stage], 2 * kPartBytes);
    tile_load(s.weighted[stage], p.weighted, b.key, b.head, token, &s.full[stage]);
    tile_load(s.values[stage], p.values, b.value, b.head, token, &s.full[stage]);
  }
}

// First column of the block in state `index`, row 0 of the head's part.
__device__ __forceinline__ __nv_bfloat16* state_rows(const Params& p, const Block& b, int index) {
  return p.out + (static_cast<int64_t>(index) * p.heads + b.head) * kMlstmQk * kMlstmV + b.value;
}

__device__ void consume(const Params& p, Shared& s, const Block& b) {
  float state[32];
#pragma unroll
  for (int e = 0; e < 32; ++e) state[e] = 0.0F;
  const int row = b.key + lane_row();
  __nv_bfloat16* first = state_rows(p, b, p.backward ? p.chunks - 1 : 0);
  if (p.initial_state) {
#pragma unroll
    for (int e = 0; e < 32; ++e) {
      state[e] =
          load_f32(first + (row + e % 4 / 2 * 8) * kMlstmV + lane_column() + e / 4 * 8 + e % 2);
    }
  } else {
    store_rows(state, first, kMlstmV, row, kMlstmQk, 1.0F, 1.0F);
  }
  const float* carry = p.carry_weight + static_cast<int64_t>(b.head) * p.chunks;
  float weight = b.steps > 0 ? carry[chunk_of(p, 0)] : 0.0F;
  for (int step = 0; step < b.steps; ++step) {
#pragma unroll
    for (int e = 0; e < 32; ++e) state[e] *= weight;
    if (step + 1 < b.steps) weight = carry[chunk_of(p, step + 1)];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 2 * step + half;
      const int stage = i % kStages;
      barrier_wait(&s.full[stage], static_cast<uint32_t>(i / kStages) % 2);
      const uint32_t x = shared_address(s.weighted[stage]);
      const uint32_t y = shared_address(s.values[stage]);
      mma_fence();
#pragma unroll
      for (uint32_t k = 0; k < kTileRows / 16; ++k) {
        mma<Major::kMN, Major::kMN>(state, operand<Major::kMN>(x + k * 2048, kTileRows),
                                    operand<Major::kMN>(y + k * 2048, kTileRows), 1);
      }
      mma_commit();
    }
    mma_wait<1>();
    release(&s.empty[2 * step % kStages]);
    mma_wait<0>();
    mma_hold(state);
    release(&s.empty[(2 * step + 1) % kStages]);
    store_rows(state, state_rows(p, b, p.backward ? p.chunks - 2 - step : step + 1), kMlstmV, row,
               kMlstmQk, 1.0F, 1.0F);
  }
}

__global__ void __launch_bounds__(kThreads, 2) states_kernel(const __grid_constant__ Params p) {
  Shared& s = shared_block<Shared>();
  const Block b{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y) * kSide,
                static_cast<int>(blockIdx.x) * kSide, p.backward ? p.chunks - 1 : p.chunks};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(&s.full[stage], 1);
      barrier_init(&s.empty[stage], 4);  // warps that compute
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) produce(p, s, b);
  if (threadIdx.x >= 128) consume(p, s, b);
}

}  // namespace

Status launch_mlstm_states(CUstream_st* stream, const MlstmTuned& x, const Tensor& weighted,
                           const Tensor& values, bool backward, bool initial_state) {
  Params p{};
  SWAX_TRY(tile_map("mlstm", weighted, kTileRows, &p.weighted));
  SWAX_TRY(tile_map("mlstm", values, kTileRows, &p.values));
  p.carry_weight = x.carry_weight;
  p.out = backward ? x.dstates : x.states;
  p.heads = x.heads;
  p.chunks = x.chunks;
  p.backward = backward;
  p.initial_state = initial_state;
  const Launch l{dim3(kMlstmV / kSide, kMlstmQk / kSide, static_cast<unsigned>(x.heads)), kThreads,
                 kSharedBytes, stream};
  return launch("mlstm", l, states_kernel, p);
}

}  // namespace swax::cuda
