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

// Sums and logs of a chunk; what needs m comes later.
__global__ void chunk_kernel(MlstmTuned x) {
  __shared__ double sums[kThreads];
  __shared__ int ints[kThreads];
  const int c = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int r = static_cast<int>(threadIdx.x);
  const int t = c * kMlstmChunk + r;
  const bool real = t < x.tokens;
  const int64_t gate = static_cast<int64_t>(t) * x.heads + head;
  const bool border = real && x.reset != nullptr && x.reset[t] != 0;
  const int start = mlstm_scan(border ? r : -1, 0, ints, [](int a, int b) { return max(a, b); });
  const double forget = real && !border ? log_sigmoid(x.f[gate]) : 0.0F;
  const int low = start < 0 ? 0 : start;
  const double prefix = mlstm_scan(forget, low, sums, MlstmAdd{});
  const double column = real ? x.i[gate] - prefix : -INFINITY;
  const double highest =
      mlstm_scan(column, low, sums, [](double a, double b) { return fmax(a, b); });
  if (!real) return;
  const int64_t at = static_cast<int64_t>(head) * x.tokens + t;
  x.prefix[at] = prefix;
  x.column[at] = column;
  x.column_max[at] = highest;
  x.start[at] = start;
  x.column_log[at] = split_log(column);
  if (r + 1 == kMlstmChunk || t + 1 == x.tokens) {
    const int64_t chunk = static_cast<int64_t>(head) * x.chunks + c;
    x.sum[chunk] = start < 0 ? prefix : -INFINITY;
    x.top[chunk] = prefix + highest;
  }
}

// m before each chunk of a head (or read), and the weight of the carry.
__global__ void carry_kernel(MlstmTuned x, bool find_m, bool initial_state) {
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
      if (!find_m) m[threadIdx.x + 1] = x.m_state[static_cast<int64_t>(c + 1) * x.heads + head];
    }
    if (threadIdx.x == 0 && begin == 0) {
      m[0] = find_m && !initial_state ? kMlstmNoPast : x.m_state[head];
      if (find_m && !initial_state) x.m_state[head] = kMlstmNoPast;
    }
    __syncthreads();
    if (threadIdx.x == 0 && find_m) {
      for (int k = 0; k < count; ++k) {
        m[k + 1] = static_cast<float>(fmax(sum[k] + m[k], top[k]));
      }
    }
    __syncthreads();
    if (c < x.chunks) {
      const float after = m[threadIdx.x + 1];
      if (find_m) x.m_state[static_cast<int64_t>(c + 1) * x.heads + head] = after;
      x.carry_weight[head * x.chunks + c] =
          expf(static_cast<float>(sum[threadIdx.x] + m[threadIdx.x] - after));
    }
    __syncthreads();
    if (threadIdx.x == 0) m[0] = m[count];
    __syncthreads();
  }
}

// Rows of 256: out = round(row * out_weight), and sum over the chunk of row * sum_weight in f32.
// A warp takes every eighth token, a lane 8 columns.
__device__ void weigh_rows(const MlstmTuned& x, MlstmRows rows, MlstmRows out, int64_t out_width,
                           const float* out_weight, const float* sum_weight, float* sum) {
  __shared__ float partial[8][kMlstmQk];
  const int c = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int column = static_cast<int>(threadIdx.x % 32 * 8);
  float total[8] = {};
#pragma unroll 4
  for (int r = warp; r < kMlstmChunk && c * kMlstmChunk + r < x.tokens; r += 8) {
    const int64_t t = static_cast<int64_t>(c) * kMlstmChunk + r;
    const Bf16x8 in = load8(rows.data + t * rows.stride + head * kMlstmQk + column);
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      y[i] = in.get(i) * out_weight[r];
      total[i] = fmaf(in.get(i), sum_weight[r], total[i]);
    }
    *reinterpret_cast<uint4*>(out.data + t * out.stride + head * out_width + column) = make_uint4(
        pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7]));
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) partial[warp][column + i] = total[i];
  __syncthreads();
  float all = 0.0F;
  for (int w = 0; w < 8; ++w) all += partial[w][threadIdx.x];
  sum[(static_cast<int64_t>(c) * x.heads + head) * kMlstmQk + threadIdx.x] = all;
}

struct TokenWeights {
  float read;
  float write;
};

// Weights of the token of this thread; with find_m its m too.
__device__ TokenWeights token_weights(const MlstmTuned& x, bool find_m) {
  const int c = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int r = static_cast<int>(threadIdx.x);
  const int t = c * kMlstmChunk + r;
  if (t >= x.tokens) return {0.0F, 0.0F};
  const int64_t at = static_cast<int64_t>(head) * x.tokens + t;
  const int64_t index = static_cast<int64_t>(t) * x.heads + head;
  const int last = min((c + 1) * kMlstmChunk, x.tokens) - 1;
  const int64_t end = static_cast<int64_t>(head) * x.tokens + last;
  const double before = x.m_state[static_cast<int64_t>(c) * x.heads + head];
  const double after = x.m_state[static_cast<int64_t>(c + 1) * x.heads + head];
  const double prefix = x.prefix[at];
  const double past = x.start[at] < 0 ? before : -INFINITY;
  if (find_m) x.m[index] = static_cast<float>(prefix + fmax(past, x.column_max[at]));
  const double m = x.m[index];
  const double write = x.prefix[end] + x.column[at] - after;
  const TokenWeights w{x.scale * expf(static_cast<float>(prefix + past - m)),
                       r >= x.start[end] ? expf(static_cast<float>(write)) : 0.0F};
  x.row_log[at] = split_log(prefix - m);
  x.read_weight[at] = w.read;
  x.write_weight[at] = w.write;
  return w;
}

__global__ void forward_kernel(MlstmTuned x, MlstmRows k, MlstmRows weighted) {
  __shared__ float weight[kThreads];
  weight[threadIdx.x] = token_weights(x, true).write;
  __syncthreads();
  weigh_rows(x, k, weighted, kMlstmV, weight, weight, x.dn);
}

__global__ void backward_kernel(MlstmTuned x, MlstmRows q, MlstmRows h, MlstmRows dh,
                                MlstmRows weighted) {
  __shared__ float out_weight[kThreads];
  __shared__ float sum_weight[kThreads];
  __shared__ float along[kThreads];
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
  const TokenWeights w = token_weights(x, false);
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x);
  const int t = c * kMlstmChunk + r;
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
  weigh_rows(x, q, weighted, kMlstmV, out_weight, sum_weight, x.dn);
}

// A thread per key column; chunks in order, or last first. What several chunks add is read before
// the first of them is used.
__global__ void normaliser_kernel(MlstmTuned x, bool backward, bool initial_state) {
  constexpr int kAhead = 16;
  const int64_t head = blockIdx.x;
  const int64_t k = threadIdx.x;
  const auto chunk = [&](int step) { return backward ? x.chunks - 1 - step : step; };
  const auto at = [&](int64_t c) { return (c * x.heads + head) * kMlstmQk + k; };
  float sum = !backward && initial_state ? x.n[at(0)] : 0.0F;
  if (!backward) x.n[at(0)] = sum;
  for (int begin = 0; begin < x.chunks; begin += kAhead) {
    float added[kAhead];
    float carry[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int c = chunk(min(begin + i, x.chunks - 1));
      added[i] = x.dn[at(c)];
      carry[i] = x.carry_weight[head * x.chunks + c];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= x.chunks) break;
      const int c = chunk(begin + i);
      if (backward) x.dn[at(c)] = sum;
      sum = fmaf(sum, carry[i], added[i]);
      if (!backward) x.n[at(c + 1)] = sum;
    }
  }
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
  SWAX_TRY(launch("mlstm", heads, carry_kernel, x, true, initial_state));
  return launch("mlstm", per_chunk(x, stream), forward_kernel, x, k, weighted);
}

Status launch_mlstm_gates_backward(CUstream_st* stream, const MlstmTuned& x, MlstmRows q,
                                   MlstmRows h, MlstmRows dh, MlstmRows weighted) {
  SWAX_TRY(launch("mlstm_backward", per_chunk(x, stream), chunk_kernel, x));
  const Launch heads{static_cast<unsigned>(x.heads), kThreads, 0, stream};
  SWAX_TRY(launch("mlstm_backward", heads, carry_kernel, x, false, true));
  return launch("mlstm_backward", per_chunk(x, stream), backward_kernel, x, q, h, dh, weighted);
}

Status launch_mlstm_normaliser(CUstream_st* stream, const MlstmTuned& x, bool backward,
                               bool initial_state) {
  const Launch heads{static_cast<unsigned>(x.heads), kMlstmQk, 0, stream};
  return launch("mlstm", heads, normaliser_kernel, x, backward, initial_state);
}

}  // namespace swax::cuda
