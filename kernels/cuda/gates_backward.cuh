// What a block of the backward pass of the gates does: see gates_backward.cu, the only file that
// takes it. Device only.
#pragma once

#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

template <typename X, typename W>
struct GatesBackward {
  const X* x;
  const W* wi;
  const W* wf;
  const float* i;
  const float* f;
  float* di;
  float* df;
  X* dx;
  float* dwi;
  float* dwf;
  float* dbi;
  float* dbf;
  float* partial;       // [blocks, 2 N, D]
  float* bias_partial;  // [blocks, 2 N]
  int64_t x_stride, wi_stride, wf_stride, dx_stride, dwi_stride, dwf_stride;
  int64_t tokens, dim, heads, block_tokens;
  float cap;
};
// Gate g < N is i of head g, else f of head g - N.
template <typename G>
__device__ __forceinline__ auto gate_row(const G& a, int64_t gate) {
  return gate < a.heads ? a.wi + gate * a.wi_stride : a.wf + (gate - a.heads) * a.wf_stride;
}
// Element [t, head] of i_TN or f_TN.
template <typename G, typename P>
__device__ __forceinline__ P* gate_value(P* i, P* f, const G& a, int64_t t, int64_t gate) {
  return gate < a.heads ? i + t * a.heads + gate : f + t * a.heads + gate - a.heads;
}
// Gradient of the pre-activation: replaces that of the capped value.
template <typename G>
__device__ __forceinline__ float through_cap(const G& a, int64_t t, int64_t gate) {
  float* d = gate_value(a.di, a.df, a, t, gate);
  float slope = 1.0F;
  if (a.cap > 0.0F) {
    const float ratio = *gate_value(a.i, a.f, a, t, gate) / a.cap;
    slope = (1.0F - ratio) * (1.0F + ratio);
  }
  *d *= slope;
  return *d;
}

// Four neighbouring elements.
template <typename T>
struct Four;
template <>
struct Four<bf16> {
  uint2 v;
  __device__ __forceinline__ void get(float (&y)[4]) const {
    y[0] = low_half(v.x);
    y[1] = high_half(v.x);
    y[2] = low_half(v.y);
    y[3] = high_half(v.y);
  }
  __device__ __forceinline__ void set(const float (&y)[4]) {
    v = make_uint2(two_bf16(y[0], y[1]), two_bf16(y[2], y[3]));
  }
};
template <>
struct Four<float> {
  float4 v;
  __device__ __forceinline__ void get(float (&y)[4]) const {
    y[0] = v.x;
    y[1] = v.y;
    y[2] = v.z;
    y[3] = v.w;
  }
  __device__ __forceinline__ void set(const float (&y)[4]) {
    v = make_float4(y[0], y[1], y[2], y[3]);
  }
};

constexpr int kCols = 4;  // of one thread
constexpr int kBlock = 512;
template <int kGates>
constexpr int kAhead = kGates <= 8 ? 4 : 2;  // tokens in flight, that go through together
// Whose gate gradients lie in shared memory; 132: 125 blocks have 16,384 tokens, and their partial
// gradients of 16 gates at D = 4096 fit the workspace.
template <int kGates>
constexpr int kChunkTokens = kGates <= 8 ? 128 : 132;
template <int kGates>
constexpr bool kWeightsShared = kGates > 8;
template <int kGates>
constexpr int kLanes = kBlock / kGates;  // tokens at a time

// Forms the gradients of the block's pre-activations; shared: their sums, kLanes of each gate.
template <int kGates, typename X, typename W>
__device__ __forceinline__ void form_slopes(const GatesBackward<X, W>& a, int64_t begin,
                                            int64_t end, float* shared) {
  const int gate = static_cast<int>(threadIdx.x) % kGates;
  float sum = 0.0F;
  if (gate < 2 * a.heads) {
    for (int64_t t = begin + threadIdx.x / kGates; t < end; t += kLanes<kGates>) {
      sum += through_cap(a, t, gate);
    }
  }
  shared[threadIdx.x] = sum;
}
template <int kGates, typename X, typename W>
__device__ __forceinline__ void store_bias(const GatesBackward<X, W>& a, const float* shared) {
  const int gate = static_cast<int>(threadIdx.x);
  if (gate >= 2 * a.heads) return;
  float sum = shared[gate];
  for (int k = 1; k < kLanes<kGates>; ++k) sum += shared[k * kGates + gate];
  a.bias_partial[static_cast<int64_t>(blockIdx.x) * 2 * a.heads + gate] = sum;
}

// Those of kChunkTokens tokens from `chunk` on, to shared memory.
template <int kGates, typename X, typename W>
__device__ __forceinline__ void load_slopes(const GatesBackward<X, W>& a, int64_t chunk,
                                            int64_t end, float (&d)[kGates][kChunkTokens<kGates>]) {
  __syncthreads();  // d was read; the first time: the gradients are written
  for (int e = static_cast<int>(threadIdx.x); e < kGates * kChunkTokens<kGates>; e += kBlock) {
    const int64_t t = chunk + e / kGates;
    const int g = e % kGates;
    d[g][e / kGates] = t < end && g < 2 * a.heads ? *gate_value(a.di, a.df, a, t, g) : 0.0F;
  }
  __syncthreads();
}

// Four columns of x and dx of kTokens tokens.
template <typename X, int kTokens>
struct GateRows {
  Four<X> x[kTokens];
  Four<X> dx[kTokens];

  template <typename W>
  __device__ __forceinline__ void fetch(const GatesBackward<X, W>& a, int64_t t, int64_t end,
                                        int64_t col) {
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      x[k] = {};
      dx[k] = {};
      if (col >= a.dim || t + k >= end) continue;
      x[k] = *reinterpret_cast<const Four<X>*>(a.x + (t + k) * a.x_stride + col);
      dx[k] = *reinterpret_cast<const Four<X>*>(a.dx + (t + k) * a.dx_stride + col);
    }
  }
};

// Four columns of the weights and their gradients.
template <int kGates, typename W>
struct GateColumns {
  static constexpr int kTokens = kAhead<kGates>;
  Four<W> w[kWeightsShared<kGates> ? 1 : kGates];
  Four<W>* shared_w;  // of the thread's gate 0; the next one's is kBlock further
  float dw[kGates][kCols];

  template <typename X>
  __device__ __forceinline__ void start(const GatesBackward<X, W>& a, int64_t col, void* shared) {
    shared_w = static_cast<Four<W>*>(shared) + threadIdx.x;
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      Four<W> row = {};
      if (col < a.dim && g < 2 * a.heads) {
        row = *reinterpret_cast<const Four<W>*>(gate_row(a, g) + col);
      }
      if constexpr (kWeightsShared<kGates>) {
        shared_w[g * kBlock] = row;
      } else {
        w[g] = row;
      }
#pragma unroll
      for (int i = 0; i < kCols; ++i) dw[g][i] = 0.0F;
    }
  }
  // The tokens whose first has the place `at` in d.
  __device__ __forceinline__ void add(const float (&d)[kGates][kChunkTokens<kGates>], int64_t at,
                                      const float (&x)[kTokens][kCols],
                                      float (&dx)[kTokens][kCols]) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      float dg[kTokens];
      if constexpr (kTokens == 4) {
        *reinterpret_cast<float4*>(dg) = *reinterpret_cast<const float4*>(&d[g][at]);
      } else {
        *reinterpret_cast<float2*>(dg) = *reinterpret_cast<const float2*>(&d[g][at]);
      }
      float wg[kCols];
      if constexpr (kWeightsShared<kGates>) {
        shared_w[g * kBlock].get(wg);
      } else {
        w[g].get(wg);
      }
#pragma unroll
      for (int k = 0; k < kTokens; ++k) {
#pragma unroll
        for (int i = 0; i < kCols; ++i) {
          dw[g][i] = fmaf(dg[k], x[k][i], dw[g][i]);
          dx[k][i] = fmaf(dg[k], wg[i], dx[k][i]);
        }
      }
    }
  }
  template <typename X>
  __device__ __forceinline__ void store(const GatesBackward<X, W>& a, int64_t col) const {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      if (col >= a.dim || g >= 2 * a.heads) continue;
      float* out = a.partial + (static_cast<int64_t>(blockIdx.x) * 2 * a.heads + g) * a.dim + col;
      *reinterpret_cast<float4*>(out) = make_float4(dw[g][0], dw[g][1], dw[g][2], dw[g][3]);
    }
  }
};

}  // namespace
}  // namespace swax::cuda
