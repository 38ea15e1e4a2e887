// Backward of RMSNorm with gates: its arguments, the shared memory of a block and the warps that
// feed those which compute (norm_gates_backward.cuh). Device only.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

struct NormGatesBackward {
  TensorMap rows[3];  // in the order of Array
  const bf16* w;
  const bf16* wi;
  const bf16* wf;
  const float* rstd;
  const float* i;
  const float* f;
  float* di;
  float* df;
  bf16* dx;
  float* dw;
  float* dwi;
  float* dwf;
  float* dbi;
  float* dbf;
  float* partial;       // [runs, 1 + 2 N, D]: of w, then of the gates
  float* bias_partial;  // [runs, 2 N]
  int64_t dx_stride, wi_stride, wf_stride, dwi_stride, dwf_stride;
  int64_t tokens;
  int runs;  // shares of the groups of tokens: clusters
  int heads;
  float cap;
};
// Gate g < N is i of head g, else f of head g - N.
__device__ __forceinline__ const bf16* gate_row(const NormGatesBackward& a, int g) {
  return g < a.heads ? a.wi + g * a.wi_stride : a.wf + (g - a.heads) * a.wf_stride;
}

constexpr int kCols = 8;       // of a lane, neighbours: one pack
constexpr int kPacks = 2;      // of a lane and a row, kTileCols apart
constexpr int kTileCols = 64;  // of a block of a tile: 128 bytes
constexpr int kWarpCols = kPacks * kTileCols;
constexpr int kWarps = 8;    // that compute
constexpr int kFeeders = 4;  // warps
constexpr int kBlock = (kWarps + kFeeders) * kWarp;
constexpr int kSlice = kWarps * kWarpCols;  // columns of a block
constexpr int kRows = 8;                    // of a group
// Not fewer: a block sends its sums of group g + 4 when all blocks have read those of g, no sooner.
constexpr int kStages = 4;
// Groups that are there or on their way while one is read. On an H200, 16,384 tokens of width 2048,
// groups not yet dealt in turn: 76 us, with four 81, with two 98.
constexpr int kAhead = 3;
// Whether groups are dealt to the clusters in turn, so that all of them are in one part of the rows
// at a time, or each cluster has neighbouring ones: 74 and 76 us at width 2048, 158 and 148 at
// 4096.
template <int kCluster>
constexpr bool kDealt = kCluster == 2;

enum Array : int { kX, kDy, kOld, kArrays };

// A gradient of a pre-activation as three bf16 that hold all its 24 bits.
constexpr int kSummands = 3;

template <int kCluster, int kGates>
struct Shared {
  static constexpr int kHalves = kGates / 8;               // eight gates each
  static constexpr int kForming = kRows * kGates / kWarp;  // warps: a lane has one entry of a group
  uint4 tiles[kStages][kArrays][kRows * kSlice / kCols];  // 64 columns of eight rows, then the next
  // Gradients of the pre-activations as right operands, a word for each eight gates and summand: of
  // gates x tokens first all of one summand, of tokens x gates first all of one eight.
  uint4 by_token[kStages][kHalves][kWarp];
  uint4 by_gate[kStages][kHalves][kWarp];
  float rstd[kStages][kRows];
  float d[kStages][kRows * kGates];
  float sums[kStages][kWarps][kRows];
  float totals[kStages][kCluster][kRows];  // of the blocks of the cluster
  float bias[kRows * kGates];
  uint64_t full[kStages], empty[kStages];
  uint64_t summed[kStages];
  uint64_t exchanged[kStages];

  // By one thread.
  __device__ __forceinline__ void init() {
    for (int k = 0; k < kStages; ++k) {
      barrier_init(full + k, 1 + kFeeders * kWarp);
      barrier_init(empty + k, kWarps * kWarp);
      barrier_init(summed + k, kWarps * kRows);
      barrier_init(exchanged + k, 1);
    }
    barrier_init_fence();
  }
};

__device__ __forceinline__ uint32_t word(const uint4& v, int k) {
  return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}
__device__ __forceinline__ void wait_group(uint64_t* barriers, int group) {
  barrier_wait(barriers + group % kStages, static_cast<uint32_t>(group / kStages) & 1U);
}

// The groups of a cluster.
template <int kCluster>
struct Run {
  int64_t first;  // row of its first group; the others, and `end`, count from there
  int end;        // behind its last row
  int step;       // rows from one group to the next
  int count;      // groups
  int rank;       // of the block in the cluster

  __device__ __forceinline__ explicit Run(const NormGatesBackward& a) : rank(cluster_rank()) {
    const int64_t run = blockIdx.x / kCluster;
    const int64_t groups = (a.tokens + kRows - 1) / kRows;
    if constexpr (kDealt<kCluster>) {
      first = run * kRows;
      end = static_cast<int>(a.tokens - first);
      step = a.runs * kRows;
      count = static_cast<int>((groups - run + a.runs - 1) / a.runs);
    } else {
      const int64_t begin = groups * run / a.runs;
      first = begin * kRows;
      step = kRows;
      count = static_cast<int>(groups * (run + 1) / a.runs - begin);
      end = static_cast<int>(min(int64_t{count} * kRows, a.tokens - first));
    }
  }
  __device__ __forceinline__ int row_of(int group) const {
    return group * (kDealt<kCluster> ? step : kRows);
  }
};

// The warps that feed the others: rows by the copy engine, gradients of the pre-activations as
// operands; one exchanges the sums of the rows with the other blocks.
template <int kCluster, int kGates>
struct Feeder {
  using S = Shared<kCluster, kGates>;
  // Of a group what one lane reads: of token r and gate g; of token `entry`.
  struct Values {
    float d = 0.0F;
    float value = 0.0F;
    float rstd = 0.0F;
  };

  const NormGatesBackward& a;
  S& s;
  Run<kCluster> run;
  int lane;
  bool forms, sends, fetches;
  int entry, r, gate;
  float* d_at;  // of the first group
  const float* value_at;
  float bias;
  Values next[kAhead];

  // The first reads are on their way.
  __device__ __forceinline__ Feeder(const NormGatesBackward& args, S& shared)
      : a(args), s(shared), run(args), lane(static_cast<int>(threadIdx.x) % kWarp), bias(0.0F) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp - kWarps;
    forms = warp < S::kForming;
    sends = warp == 2;
    fetches = warp == 3;
    entry = warp * kWarp + lane;
    r = entry / kGates;
    gate = entry % kGates;
    const int64_t at = (run.first + r) * a.heads + gate;
    const bool input = gate < a.heads;
    d_at = input ? a.di + at : a.df + at - a.heads;
    value_at = input ? a.i + at : a.f + at - a.heads;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) next[k] = read(k);
  }
  __device__ __forceinline__ bool there(int group) const {
    return forms && gate < 2 * a.heads && run.row_of(group) + r < run.end;
  }
  __device__ __forceinline__ int64_t offset(int group) const {
    return static_cast<int64_t>(run.row_of(group)) * a.heads;
  }
  __device__ __forceinline__ Values read(int group) const {
    Values v;
    if (there(group)) {
      v.d = d_at[offset(group)];
      if (a.cap > 0.0F) v.value = value_at[offset(group)];
    }
    const int t = run.row_of(group) + entry;
    if (entry < kRows && t < run.end) v.rstd = a.rstd[run.first + t];
    return v;
  }
  // By one lane.
  __device__ __forceinline__ void fetch(int group) const {
    constexpr uint32_t kBytes = kRows * kSlice * sizeof(bf16);
    const int stage = group % kStages;
    fence_to_async();
    barrier_expect(s.full + stage, kArrays * kBytes);
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      tile_load(s.tiles[stage][array], a.rows[array], 0,
                static_cast<int>(run.first + run.row_of(group)), run.rank * (kSlice / kTileCols),
                s.full + stage);
    }
  }
  __device__ __forceinline__ void form(int group, const Values& v) {
    const int stage = group % kStages;
    float slope = 1.0F;
    if (a.cap > 0.0F) {
      const float ratio = v.value / a.cap;
      slope = (1.0F - ratio) * (1.0F + ratio);
    }
    float rest = v.d * slope;
    bias += rest;
    s.d[stage][entry] = rest;
    const int g = gate % 8;
    const int half = gate / 8;
    auto* weight = reinterpret_cast<uint16_t*>(&s.by_gate[stage][half][4 * g + r / 2]) + r % 2;
#pragma unroll
    for (int i = 0; i < kSummands; ++i) {
      const int at = i * S::kHalves + half;
      auto* token = reinterpret_cast<uint16_t*>(&s.by_token[stage][at / 4][4 * r + g / 2]) + g % 2;
      const uint32_t bits = __float_as_uint(rest) & 0xffff0000U;
      token[at % 4 * 2] = static_cast<uint16_t>(bits >> 16);
      weight[2 * i] = static_cast<uint16_t>(bits >> 16);
      rest -= __uint_as_float(bits);
    }
    if (entry < kRows) s.rstd[stage][entry] = v.rstd;
  }
  // The block's sums of the rows, to all blocks of the cluster.
  __device__ __forceinline__ void send(int group) const {
    wait_group(s.summed, group);
    const float* sums = s.sums[group % kStages][0];
    float total = 0.0F;
#pragma unroll
    for (int k = 0; k < kWarps * kRows; k += kWarp) total += sums[k + lane];
#pragma unroll
    for (int step = kRows; step < kWarp; step *= 2) {
      total += __shfl_xor_sync(kAllLanes, total, step);
    }
    uint64_t* exchanged = s.exchanged + group % kStages;
    if (lane == 0) barrier_expect(exchanged, kCluster * kRows * sizeof(float));
    const int from = lane % 2 * 4;
    float4 four;
    four.x = __shfl_sync(kAllLanes, total, from);
    four.y = __shfl_sync(kAllLanes, total, from + 1);
    four.z = __shfl_sync(kAllLanes, total, from + 2);
    four.w = __shfl_sync(kAllLanes, total, from + 3);
    const int to = lane / 2;
    if (to < kCluster) {
      store_in(address_in(s.totals[group % kStages][run.rank] + from, to), four,
               address_in(exchanged, to));
    }
  }
  // In the place of the gradients of the capped values: all blocks of the cluster have read them
  // before they sent their sums.
  __device__ __forceinline__ void write(int group) const {
    if (run.rank != 0 || !forms) return;
    wait_group(s.exchanged, group);
    if (there(group)) d_at[offset(group)] = s.d[group % kStages][entry];
  }

  // Once the barriers of the block are there.
  __device__ __forceinline__ void start() {
    if (fetches && lane == 0) {
      for (int k = 0; k < min(kAhead, run.count); ++k) fetch(k);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (k >= run.count) continue;
      if (forms) form(k, next[k]);
      barrier_arrive(s.full + k);
    }
    next[0] = read(kAhead);
  }
  // Once those of the cluster are there.
  __device__ __forceinline__ void feed() {
    for (int k = 0; k < run.count; ++k) {
      if (sends) send(k);
      if (k == 0) continue;
      write(k - 1);
      const int group = k - 1 + kAhead;
      if (group >= run.count) continue;
      wait_group(s.empty, k - 1);
      if (fetches && lane == 0) fetch(group);
      if (forms) {
        form(group, next[0]);
        next[0] = read(group + 1);
      }
      barrier_arrive(s.full + group % kStages);
    }
    write(run.count - 1);
    if (forms) s.bias[entry] = bias;
    __syncwarp();
    named_barrier(1, kFeeders * kWarp);
    if (run.rank != 0 || entry >= 2 * a.heads) return;
    float sum = s.bias[entry];
    for (int k = 1; k < kRows; ++k) sum += s.bias[k * kGates + entry];
    a.bias_partial[static_cast<int64_t>(blockIdx.x / kCluster) * 2 * a.heads + entry] = sum;
  }
};

}  // namespace
}  // namespace swax::cuda
