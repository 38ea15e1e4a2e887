// Backward of tuned sliding-window attention: two kernels without atomics. The first forms delta =
// do . o and dq (a piece of work is 128 queries, key tiles pass by), the second dk and dv (a piece
// is 128 keys of a key head, the query tiles of its group pass by, heads and tokens rising). Scores
// and dP are formed twice, which saves an f32 buffer for dq and its conversion. Internal to
// kernels/cuda.
#pragma once

#include <cuda_bf16.h>

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

// Turns the two rows of a thread's accumulator back. Columns i and i + 64, a pair of RoPE, lie in
// one thread, so this costs the reading of the angles (from L2: all heads share them), where an op
// of its own reads and writes dq and dk, and rounds them once more.
__device__ __forceinline__ void turn_back(const SwaTurn& turn, int tokens, float (&d)[64],
                                          const int (&rows)[2]) {
  if (turn.cos == nullptr) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (rows[half] >= tokens) continue;
    const float* cos = turn.cos + rows[half] * turn.cos_stride + lane_column();
    const float* sin = turn.sin + rows[half] * turn.sin_stride + lane_column();
#pragma unroll
    for (int g = 0; g < 8; ++g) {
      const float2 c = *reinterpret_cast<const float2*>(cos + 8 * g);
      const float2 s = *reinterpret_cast<const float2*>(sin + 8 * g);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = d[4 * g + 2 * half + i];
        float& y = d[4 * (g + 8) + 2 * half + i];
        const float turned = fmaf(y, i == 0 ? s.x : s.y, x * (i == 0 ? c.x : c.y));
        y = fmaf(-x, i == 0 ? s.x : s.y, y * (i == 0 ? c.x : c.y));
        x = turned;
      }
    }
  }
}

struct SwaBackwardParams {
  TensorMap q;  // boxes of 128 tokens, the last two of kSwaQueryTile
  TensorMap k;
  TensorMap v;
  TensorMap d_o;
  TensorMap q_small;
  TensorMap do_small;
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
  int group;  // query heads of a key head
  float scale;
};

Status launch_swa_dq(CUstream_st* stream, const SwaBackwardParams& p);
// After launch_swa_dq, which writes delta.
Status launch_swa_dk_dv(CUstream_st* stream, const SwaBackwardParams& p);

}  // namespace swax::cuda
