// Backward of the gates of the mLSTM. A block owns a run of tokens: it forms the gradients of the
// pre-activations, then goes once over x and dx of its tokens, four columns a thread, with the
// partial gradients of up to 16 weights in registers, and the weights too where there are 8 at most
// (16 lie in shared memory). Partial gradients lie in the stream's workspace and are folded over
// blocks. Other shapes take plain kernels.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gates_backward.cuh"
#include "kernels/cuda/kernel_launch.cuh"
#include "kernels/cuda/launch.h"
#include "proto/base/text.h"

namespace swax::cuda {
namespace {

template <int kGates, typename X, typename W>
__global__ void __launch_bounds__(kBlock, 1) gates_rows_kernel(GatesBackward<X, W> a) {
  constexpr int kTokens = kAhead<kGates>;
  constexpr int kChunk = kChunkTokens<kGates>;
  extern __shared__ __align__(16) unsigned char weights[];
  __shared__ __align__(16) float d[kGates][kChunk];
  __shared__ float shared[kBlock];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * a.block_tokens;
  const int64_t end = min(begin + a.block_tokens, a.tokens);
  int64_t col = static_cast<int64_t>(threadIdx.x) * kCols;
  GateRows<X, kTokens> next;
  next.fetch(a, begin, end, col);
  form_slopes<kGates>(a, begin, end, shared);
  for (; col - static_cast<int64_t>(threadIdx.x) * kCols < a.dim; col += kBlock * kCols) {
    GateColumns<kGates, W> columns;
    columns.start(a, col, weights);
    if (col >= kBlock * kCols) next.fetch(a, begin, end, col);
    for (int64_t chunk = begin; chunk < end; chunk += kChunk) {
      load_slopes<kGates>(a, chunk, end, d);
      const int64_t chunk_end = min(chunk + kChunk, end);
      for (int64_t t = chunk; t < chunk_end; t += kTokens) {
        float x[kTokens][kCols];
        float dx[kTokens][kCols];
#pragma unroll
        for (int k = 0; k < kTokens; ++k) {
          next.x[k].get(x[k]);
          next.dx[k].get(dx[k]);
        }
        next.fetch(a, t + kTokens, end, col);
        columns.add(d, t - chunk, x, dx);
#pragma unroll
        for (int k = 0; k < kTokens; ++k) {
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
  const int64_t chunk = gates <= 8 ? kChunkTokens<8> : kChunkTokens<16>;
  const int64_t fit = kStreamWorkspace / (gates * (dim + 1) * static_cast<int64_t>(sizeof(float)));
  return fit < 1 ? 0 : round_up(div_ceil(tokens, fit), chunk);
}

template <typename X, typename W>
Status launch_backward(cudaStream_t stream, const GatesBackward<X, W>& a, bool vectors) {
  const auto blocks = static_cast<unsigned>(div_ceil(a.tokens, a.block_tokens));
  const auto gates = static_cast<unsigned>(2 * a.heads);
  if (vectors && gates <= 8) {
    gates_rows_kernel<8><<<blocks, kBlock, 0, stream>>>(a);
  } else if (vectors && gates <= 16) {
    const Launch l{dim3(blocks), dim3(kBlock), 16 * kBlock * sizeof(Four<W>), stream};
    SWAX_TRY(launch("mlstm_gates_backward", l, gates_rows_kernel<16, X, W>, a));
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
