// Gate pre-activations of the mLSTM with their soft cap, and the backward of both. 2 N outputs are
// too few for a matrix product: one warp a token forward, weights from the cache.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/fold_rows.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/vec.cuh"
#include "proto/base/text.h"

namespace swax::cuda {
namespace {

constexpr int kGroup =
    8;  // gates of one pass over x; gate g < N is i of head g, else f of head g - N
constexpr int kGateWarps = 8;

template <typename X, typename W>
struct Gates {
  const X* x;
  const W* wi;
  const W* wf;
  const W* bi;
  const W* bf;
  float* i;
  float* f;
  int64_t x_stride, wi_stride, wf_stride;
  int64_t tokens, dim, heads;
  float cap;
};
template <typename G>
__device__ __forceinline__ auto gate_row(const G& a, int64_t gate) {
  return gate < a.heads ? a.wi + gate * a.wi_stride : a.wf + (gate - a.heads) * a.wf_stride;
}
// Element [t, head] of i_TN or f_TN.
template <typename G>
__device__ __forceinline__ float* gate_value(float* i, float* f, const G& a, int64_t t,
                                             int64_t gate) {
  return gate < a.heads ? i + t * a.heads + gate : f + t * a.heads + gate - a.heads;
}

template <bool kAligned, typename X, typename W>
__global__ void __launch_bounds__(kGateWarps* kWarp) gates_kernel(Gates<X, W> a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kGateWarps + threadIdx.x / kWarp;
  if (t >= a.tokens) return;
  const X* x = a.x + t * a.x_stride;
  for (int64_t first = 0; first < 2 * a.heads; first += kGroup) {
    const int gates = static_cast<int>(min(int64_t{kGroup}, 2 * a.heads - first));
    float sum[kGroup] = {};
    for (int64_t col = lane * kVec; col < a.dim; col += kWarp * kVec) {
      float vx[kVec];
      load8<kAligned>(x, col, a.dim, vx);
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        if (g >= gates) break;
        float w[kVec];
        load8<kAligned>(gate_row(a, first + g), col, a.dim, w);
        float part = vx[0] * w[0];
#pragma unroll
        for (int k = 1; k < kVec; ++k) part = fmaf(vx[k], w[k], part);
        sum[g] += part;
      }
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      if (g >= gates) break;
      const int64_t gate = first + g;
      const W* bias = gate < a.heads ? a.bi + gate : a.bf + (gate - a.heads);
      const float z = lanes_sum(sum[g]) + to_f32(*bias);
      if (lane == 0) {
        *gate_value(a.i, a.f, a, t, gate) = a.cap > 0.0F ? a.cap * tanh_slope(z / a.cap).tanh : z;
      }
    }
  }
}

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
  float* dbi;
  float* dbf;
  float* partial;  // [blocks, 2 N, D]
  int64_t x_stride, wi_stride, wf_stride, dx_stride;
  int64_t tokens, dim, heads, block_tokens;
  float cap;
};

// One block a gate: the slope of the cap, and the bias gradient.
template <typename X, typename W>
__global__ void __launch_bounds__(1024) gate_slope_kernel(GatesBackward<X, W> a) {
  __shared__ float shared[kWarp];
  const int64_t gate = blockIdx.x;
  float sum = 0.0F;
  for (int64_t t = threadIdx.x; t < a.tokens; t += blockDim.x) {
    float* d = gate_value(a.di, a.df, a, t, gate);
    const float value = *gate_value(const_cast<float*>(a.i), const_cast<float*>(a.f), a, t, gate);
    float slope = 1.0F;
    if (a.cap > 0.0F) {
      const float ratio = value / a.cap;
      slope = (1.0F - ratio) * (1.0F + ratio);
    }
    const float through = *d * slope;
    *d = through;
    sum += through;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) (gate < a.heads ? a.dbi[gate] : a.dbf[gate - a.heads]) = sum;
}

// partial[block, gate, col] = sum over the block's tokens, in rising order, of d[t, gate] x[t,
// col].
template <bool kAligned, typename X, typename W>
__global__ void __launch_bounds__(kThreads) gate_weight_kernel(GatesBackward<X, W> a) {
  const int64_t col = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVec;
  if (col >= a.dim) return;
  const int64_t first = static_cast<int64_t>(blockIdx.z) * kGroup;
  const int gates = static_cast<int>(min(int64_t{kGroup}, 2 * a.heads - first));
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * a.block_tokens;
  const int64_t end = min(begin + a.block_tokens, a.tokens);
  float sum[kGroup][kVec] = {};
#pragma unroll 4
  for (int64_t t = begin; t < end; ++t) {
    float x[kVec];
    load8<kAligned>(a.x + t * a.x_stride, col, a.dim, x);
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      if (g >= gates) break;
      const float d = *gate_value(a.di, a.df, a, t, first + g);
#pragma unroll
      for (int k = 0; k < kVec; ++k) sum[g][k] = fmaf(d, x[k], sum[g][k]);
    }
  }
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    if (g >= gates) break;
    float* out = a.partial + (static_cast<int64_t>(blockIdx.x) * 2 * a.heads + first + g) * a.dim;
    store8<kAligned>(out, col, a.dim, sum[g]);
  }
}

// dx[t] += sum over gates, in rising order, of d[t, gate] w[gate].
template <bool kAligned, typename X, typename W>
__global__ void __launch_bounds__(kThreads) gate_input_kernel(GatesBackward<X, W> a) {
  const int64_t packs = (a.dim + kVec - 1) / kVec;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; e < a.tokens * packs;
       e += step) {
    const int64_t t = e / packs;
    const int64_t col = (e - t * packs) * kVec;
    float dx[kVec];
    load8<kAligned>(a.dx + t * a.dx_stride, col, a.dim, dx);
    for (int64_t head = 0; head < a.heads; ++head) {
#pragma unroll
      for (int kind = 0; kind < 2; ++kind) {
        const int64_t gate = head + kind * a.heads;
        float w[kVec];
        load8<kAligned>(gate_row(a, gate), col, a.dim, w);
        const float d = *gate_value(a.di, a.df, a, t, gate);
#pragma unroll
        for (int k = 0; k < kVec; ++k) dx[k] = fmaf(d, w[k], dx[k]);
      }
    }
    store8<kAligned>(a.dx + t * a.dx_stride, col, a.dim, dx);
  }
}

// Tokens of one partial sum: 64, more where the partials of all blocks would not fit the workspace.
int64_t tokens_of_block(int64_t tokens, int64_t gates, int64_t dim) {
  const int64_t fit = kStreamWorkspace / (gates * dim * static_cast<int64_t>(sizeof(float)));
  return fit < 1 ? 0 : std::max<int64_t>(64, div_ceil(tokens, fit));
}

template <typename X, typename W>
Status forward(cudaStream_t stream, const MlstmGatesArgs& g) {
  const Gates<X, W> a{data_of<X>(g.x_TD),  data_of<W>(g.wi_ND),
                      data_of<W>(g.wf_ND), data_of<W>(g.bi_N),
                      data_of<W>(g.bf_N),  g.i_TN.f32(),
                      g.f_TN.f32(),        row_stride(g.x_TD),
                      row_stride(g.wi_ND), row_stride(g.wf_ND),
                      g.x_TD.dims[0],      g.x_TD.dims[1],
                      g.wi_ND.dims[0],     g.cap};
  const auto blocks = static_cast<unsigned>(div_ceil(a.tokens, kGateWarps));
  const bool vectors =
      a.dim % kVec == 0 && vector_rows(g.x_TD) && vector_rows(g.wi_ND) && vector_rows(g.wf_ND);
  if (vectors) {
    gates_kernel<true><<<blocks, kGateWarps * kWarp, 0, stream>>>(a);
  } else {
    gates_kernel<false><<<blocks, kGateWarps * kWarp, 0, stream>>>(a);
  }
  return last_launch("mlstm_gates");
}

template <bool kAligned, typename X, typename W>
void launch_backward(cudaStream_t stream, const GatesBackward<X, W>& a) {
  const int64_t blocks = div_ceil(a.tokens, a.block_tokens);
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(div_ceil(a.dim, int64_t{kThreads} * kVec)),
                  static_cast<unsigned>(div_ceil(2 * a.heads, kGroup)));
  gate_slope_kernel<<<static_cast<unsigned>(2 * a.heads), 1024, 0, stream>>>(a);
  gate_weight_kernel<kAligned><<<grid, kThreads, 0, stream>>>(a);
  gate_input_kernel<kAligned>
      <<<blocks_for(a.tokens * div_ceil(a.dim, kVec)), kThreads, 0, stream>>>(a);
}

// dw[head] = left fold over the blocks' partial sums.
__global__ void fold_gates_kernel(const float* partial, int64_t blocks, int64_t gates, int64_t dim,
                                  float* dwi, float* dwf, int64_t wi_stride, int64_t wf_stride) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t gate = blockIdx.y;
  if (col >= dim) return;
  const float* from = partial + gate * dim + col;
  const int64_t step = gates * dim;
  float sum = from[0];
#pragma unroll 8
  for (int64_t b = 1; b < blocks; ++b) sum += from[b * step];
  float* out = gate < gates / 2 ? dwi + gate * wi_stride : dwf + (gate - gates / 2) * wf_stride;
  out[col] = sum;
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
  a.partial = static_cast<float*>(static_cast<CudaStream&>(s).workspace());
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
  if (vectors) {
    launch_backward<true>(raw(s), a);
  } else {
    launch_backward<false>(raw(s), a);
  }
  SWAX_TRY(last_launch("mlstm_gates_backward"));
  constexpr int kFoldThreads = 64;
  const dim3 grid(static_cast<unsigned>(div_ceil(a.dim, kFoldThreads)),
                  static_cast<unsigned>(2 * a.heads));
  fold_gates_kernel<<<grid, kFoldThreads, 0, raw(s)>>>(
      a.partial, div_ceil(a.tokens, a.block_tokens), 2 * a.heads, a.dim, g.dwi_ND.f32(),
      g.dwf_ND.f32(), row_stride(g.dwi_ND), row_stride(g.dwf_ND));
  return last_launch("mlstm_gates_backward fold");
}

}  // namespace

Status CudaBackend::mlstm_gates(Stream& s, const MlstmGatesArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(
      need_data("mlstm_gates", {&a.x_TD, &a.wi_ND, &a.wf_ND, &a.bi_N, &a.bf_N, &a.i_TN, &a.f_TN}));
  const bool narrow_w = a.wi_ND.dtype == DType::kBF16;
  if (a.x_TD.dtype == DType::kBF16) {
    return narrow_w ? forward<bf16, bf16>(raw(s), a) : forward<bf16, float>(raw(s), a);
  }
  return narrow_w ? forward<float, bf16>(raw(s), a) : forward<float, float>(raw(s), a);
}

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
