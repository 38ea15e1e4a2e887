// Gate weights of the tuned mLSTM form: a block per (chunk, head), a thread per token. Sums of log
// gates stay inside a chunk and a segment (the tokens of a document inside the chunk) and are f64:
// a weight is the difference of two of them.
#include <algorithm>

#include "kernels/cuda/hopper_tile.cuh"
#include "kernels/cuda/mlstm_chunk.cuh"
#include "kernels/cuda/mlstm_tuned.h"
#include "kernels/cuda/mlstm_view.cuh"

namespace swax::cuda {
namespace {

constexpr int kThreads = kMlstmChunk;

__device__ MlstmLog split_log(double log) {
  constexpr double kLog2E = 1.4426950408889634;
  const double x = log * kLog2E;
  const double whole = rint(x);
  return {static_cast<float>(whole), static_cast<float>(x - whole)};
}

// Sums of the token of this thread, inside its segment.
struct Sums {
  int start;       // first token of the segment in the chunk; -1: also the past is seen
  double prefix;   // log forget gates up to the token
  double column;   // input gate minus prefix; -inf behind the last token
  double highest;  // largest column up to the token; forward alone
};

// Of the chunk of this block, by all its threads.
template <bool kHighest>
__device__ Sums chunk_sums(const MlstmTuned& x) {
  __shared__ double sums[kThreads];
  __shared__ int ints[kThreads];
  const int head = static_cast<int>(blockIdx.y);
  const int r = static_cast<int>(threadIdx.x);
  const int t = static_cast<int>(blockIdx.x) * kMlstmChunk + r;
  const bool real = t < x.tokens;
  const int64_t gate = static_cast<int64_t>(t) * x.heads + head;
  const bool border = real && x.reset != nullptr && x.reset[t] != 0;
  Sums own{};
  own.start = mlstm_scan(border ? r : -1, 0, ints, [](int a, int b) { return max(a, b); });
  const double forget = real && !border ? log_sigmoid(x.f[gate]) : 0.0F;
  const int low = own.start < 0 ? 0 : own.start;
  own.prefix = mlstm_scan(forget, low, sums, MlstmAdd{});
  own.column = real ? x.i[gate] - own.prefix : -INFINITY;
  if constexpr (kHighest) {
    own.highest = mlstm_scan(own.column, low, sums, [](double a, double b) { return fmax(a, b); });
  }
  if (!real) return own;
  const int64_t at = static_cast<int64_t>(head) * x.tokens + t;
  x.start[at] = own.start;
  x.column_log[at] = split_log(own.column);
  return own;
}

__device__ __forceinline__ bool is_last(const MlstmTuned& x, int r, int t) {
  return t < x.tokens && (r + 1 == kMlstmChunk || t + 1 == x.tokens);
}

// Sums and logs of a chunk; what needs m comes later.
__global__ void chunk_kernel(MlstmTuned x) {
  const int c = static_cast<int>(blockIdx.x);
  const int r = static_cast<int>(threadIdx.x);
  const int t = c * kMlstmChunk + r;
  const Sums own = chunk_sums<true>(x);
  if (t >= x.tokens) return;
  const int64_t at = static_cast<int64_t>(blockIdx.y) * x.tokens + t;
  x.prefix[at] = own.prefix;
  x.column[at] = own.column;
  x.column_max[at] = own.highest;
  if (is_last(x, r, t)) {
    const int64_t chunk = static_cast<int64_t>(blockIdx.y) * x.chunks + c;
    x.sum[chunk] = own.start < 0 ? own.prefix : -INFINITY;
    x.top[chunk] = own.prefix + own.highest;
  }
}

__device__ __forceinline__ float carry_weight(double sum, float before, float after) {
  return expf(static_cast<float>(sum + before - after));
}

// m before each chunk of a head, and the weight of the carry.
__global__ void carry_kernel(MlstmTuned x, bool initial_state) {
  constexpr int kPiece = 256;
  __shared__ double sum[kPiece];
  __shared__ double top[kPiece];
  __shared__ float m[kPiece + 1];
  const int64_t head = blockIdx.x;
  for (int begin = 0; begin < x.chunks; begin += kPiece) {
    const int count = min(kPiece, x.chunks - begin);
    const int c = begin + static_cast<int>(threadIdx.x);
    if (c < x.chunks) {
      sum[threadIdx.x] = x.sum[head * x.chunks + c];
      top[threadIdx.x] = x.top[head * x.chunks + c];
    }
    if (threadIdx.x == 0 && begin == 0) {
      m[0] = initial_state ? x.m_state[head] : kMlstmNoPast;
      if (!initial_state) x.m_state[head] = kMlstmNoPast;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int k = 0; k < count; ++k) {
        m[k + 1] = static_cast<float>(fmax(sum[k] + m[k], top[k]));
      }
    }
    __syncthreads();
    if (c < x.chunks) {
      const float after = m[threadIdx.x + 1];
      x.m_state[static_cast<int64_t>(c + 1) * x.heads + head] = after;
      x.carry_weight[head * x.chunks + c] = carry_weight(sum[threadIdx.x], m[threadIdx.x], after);
    }
    __syncthreads();
    if (threadIdx.x == 0) m[0] = m[count];
    __syncthreads();
  }
}

// Rows of 256 of the chunk: a warp takes every eighth token, a lane 8 columns. What a pass of
// kPass of them needs is read before the pass in front of it is worked on, the first one before
// the weights are there.
constexpr int kWarps = kThreads / 32;
constexpr int kPass = 8;
constexpr int kPasses = kMlstmChunk / kWarps / kPass;
struct RowPass {
  Bf16x8 row[kPass];
};

__device__ __forceinline__ int row_of(int pass, int i) {
  return (pass * kPass + i) * kWarps + static_cast<int>(threadIdx.x / 32);
}

__device__ __forceinline__ RowPass load_pass(const MlstmTuned& x, MlstmRows rows, int pass) {
  const auto column = static_cast<int64_t>(blockIdx.y * kMlstmQk + threadIdx.x % 32 * 8);
  const int begin = static_cast<int>(blockIdx.x) * kMlstmChunk;
  RowPass out;
#pragma unroll
  for (int i = 0; i < kPass; ++i) {
    const int t = min(begin + row_of(pass, i), x.tokens - 1);
    out.row[i] = load8(rows.data + t * rows.stride + column);
  }
  return out;
}

// out = round(row * out_weight), and sum over the chunk of row * sum_weight in f32.
__device__ void weigh_rows(const MlstmTuned& x, MlstmRows rows, RowPass first, MlstmRows out,
                           int64_t out_width, const float* out_weight, const float* sum_weight,
                           float* sum) {
  __shared__ float partial[kWarps][kMlstmQk];
  const int c = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int column = static_cast<int>(threadIdx.x % 32 * 8);
  float total[8] = {};
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const RowPass now = first;
    if (pass + 1 < kPasses) first = load_pass(x, rows, pass + 1);
#pragma unroll
    for (int i = 0; i < kPass; ++i) {
      const int r = row_of(pass, i);
      const int64_t t = static_cast<int64_t>(c) * kMlstmChunk + r;
      if (t >= x.tokens) continue;
      float y[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        y[e] = now.row[i].get(e) * out_weight[r];
        total[e] = fmaf(now.row[i].get(e), sum_weight[r], total[e]);
      }
      *reinterpret_cast<uint4*>(out.data + t * out.stride + head * out_width + column) =
          make_uint4(pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]),
                     pack_bf16(y[6], y[7]));
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) partial[warp][column + i] = total[i];
  __syncthreads();
  float all = 0.0F;
  for (int w = 0; w < kWarps; ++w) all += partial[w][threadIdx.x];
  sum[(static_cast<int64_t>(c) * x.heads + head) * kMlstmQk + threadIdx.x] = all;
}

struct TokenWeights {
  float read;
  float write;
};

// Weights of token r of chunk c, of the segment of the token and of that of the last one.
__device__ TokenWeights token_weights(const MlstmTuned& x, const Sums& own, const Sums& last,
                                      bool find_m) {
  const int c = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int r = static_cast<int>(threadIdx.x);
  const int t = c * kMlstmChunk + r;
  if (t >= x.tokens) return {0.0F, 0.0F};
  const int64_t at = static_cast<int64_t>(head) * x.tokens + t;
  const int64_t index = static_cast<int64_t>(t) * x.heads + head;
  const double before = x.m_state[static_cast<int64_t>(c) * x.heads + head];
  const double after = x.m_state[static_cast<int64_t>(c + 1) * x.heads + head];
  const double past = own.start < 0 ? before : -INFINITY;
  if (find_m) x.m[index] = static_cast<float>(own.prefix + fmax(past, own.highest));
  const double m = x.m[index];
  const double write = last.prefix + own.column - after;
  const TokenWeights w{x.scale * expf(static_cast<float>(own.prefix + past - m)),
                       r >= last.start ? expf(static_cast<float>(write)) : 0.0F};
  x.row_log[at] = split_log(own.prefix - m);
  x.read_weight[at] = w.read;
  x.write_weight[at] = w.write;
  return w;
}

__device__ Sums stored_sums(const MlstmTuned& x, int t) {
  const int64_t at = static_cast<int64_t>(blockIdx.y) * x.tokens + t;
  return {x.start[at], x.prefix[at], x.column[at], x.column_max[at]};
}

__global__ void forward_kernel(MlstmTuned x, MlstmRows k, MlstmRows weighted) {
  __shared__ float weight[kThreads];
  const RowPass first = load_pass(x, k, 0);
  const int begin = static_cast<int>(blockIdx.x) * kMlstmChunk;
  const int last = min(begin + kMlstmChunk, x.tokens) - 1;
  const int own = min(begin + static_cast<int>(threadIdx.x), last);
  weight[threadIdx.x] = token_weights(x, stored_sums(x, own), stored_sums(x, last), true).write;
  __syncthreads();
  weigh_rows(x, k, first, weighted, kMlstmV, weight, weight, x.dn);
}

// along[r] = h . dh of the tokens of the chunk.
__device__ void rows_along(const MlstmTuned& x, MlstmRows h, MlstmRows dh, float* along) {
  const int c = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 4
  for (int r = static_cast<int>(threadIdx.x / 32); r < kMlstmChunk; r += 8) {
    const int64_t t = min(static_cast<int64_t>(c) * kMlstmChunk + r, x.tokens - int64_t{1});
    float sum = 0.0F;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int column = part * 256 + lane * 8;
      const Bf16x8 a = load8(h.data + t * h.stride + head * kMlstmV + column);
      const Bf16x8 b = load8(dh.data + t * dh.stride + head * kMlstmV + column);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum = fmaf(a.get(i), b.get(i), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) along[r] = sum;
  }
}

__global__ void backward_kernel(MlstmTuned x, MlstmRows q, MlstmRows h, MlstmRows dh,
                                MlstmRows weighted) {
  __shared__ float out_weight[kThreads];
  __shared__ float sum_weight[kThreads];
  __shared__ float along[kThreads];
  __shared__ Sums last;
  const int c = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int r = static_cast<int>(threadIdx.x);
  const int t = c * kMlstmChunk + r;
  rows_along(x, h, dh, along);
  const RowPass first = load_pass(x, q, 0);
  const Sums own = chunk_sums<false>(x);
  if (is_last(x, r, t)) {
    last = own;
    const double sum = own.start < 0 ? own.prefix : -INFINITY;
    x.carry_weight[static_cast<int64_t>(head) * x.chunks + c] =
        carry_weight(sum, x.m_state[static_cast<int64_t>(c) * x.heads + head],
                     x.m_state[static_cast<int64_t>(c + 1) * x.heads + head]);
  }
  __syncthreads();
  const TokenWeights w = token_weights(x, own, last, false);
  float inverse = 0.0F;
  float gamma = 0.0F;
  if (t < x.tokens) {
    const int64_t index = static_cast<int64_t>(t) * x.heads + head;
    const float den = x.den[index];
    const MlstmNormaliser by = mlstm_normaliser(den, x.m[index]);
    inverse = by.inverse;
    gamma = by.gradient(den, along[r]);
    x.inverse[static_cast<int64_t>(head) * x.tokens + t] = inverse;
    x.gamma[static_cast<int64_t>(head) * x.tokens + t] = gamma;
  }
  out_weight[r] = w.read * inverse;
  sum_weight[r] = w.read * gamma;
  __syncthreads();
  weigh_rows(x, q, first, weighted, kMlstmV, out_weight, sum_weight, x.dn);
}

Launch per_chunk(const MlstmTuned& x, CUstream_st* stream) {
  return {dim3(static_cast<unsigned>(x.chunks), static_cast<unsigned>(x.heads)), kThreads, 0,
          stream};
}

}  // namespace

Status launch_mlstm_gates(CUstream_st* stream, const MlstmTuned& x, MlstmRows k, MlstmRows weighted,
                          bool initial_state) {
  SWAX_TRY(launch("mlstm", per_chunk(x, stream), chunk_kernel, x));
  const Launch heads{static_cast<unsigned>(x.heads), kThreads, 0, stream};
  SWAX_TRY(launch("mlstm", heads, carry_kernel, x, initial_state));
  return launch("mlstm", per_chunk(x, stream), forward_kernel, x, k, weighted);
}

Status launch_mlstm_gates_backward(CUstream_st* stream, const MlstmTuned& x, MlstmRows q,
                                   MlstmRows h, MlstmRows dh, MlstmRows weighted) {
  return launch("mlstm_backward", per_chunk(x, stream), backward_kernel, x, q, h, dh, weighted);
}

}  // namespace swax::cuda
