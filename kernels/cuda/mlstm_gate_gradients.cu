// Gradients of the gates of the tuned mLSTM form, from the parts that the other kernels leave: sums
// over pairs inside a chunk, products of q dq and k dk through the states, <C', dC'>.
#include "kernels/cuda/kernel_launch.cuh"
#include "kernels/cuda/mlstm_chunk.cuh"
#include "kernels/cuda/mlstm_tuned.h"

namespace swax::cuda {
namespace {

constexpr int kThreads = kMlstmChunk;

// Sum over the block in a fixed order; every thread gets it.
__device__ float block_sum(float value) {
  __shared__ float partial[kThreads / 32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0F;
  for (int w = 0; w < kThreads / 32; ++w) sum += partial[w];
  return sum;
}

// Weight of the carry times <[C | n] before the chunk, [dC | dn] after it>.
__device__ float carried(const MlstmTuned& x, int64_t head, int c) {
  static_assert(kThreads == kMlstmQk && kMlstmCarriedParts <= kThreads);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = (int64_t{c} * x.heads + head) * kMlstmQk + thread;
  const int64_t chunk = head * x.chunks + c;
  float sum = x.n[row] * x.dn[row];
  if (thread < kMlstmCarriedParts) {
    sum += x.carried[chunk * kMlstmCarriedParts + thread];
  }
  return block_sum(sum) * x.carry_weight[chunk];
}

// k dk inside the chunk, of the token `local` of chunk c: its parts in order. Queries of the first
// half see keys of the first half alone.
__device__ double key_pairs(const MlstmTuned& x, int64_t head, int c, int local) {
  constexpr int kHalf = kMlstmPairParts / 2;
  const int begin = local < kMlstmChunk / 2 ? 0 : kHalf;
  const int end = c * kMlstmChunk + kMlstmChunk / 2 < x.tokens ? kMlstmPairParts : kHalf;
  double sum = 0.0;
  for (int part = begin; part < end; ++part) {
    sum += x.key_pairs[(part * x.heads + head) * x.tokens + c * kMlstmChunk + local];
  }
  return sum;
}

// q dq inside the chunk, of token t: keys of the first half, and for queries of the second those of
// the second too.
__device__ double query_pairs(const MlstmTuned& x, int64_t head, int t) {
  const int64_t at = head * x.tokens + t;
  const double first = x.query_pairs[at];
  if (t % kMlstmChunk < kMlstmChunk / 2) return first;
  return first + x.query_pairs[int64_t{x.heads} * x.tokens + at];
}

// df of a token: pairs around it, reads of the past behind it, writes before it, the carry. Pairs
// that do not span the token cancel in the running sum of q dq - k dk: f64 of the same f32 values.
__global__ void gate_gradients_kernel(MlstmTuned x) {
  __shared__ double sums[kThreads];
  __shared__ double pairs_of[kThreads];
  const int c = static_cast<int>(blockIdx.x);
  const int64_t head = blockIdx.y;
  const int r = static_cast<int>(threadIdx.x);
  const int t = c * kMlstmChunk + r;
  const bool real = t < x.tokens;
  const int64_t at = head * x.tokens + t;
  const double along_carry = carried(x, head, c);
  const double own = real ? key_pairs(x, head, c, r) : 0.0;
  pairs_of[r] = own;
  const double write = real ? x.key_past[at] : 0.0F;
  const double writes = mlstm_scan(write, 0, sums, MlstmAdd{}) - write;
  // Scans from the end: a thread takes the token mirrored.
  const int local = kMlstmChunk - 1 - r;
  const int64_t mirror = head * x.tokens + c * kMlstmChunk + local;
  const bool there = c * kMlstmChunk + local < x.tokens;
  const double behind =
      there ? query_pairs(x, head, c * kMlstmChunk + local) - pairs_of[local] + x.query_past[mirror]
            : 0.0;
  const double reads = mlstm_scan(behind, 0, sums, MlstmAdd{});
  pairs_of[local] = reads;
  __syncthreads();
  if (!real) return;
  const int64_t index = t * int64_t{x.heads} + head;
  const bool border = x.reset != nullptr && x.reset[t] != 0;
  const float through = 1.0F / (1.0F + expf(x.f[index]));
  const auto along = static_cast<float>(pairs_of[r] + writes + along_carry);
  x.df[index] = border ? 0.0F : along * through;
  x.di[index] = static_cast<float>(own + write);
}

Launch per_chunk(const MlstmTuned& x, CUstream_st* stream) {
  return {dim3(static_cast<unsigned>(x.chunks), static_cast<unsigned>(x.heads)), kThreads, 0,
          stream};
}

}  // namespace

Status launch_mlstm_gate_gradients(CUstream_st* stream, const MlstmTuned& x) {
  return launch("mlstm_backward", per_chunk(x, stream), gate_gradients_kernel, x);
}

}  // namespace swax::cuda
