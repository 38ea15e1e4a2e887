// What a block of the backward pass of RMSNorm with gates does: see norm_gates_backward.cu, the
// only file that takes it. Device only.
#pragma once

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

struct NormGatesBackward {
  const bf16* x;
  const bf16* w;
  const bf16* dy;
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
  float* partial;       // [blocks, 1 + 2 N, D]: of w, then of the gates
  float* bias_partial;  // [blocks, 2 N]
  int64_t x_stride, dy_stride, dx_stride, wi_stride, wf_stride, dwi_stride, dwf_stride;
  int64_t tokens;
  int heads;
  float cap;
};
// Gate g < N is i of head g, else f of head g - N.
__device__ __forceinline__ const bf16* gate_row(const NormGatesBackward& a, int g) {
  return g < a.heads ? a.wi + g * a.wi_stride : a.wf + (g - a.heads) * a.wf_stride;
}
// Element [t, head] of i_TN or f_TN.
template <typename P>
__device__ __forceinline__ P* gate_value(P* i, P* f, int heads, int64_t t, int g) {
  return g < heads ? i + t * heads + g : f + t * heads + g - heads;
}

constexpr int kDim = 2048;
constexpr int kCols = 4;  // of a thread
constexpr int kBlock = kDim / kCols;
constexpr int kWarps = kBlock / kWarp;
constexpr int kGates = 8;
constexpr int kRows = 4;           // of a group
constexpr int kBlockTokens = 128;  // at most
constexpr int kStages = 3;

enum Array : int { kX, kDy, kOld, kArrays };

struct Shared {
  bf16 rows[kStages][kArrays][kRows][kDim];
  float d[kGates][kBlockTokens];  // gradients of the pre-activations
  float rstd[kBlockTokens];
  float sums[2][kWarps][kRows];
  uint64_t full[kStages];
};

// The run of tokens of a block.
struct Groups {
  int64_t begin;
  int tokens;
  int count;
  __device__ __forceinline__ explicit Groups(int64_t all)
      : begin(all * blockIdx.x / gridDim.x),
        tokens(static_cast<int>(all * (blockIdx.x + 1) / gridDim.x - begin)),
        count((tokens + kRows - 1) / kRows) {}
  __device__ __forceinline__ int rows(int group) const {
    return min(kRows, tokens - group * kRows);
  }
};

// By one warp: a lane fetches a row.
__device__ __forceinline__ void fetch(const NormGatesBackward& a, Shared& s, const Groups& g,
                                      int group) {
  if (group >= g.count) return;
  constexpr uint32_t kBytes = kDim * sizeof(bf16);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int stage = group % kStages;
  const int rows = g.rows(group);
  if (lane == 0) barrier_expect(s.full + stage, static_cast<uint32_t>(rows * kArrays) * kBytes);
  __syncwarp();
  const int row = lane % kRows;
  const int array = lane / kRows;
  if (array >= kArrays || row >= rows) return;
  const int64_t t = g.begin + group * kRows + row;
  const bf16* from = array == kX    ? a.x + t * a.x_stride
                     : array == kDy ? a.dy + t * a.dy_stride
                                    : a.dx + t * a.dx_stride;
  bulk_load(s.rows[stage][array][row], from, kBytes, s.full + stage);
}

// Gradients of the pre-activations of the block's tokens, to shared memory and in their place.
__device__ __forceinline__ void form_slopes(const NormGatesBackward& a, Shared& s,
                                            const Groups& g) {
  for (int e = static_cast<int>(threadIdx.x); e < kBlockTokens * kGates; e += kBlock) {
    const int k = e / kGates;
    const int gate = e % kGates;
    const int64_t t = g.begin + k;
    float value = 0.0F;
    if (k < g.tokens && gate < 2 * a.heads) {
      float* d = gate_value(a.di, a.df, a.heads, t, gate);
      float slope = 1.0F;
      if (a.cap > 0.0F) {
        const float ratio = *gate_value(a.i, a.f, a.heads, t, gate) / a.cap;
        slope = (1.0F - ratio) * (1.0F + ratio);
      }
      value = *d * slope;
      *d = value;
    }
    s.d[gate][k] = value;
  }
  for (int k = static_cast<int>(threadIdx.x); k < kBlockTokens; k += kBlock) {
    s.rstd[k] = k < g.tokens ? a.rstd[g.begin + k] : 0.0F;
  }
}

__device__ __forceinline__ void get4(const bf16* p, float (&y)[kCols]) {
  const uint2 v = *reinterpret_cast<const uint2*>(p);
  y[0] = low_half(v.x);
  y[1] = high_half(v.x);
  y[2] = low_half(v.y);
  y[3] = high_half(v.y);
}
__device__ __forceinline__ void put4(float* p, const float (&y)[kCols]) {
  *reinterpret_cast<float4*>(p) = make_float4(y[0], y[1], y[2], y[3]);
}

// Sums over the warp of four values: each lane gets that of row lane % 4.
__device__ __forceinline__ float rows_sum(const float (&v)[kRows]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool high = threadIdx.x / 2 % 2 != 0;
  float low_pair = odd ? v[1] : v[0];
  float high_pair = odd ? v[3] : v[2];
  low_pair += __shfl_xor_sync(kAllLanes, odd ? v[0] : v[1], 1);
  high_pair += __shfl_xor_sync(kAllLanes, odd ? v[2] : v[3], 1);
  float sum = high ? high_pair : low_pair;
  sum += __shfl_xor_sync(kAllLanes, high ? low_pair : high_pair, 2);
#pragma unroll
  for (int step = kRows; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return sum;
}

// Four columns of a thread. What a group needs between its steps is kept by the kernel.
struct Columns {
  int col;
  float w[kCols];
  uint2 gate_w[kGates];
  float dw[kCols];
  float gate_dw[kGates][kCols];

  __device__ __forceinline__ explicit Columns(const NormGatesBackward& a)
      : col(static_cast<int>(threadIdx.x) * kCols) {
    get4(a.w + col, w);
#pragma unroll
    for (int i = 0; i < kCols; ++i) dw[i] = 0.0F;
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      gate_w[g] = make_uint2(0, 0);
      if (g < 2 * a.heads) {
        gate_w[g] = __ldg(reinterpret_cast<const uint2*>(gate_row(a, g) + col));
      }
#pragma unroll
      for (int i = 0; i < kCols; ++i) gate_dw[g][i] = 0.0F;
    }
  }
  // The gates' share; d: of the first row.
  __device__ __forceinline__ void add_gates(const float* d, float (&dy)[kRows][kCols]) const {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      const float4 four = *reinterpret_cast<const float4*>(d + g * kBlockTokens);
      const float dg[kRows] = {four.x, four.y, four.z, four.w};
      const float wg[kCols] = {low_half(gate_w[g].x), high_half(gate_w[g].x), low_half(gate_w[g].y),
                               high_half(gate_w[g].y)};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kCols; ++i) dy[r][i] = fmaf(dg[r], wg[i], dy[r][i]);
      }
    }
  }
  // y as rms_norm stored it, and the thread's part of the sum of y dy of each row before rounding.
  __device__ __forceinline__ void form_rows(const bf16* x, const float* rstd,
                                            const float (&dy)[kRows][kCols],
                                            float (&y)[kRows][kCols], float (&sum)[kRows]) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float v[kCols];
      get4(x + r * kDim, v);
      sum[r] = 0.0F;
#pragma unroll
      for (int i = 0; i < kCols; ++i) {
        v[i] = normed(v[i], rstd[r], w[i]);
        sum[r] = fmaf(v[i], dy[r][i], sum[r]);
      }
#pragma unroll
      for (int i = 0; i < kCols; i += 2) {
        const uint32_t two = two_bf16(v[i], v[i + 1]);
        y[r][i] = low_half(two);
        y[r][i + 1] = high_half(two);
      }
    }
  }
  __device__ __forceinline__ void add_weights(const float* d, const float (&y)[kRows][kCols]) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      const float4 four = *reinterpret_cast<const float4*>(d + g * kBlockTokens);
      const float dg[kRows] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kCols; ++i) gate_dw[g][i] = fmaf(dg[r], y[r][i], gate_dw[g][i]);
      }
    }
  }
  // dx = old + r w dy - x r^2 mean(y dy), and the weight gradient.
  __device__ __forceinline__ void write(const bf16* x, const bf16* old, float rstd, float mean,
                                        const float (&dy)[kCols], bf16* dx) {
    float vx[kCols];
    float out[kCols];
    get4(x, vx);
    get4(old, out);
    const float back = -(rstd * (rstd * mean));
#pragma unroll
    for (int i = 0; i < kCols; ++i) {
      const float g = rstd * dy[i];
      dw[i] = fmaf(g, vx[i], dw[i]);
      out[i] = fmaf(w[i], g, fmaf(vx[i], back, out[i]));
    }
    if (dx == nullptr) return;
    *reinterpret_cast<uint2*>(dx + col) =
        make_uint2(two_bf16(out[0], out[1]), two_bf16(out[2], out[3]));
  }
  __device__ __forceinline__ void store(const NormGatesBackward& a) const {
    float* out = a.partial + static_cast<int64_t>(blockIdx.x) * (1 + 2 * a.heads) * kDim + col;
    put4(out, dw);
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      if (g < 2 * a.heads) put4(out + (1 + g) * kDim, gate_dw[g]);
    }
  }
};

// Of each row the sum over warps by its lanes: lane's row lane % 4.
__device__ __forceinline__ float over_warps(const float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float total = 0.0F;
#pragma unroll
  for (int k = 0; k < kWarps * kRows; k += kWarp) total += sums[k + lane];
#pragma unroll
  for (int step = kRows; step < kWarp; step *= 2) {
    total += __shfl_xor_sync(kAllLanes, total, step);
  }
  return total / static_cast<float>(kDim);
}

}  // namespace
}  // namespace swax::cuda
