// States before each chunk, C <- carry C + K'^T V, or their gradients with the last chunk first,
// dC <- carry dC + Q'^T dH. A block owns 64 x 64 of a head's state in the f32 registers of one
// warpgroup and walks the chunks; what it stores is bf16. Small, so that few heads fill a device;
// a chunk takes less time than its copies need to come, so three are on their way. The backward
// pass also gives <C, dC> of each chunk, in parts. Threads that would idle carry n, a column of C.
#include <algorithm>
#include <cstddef>

#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/hopper_ring.cuh"
#include "kernels/cuda/mlstm_tuned.h"

namespace swax::cuda {
namespace {

constexpr int kStages = 6;
constexpr int kPlaces = 4;         // for parts of C
constexpr int kThreads = 2 * 128;  // one warpgroup copies, one computes
constexpr int kSide = kMlstmStateSide;
constexpr int kPartBytes = kTileRows * kSide * 2;
constexpr int kStateBytes = kSide * kSide * 2;

struct Params {
  TensorMap weighted;  // keys or queries
  TensorMap values;
  TensorMap states;           // backward: C before each chunk, [C N K, 1, U]
  const float* carry_weight;  // [N, C]
  float* carried;             // backward
  __nv_bfloat16* out;         // [.., N, K, U]
  float* n;                   // [.., N, K] before each chunk
  float* dn;                  // [C, N, K] what a chunk adds; backward: then dn after each
  int heads, chunks;
  bool initial_state;
};

struct Shared {
  unsigned char weighted[kStages][kPartBytes];
  unsigned char values[kStages][kPartBytes];
  unsigned char state[kPlaces][kStateBytes];  // backward: of C
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t state_full[kPlaces];
  uint64_t state_empty[kPlaces];
};
constexpr size_t kSharedBytes = sizeof(Shared);
static_assert(kSharedBytes <= kSharedMax);

struct Block {
  int head;
  int key;    // first row of the state
  int value;  // first column
  int steps;  // chunks that add something
};

template <bool kBackward>
__device__ __forceinline__ int chunk_of(const Params& p, int step) {
  return kBackward ? p.chunks - 1 - step : step;
}

// C before the chunk whose gradient is there before step `step`.
__device__ __forceinline__ void load_state(const Params& p, Shared& s, const Block& b, int step) {
  const int place = step % kPlaces;
  const int row = ((p.chunks - 1 - step) * p.heads + b.head) * kMlstmQk + b.key;
  barrier_wait(&s.state_empty[place], static_cast<uint32_t>(step / kPlaces + 1) % 2);
  fence_to_async();
  barrier_expect(&s.state_full[place], kStateBytes);
  tile_load(s.state[place], p.states, b.value, 0, row, &s.state_full[place]);
}

template <bool kBackward>
__device__ void produce(const Params& p, Shared& s, const Block& b) {
  if (kBackward) load_state(p, s, b, 0);
  for (int i = 0; i < 2 * b.steps; ++i) {
    const int stage = i % kStages;
    const int token = chunk_of<kBackward>(p, i / 2) * kMlstmChunk + i % 2 * kTileRows;
    barrier_wait(&s.empty[stage], static_cast<uint32_t>(i / kStages + 1) % 2);
    barrier_expect(&s.full[stage], 2 * kPartBytes);
    tile_load(s.weighted[stage], p.weighted, b.key, b.head, token, &s.full[stage]);
    tile_load(s.values[stage], p.values, b.value, b.head, token, &s.full[stage]);
    if (kBackward && i % 2 == 1) load_state(p, s, b, i / 2 + 1);
  }
}

// First column of the block in state `index`, row 0 of the head's part.
__device__ __forceinline__ __nv_bfloat16* state_rows(const Params& p, const Block& b, int index) {
  return p.out + (static_cast<int64_t>(index) * p.heads + b.head) * kMlstmQk * kMlstmV + b.value;
}

// <C, dC> over the rows of this warp.
__device__ __forceinline__ void give_carried(const Params& p, Shared& s, const Block& b, int step,
                                             const float (&slope)[32]) {
  const int place = step % kPlaces;
  barrier_wait(&s.state_full[place], static_cast<uint32_t>(step / kPlaces) % 2);
  const int row = lane_row();
  const unsigned char* at = s.state[place] + row * 128 + threadIdx.x % 4 * 4;
  float sum = 0.0F;
#pragma unroll
  for (int g = 0; g < 8; ++g) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t bits =
          *reinterpret_cast<const uint32_t*>(at + half * 1024 + (g ^ row % 8) * 16);
      sum = fmaf(slope[4 * g + 2 * half], __uint_as_float(bits << 16), sum);
      sum = fmaf(slope[4 * g + 2 * half + 1], __uint_as_float(bits & 0xffff0000U), sum);
    }
  }
  barrier_arrive(&s.state_empty[place]);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 != 0) return;
  const int64_t chunk = static_cast<int64_t>(b.head) * p.chunks + p.chunks - 1 - step;
  const int part = (b.key / kSide * (kMlstmV / kSide) + b.value / kSide) * 4 +
                   static_cast<int>(threadIdx.x / 32) - 4;
  p.carried[chunk * kMlstmCarriedParts + part] = sum;
}

// What is there before step `step`.
template <bool kBackward>
__device__ __forceinline__ void give(const Params& p, Shared& s, const Block& b, int step,
                                     const float (&state)[32]) {
  const int index = kBackward ? p.chunks - 1 - step : step;
  store_rows(state, state_rows(p, b, index), kMlstmV, b.key + lane_row(), kMlstmQk, 1.0F, 1.0F);
  if constexpr (kBackward) give_carried(p, s, b, step, state);
}

__device__ __forceinline__ void begin(const Params& p, const Block& b, float (&state)[32]) {
  const __nv_bfloat16* first = state_rows(p, b, 0) + (b.key + lane_row()) * kMlstmV + lane_column();
#pragma unroll
  for (int e = 0; e < 32; ++e) {
    state[e] =
        p.initial_state ? load_f32(first + e % 4 / 2 * 8 * kMlstmV + e / 4 * 8 + e % 2) : 0.0F;
  }
}

template <bool kBackward>
__device__ void consume(const Params& p, Shared& s, const Block& b) {
  float state[32];
  begin(p, b, state);
  const float* carry = p.carry_weight + static_cast<int64_t>(b.head) * p.chunks;
  float weight = b.steps > 0 ? carry[chunk_of<kBackward>(p, 0)] : 0.0F;
  for (int step = 0; step < b.steps; ++step) {
    give<kBackward>(p, s, b, step, state);
#pragma unroll
    for (int e = 0; e < 32; ++e) state[e] *= weight;
    if (step + 1 < b.steps) weight = carry[chunk_of<kBackward>(p, step + 1)];
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
  }
  give<kBackward>(p, s, b, b.steps, state);
}

// n of a few key columns, one a thread; chunks in order, or last first. What several chunks add is
// read before the first of them is used.
template <bool kBackward>
__device__ void normaliser(const Params& p, int head, int64_t k) {
  constexpr int kAhead = 16;
  const auto at = [&](int64_t c) { return (c * p.heads + head) * kMlstmQk + k; };
  float sum = !kBackward && p.initial_state ? p.n[at(0)] : 0.0F;
  if (!kBackward) p.n[at(0)] = sum;
  for (int begin = 0; begin < p.chunks; begin += kAhead) {
    float added[kAhead];
    float carry[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int c = chunk_of<kBackward>(p, min(begin + i, p.chunks - 1));
      added[i] = p.dn[at(c)];
      carry[i] = p.carry_weight[int64_t{head} * p.chunks + c];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= p.chunks) break;
      const int c = chunk_of<kBackward>(p, begin + i);
      if (kBackward) p.dn[at(c)] = sum;
      sum = fmaf(sum, carry[i], added[i]);
      if (!kBackward) p.n[at(c + 1)] = sum;
    }
  }
}

template <bool kBackward>
__global__ void __launch_bounds__(kThreads, 1) states_kernel(const __grid_constant__ Params p) {
  Shared& s = shared_block<Shared>();
  const Block b{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y) * kSide,
                static_cast<int>(blockIdx.x) * kSide, kBackward ? p.chunks - 1 : p.chunks};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(&s.full[stage], 1);
      barrier_init(&s.empty[stage], 4);  // warps that compute
    }
    for (int place = 0; place < kPlaces; ++place) {
      barrier_init(&s.state_full[place], 1);
      barrier_init(&s.state_empty[place], 128);
    }
    barrier_init_fence();
  }
  __syncthreads();
  constexpr unsigned kColumns = kMlstmQk / (kMlstmQk / kSide * (kMlstmV / kSide));
  if (threadIdx.x >= 128) {
    consume<kBackward>(p, s, b);
  } else if (threadIdx.x == 0) {
    produce<kBackward>(p, s, b);
  } else if (threadIdx.x >= 32 && threadIdx.x < 32 + kColumns) {
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    normaliser<kBackward>(p, b.head, block * kColumns + threadIdx.x - 32);
  }
}

}  // namespace

Status launch_mlstm_states(CUstream_st* stream, const MlstmTuned& x, const Tensor& weighted,
                           const Tensor& values, bool backward, bool initial_state) {
  Params p{};
  const Tensor states =
      Tensor::of(x.states, DType::kBF16, {int64_t{x.chunks} * x.heads * kMlstmQk, 1, kMlstmV});
  SWAX_TRY(tile_map("mlstm", weighted, kTileRows, &p.weighted));
  SWAX_TRY(tile_map("mlstm", values, kTileRows, &p.values));
  SWAX_TRY(tile_map("mlstm", states, kSide, &p.states));
  p.carry_weight = x.carry_weight;
  p.carried = x.carried;
  p.n = x.n;
  p.dn = x.dn;
  p.out = backward ? x.dstates : x.states;
  p.heads = x.heads;
  p.chunks = x.chunks;
  p.initial_state = initial_state;
  const Launch l{dim3(kMlstmV / kSide, kMlstmQk / kSide, static_cast<unsigned>(x.heads)), kThreads,
                 kSharedBytes, stream};
  return launch("mlstm", l, backward ? states_kernel<true> : states_kernel<false>, p);
}

}  // namespace swax::cuda
