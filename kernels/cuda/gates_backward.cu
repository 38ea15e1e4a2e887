// Backward of the gates of the mLSTM. A block owns a run of tokens: it forms the gradients of the
// pre-activations, then goes once over x and dx of its tokens, four columns a thread, with the
// weights and their partial gradients of up to 16 gates in registers. Partial gradients lie in the
// stream's workspace and are folded over blocks. Other shapes take plain kernels.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"
#include "proto/base/text.h"

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

constexpr int kCols = 4;           // of one thread
constexpr int kAhead = 4;          // tokens in flight, that go through together
constexpr int kChunkTokens = 128;  // whose gate gradients lie in shared memory
template <int kGates>
constexpr int kBlockThreads = kGates <= 8 ? 512 : 256;

template <int kGates>
constexpr int kLanes = kBlockThreads<kGates> / kGates;  // tokens at a time

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
                                            int64_t end, float (&d)[kGates][kChunkTokens]) {
  __syncthreads();  // d was read; the first time: the gradients are written
  for (int e = static_cast<int>(threadIdx.x); e < kGates * kChunkTokens;
       e += kBlockThreads<kGates>) {
    const int64_t t = chunk + e / kGates;
    const int g = e % kGates;
    d[g][e / kGates] = t < end && g < 2 * a.heads ? *gate_value(a.di, a.df, a, t, g) : 0.0F;
  }
  __syncthreads();
}

// Four columns of x and dx of kAhead tokens.
template <typename X>
struct GateRows {
  Four<X> x[kAhead];
  Four<X> dx[kAhead];

  template <typename W>
  __device__ __forceinline__ void fetch(const GatesBackward<X, W>& a, int64_t t, int64_t end,
                                        int64_t col) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
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
  Four<W> w[kGates];
  float dw[kGates][kCols];

  template <typename X>
  __device__ __forceinline__ void start(const GatesBackward<X, W>& a, int64_t col) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      w[g] = {};
      if (col < a.dim && g < 2 * a.heads) {
        w[g] = *reinterpret_cast<const Four<W>*>(gate_row(a, g) + col);
      }
#pragma unroll
      for (int i = 0; i < kCols; ++i) dw[g][i] = 0.0F;
    }
  }
  // The tokens whose first has the place `at` in d.
  __device__ __forceinline__ void add(const float (&d)[kGates][kChunkTokens], int64_t at,
                                      const float (&x)[kAhead][kCols], float (&dx)[kAhead][kCols]) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) {
      const float4 four = *reinterpret_cast<const float4*>(&d[g][at]);
      const float dg[kAhead] = {four.x, four.y, four.z, four.w};
      float wg[kCols];
      w[g].get(wg);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
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

template <int kGates, typename X, typename W>
__global__ void __launch_bounds__(kBlockThreads<kGates>, 1)
    gates_rows_kernel(GatesBackward<X, W> a) {
  constexpr int kBlock = kBlockThreads<kGates>;
  __shared__ __align__(16) float d[kGates][kChunkTokens];
  __shared__ float shared[kBlock];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * a.block_tokens;
  const int64_t end = min(begin + a.block_tokens, a.tokens);
  int64_t col = static_cast<int64_t>(threadIdx.x) * kCols;
  GateRows<X> next;
  next.fetch(a, begin, end, col);
  form_slopes<kGates>(a, begin, end, shared);
  for (; col - static_cast<int64_t>(threadIdx.x) * kCols < a.dim; col += kBlock * kCols) {
    GateColumns<kGates, W> columns;
    columns.start(a, col);
    if (col >= kBlock * kCols) next.fetch(a, begin, end, col);
    for (int64_t chunk = begin; chunk < end; chunk += kChunkTokens) {
      load_slopes<kGates>(a, chunk, end, d);
      const int64_t chunk_end = min(chunk + kChunkTokens, end);
      for (int64_t t = chunk; t < chunk_end; t += kAhead) {
        float x[kAhead][kCols];
        float dx[kAhead][kCols];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          next.x[k].get(x[k]);
          next.dx[k].get(dx[k]);
        }
        next.fetch(a, t + kAhead, end, col);
        columns.add(d, t - chunk, x, dx);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          if (col >= a.dim || t + k >= end) continue;
          Four<X> out;
          out.set(dx[k]);
          *reinterpret_cast<Four<X>*>(a.dx + (t + k) * a.dx_stride + col) = out;
        }
      }
    }
    columns.store(a, col);
  }
  store_bias<kGates>(a, shared);  // last: nobody waits for it
}

// Any shape. One block for each run of tokens and gate: gradients of the pre-activations.
template <typename X, typename W>
__global__ void __launch_bounds__(kThreads) gate_slope_any(GatesBackward<X, W> a) {
  __shared__ float shared[kWarp];
  const int64_t gate = blockIdx.y;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * a.block_tokens;
  const int64_t end = min(begin + a.block_tokens, a.tokens);
  float sum = 0.0F;
  for (int64_t t = begin + threadIdx.x; t < end; t += kThreads) sum += through_cap(a, t, gate);
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) a.bias_partial[blockIdx.x * 2 * a.heads + gate] = sum;
}
template <typename X, typename W>
__global__ void __launch_bounds__(kThreads) gate_weight_any(GatesBackward<X, W> a) {
  const int64_t col = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  const int64_t gate = blockIdx.z;
  if (col >= a.dim) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * a.block_tokens;
  const int64_t end = min(begin + a.block_tokens, a.tokens);
  float sum = 0.0F;
  for (int64_t t = begin; t < end; ++t) {
    sum = fmaf(*gate_value(a.di, a.df, a, t, gate), to_f32(a.x[t * a.x_stride + col]), sum);
  }
  a.partial[(static_cast<int64_t>(blockIdx.x) * 2 * a.heads + gate) * a.dim + col] = sum;
}
// dx[t] += sum over gates, in rising order, of d[t, gate] w[gate].
template <typename X, typename W>
__global__ void __launch_bounds__(kThreads) gate_input_any(GatesBackward<X, W> a) {
  const int64_t t = blockIdx.x;
  for (int64_t col = threadIdx.x; col < a.dim; col += kThreads) {
    X* dx = a.dx + t * a.dx_stride + col;
    float sum = to_f32(*dx);
    for (int64_t gate = 0; gate < 2 * a.heads; ++gate) {
      sum = fmaf(*gate_value(a.di, a.df, a, t, gate), to_f32(gate_row(a, gate)[col]), sum);
    }
    from_f32(dx, sum);
  }
}

// dw[gate], db[gate] = sums over the blocks' partial ones: left folds over four runs of blocks, the
// runs in order. One block for 64 columns of a gate.
constexpr int kFoldCols = 64;
constexpr int kFoldRuns = 4;
template <typename X, typename W>
__global__ void __launch_bounds__(kFoldCols* kFoldRuns, 4)
    gates_fold_kernel(GatesBackward<X, W> a, int64_t blocks) {
  __shared__ float runs[kFoldRuns][kFoldCols];
  const int64_t gates = 2 * a.heads;
  const int64_t gate = blockIdx.y;
  const int run = static_cast<int>(threadIdx.x) / kFoldCols;
  const int at = static_cast<int>(threadIdx.x) % kFoldCols;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kFoldCols + at;
  const int64_t share = (blocks + kFoldRuns - 1) / kFoldRuns;
  const int64_t end = min((run + 1) * share, blocks);
  float sum = 0.0F;
  if (col < a.dim) {
#pragma unroll 16
    for (int64_t b = run * share; b < end; ++b) {
      sum += __ldg(a.partial + (b * gates + gate) * a.dim + col);
    }
  }
  runs[run][at] = sum;
  __syncthreads();
  const bool low = gate < a.heads;
  if (run == 0 && col < a.dim) {
    for (int k = 1; k < kFoldRuns; ++k) sum += runs[k][at];
    (low ? a.dwi + gate * a.dwi_stride : a.dwf + (gate - a.heads) * a.dwf_stride)[col] = sum;
  }
  if (blockIdx.x == 0 && run == 1 && at < kWarp) {
    float bias = 0.0F;
    for (int64_t b = at; b < blocks; b += kWarp) bias += a.bias_partial[b * gates + gate];
    bias = lanes_sum(bias);
    if (at == 0) (low ? a.dbi[gate] : a.dbf[gate - a.heads]) = bias;
  }
}

// Tokens of a block: as many as a chunk, more where the partials of all blocks would not fit the
// workspace. 0: no size fits.
int64_t tokens_of_block(int64_t tokens, int64_t gates, int64_t dim) {
  const int64_t fit = kStreamWorkspace / (gates * (dim + 1) * static_cast<int64_t>(sizeof(float)));
  return fit < 1 ? 0 : round_up(div_ceil(tokens, fit), int64_t{kChunkTokens});
}

template <typename X, typename W>
Status launch_backward(cudaStream_t stream, const GatesBackward<X, W>& a, bool vectors) {
  const auto blocks = static_cast<unsigned>(div_ceil(a.tokens, a.block_tokens));
  const auto gates = static_cast<unsigned>(2 * a.heads);
  if (vectors && gates <= 8) {
    gates_rows_kernel<8><<<blocks, kBlockThreads<8>, 0, stream>>>(a);
  } else if (vectors && gates <= 16) {
    gates_rows_kernel<16><<<blocks, kBlockThreads<16>, 0, stream>>>(a);
  } else {
    const dim3 columns(blocks, static_cast<unsigned>(div_ceil(a.dim, kThreads)), gates);
    gate_slope_any<<<dim3(blocks, gates), kThreads, 0, stream>>>(a);
    gate_weight_any<<<columns, kThreads, 0, stream>>>(a);
    gate_input_any<<<static_cast<unsigned>(a.tokens), kThreads, 0, stream>>>(a);
  }
  SWAX_TRY(last_launch("mlstm_gates_backward"));
  const dim3 grid(static_cast<unsigned>(div_ceil(a.dim, kFoldCols)), gates);
  gates_fold_kernel<<<grid, kFoldCols * kFoldRuns, 0, stream>>>(a, int64_t{blocks});
  return last_launch("mlstm_gates_backward fold");
}

template <typename X, typename W>
Status backward(Stream& s, const MlstmGatesBackwardArgs& g) {
  GatesBackward<X, W> a;
  a.x = data_of<X>(g.x_TD);
  a.wi = data_of<W>(g.wi_ND);
  a.wf = data_of<W>(g.wf_ND);
  a.i = g.i_TN.f32();
  a.f = g.f_TN.f32();
  a.di = g.di_TN.f32();
  a.df = g.df_TN.f32();
  a.dx = data_of<X>(g.dx_TD);
  a.dbi = g.dbi_N.f32();
  a.dbf = g.dbf_N.f32();
  a.dwi = g.dwi_ND.f32();
  a.dwf = g.dwf_ND.f32();
  a.dwi_stride = row_stride(g.dwi_ND);
  a.dwf_stride = row_stride(g.dwf_ND);
  a.x_stride = row_stride(g.x_TD);
  a.wi_stride = row_stride(g.wi_ND);
  a.wf_stride = row_stride(g.wf_ND);
  a.dx_stride = row_stride(g.dx_TD);
  a.tokens = g.x_TD.dims[0];
  a.dim = g.x_TD.dims[1];
  a.heads = g.wi_ND.dims[0];
  a.block_tokens = tokens_of_block(a.tokens, 2 * a.heads, a.dim);
  a.cap = g.cap;
  if (a.block_tokens == 0) {
    return invalid_argument("mlstm_gates_backward: N D=" + to_text(a.heads * a.dim) +
                            ": must fit the workspace of a stream");
  }
  const bool vectors = a.dim % kVec == 0 && vector_rows(g.x_TD) && vector_rows(g.wi_ND) &&
                       vector_rows(g.wf_ND) && vector_rows(g.dx_TD);
  a.partial = static_cast<float*>(static_cast<CudaStream&>(s).workspace());
  a.bias_partial = a.partial + div_ceil(a.tokens, a.block_tokens) * 2 * a.heads * a.dim;
  return launch_backward(raw(s), a, vectors);
}

}  // namespace

Status CudaBackend::mlstm_gates_backward(Stream& s, const MlstmGatesBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("mlstm_gates_backward",
                     {&a.x_TD, &a.wi_ND, &a.wf_ND, &a.i_TN, &a.f_TN, &a.di_TN, &a.df_TN, &a.dx_TD,
                      &a.dwi_ND, &a.dwf_ND, &a.dbi_N, &a.dbf_N}));
  const bool narrow_w = a.wi_ND.dtype == DType::kBF16;
  if (a.x_TD.dtype == DType::kBF16) {
    return narrow_w ? backward<bf16, bf16>(s, a) : backward<bf16, float>(s, a);
  }
  return narrow_w ? backward<float, bf16>(s, a) : backward<float, float>(s, a);
}

}  // namespace swax::cuda
