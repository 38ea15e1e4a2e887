// Backward of tuned sliding-window attention, without atomics, in one of two forms. Internal to
// kernels/cuda.
//
// Kept, where the scratch has room for it: delta = do . o; then dk and dv (a piece of work is 128
// keys of a key head, the query tiles of its group pass by, heads and tokens rising), which keeps
// dS in memory; then dq = scale dS K (a piece is 256 queries, key tiles pass by). The last two for
// as many key heads at a time as there is room for.
//
// Formed twice, anywhere: delta and dq (a piece is 128 queries, key tiles pass by), then dk and dv.
// Scores and dP are formed in both: seven products of a tile pair instead of five, and the same
// bits.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/swa_kept.cuh"
#include "kernels/cuda/swa_tile.cuh"
#include "proto/base/status.h"

struct CUstream_st;  // *: cudaStream_t

namespace swax::cuda {

constexpr int kSwaQueryTile = 64;  // of the second kernel

// Angles of the rows of dq and dk, which leave turned back by them; cos null: they stay.
struct SwaTurn {
  const float* cos;  // [T, 64]
  const float* sin;
  int64_t cos_stride, sin_stride;
};

// Stays where it is written: the compiler would move it in front of the products, into registers
// that these need.
__device__ __forceinline__ float2 angle_pair(const float* p) {
  float2 x;
  asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(p));
  return x;
}

// Turns the two rows of a thread's accumulator back, `meanwhile` running once their angles are on
// the way. Columns i and i + 64, a pair of RoPE, lie in one thread: this costs the reading of the
// angles (from L2: all heads share them), where an op of its own reads and writes dq and dk, and
// rounds them once more.
template <typename Meanwhile>
__device__ __forceinline__ void turn_back(const SwaTurn& turn, int tokens, float (&d)[64],
                                          const int (&rows)[2], const Meanwhile& meanwhile) {
  if (turn.cos == nullptr) return meanwhile();
  float2 cos[2][8];
  float2 sin[2][8];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t t = min(rows[half], tokens - 1);
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      cos[half][g] = angle_pair(turn.cos + t * turn.cos_stride + 8 * g + lane_column());
      sin[half][g] = angle_pair(turn.sin + t * turn.sin_stride + 8 * g + lane_column());
    }
    if (half == 0) meanwhile();
  }
#pragma unroll
  for (int e = 0; e < 32; ++e) {
    const float2 cs = cos[e % 4 / 2][e / 4];
    const float2 sn = sin[e % 4 / 2][e / 4];
    const float c = e % 2 == 0 ? cs.x : cs.y;
    const float s = e % 2 == 0 ? sn.x : sn.y;
    const float x = d[e];
    const float y = d[e + 32];
    d[e] = fmaf(y, s, x * c);
    d[e + 32] = fmaf(-x, s, y * c);
  }
}

struct SwaBackwardParams {
  TensorMap q;  // boxes of 128 tokens, the last three of kSwaQueryTile
  TensorMap k;
  TensorMap v;
  TensorMap d_o;
  TensorMap q_small;
  TensorMap do_small;
  TensorMap k_small;
  SwaKept kept;
  SwaBand band;
  SwaTurn turn;
  const float* lse;  // [T, H]
  float* delta;      // [T, H]
  const __nv_bfloat16* o;
  const __nv_bfloat16* d_o_rows;
  __nv_bfloat16* dq;
  __nv_bfloat16* dk;
  __nv_bfloat16* dv;
  int64_t o_stride, do_stride, dq_stride, dk_stride, dv_stride;
  int heads;
  int group;               // query heads of a key head
  int kv_first, kv_heads;  // key heads of this launch
  float scale;
};

// Both write delta_TH of all heads.
Status launch_swa_delta(CUstream_st* stream, const SwaBackwardParams& p);
Status launch_swa_dq(CUstream_st* stream, const SwaBackwardParams& p);
// After one of them. With p.kept.tiles it keeps dS.
Status launch_swa_dk_dv(CUstream_st* stream, const SwaBackwardParams& p);
// dq from the dS that was kept.
Status launch_swa_kept_dq(CUstream_st* stream, const SwaBackwardParams& p);

}  // namespace swax::cuda
