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

struct SwaBackwardParams {
  TensorMap q;  // boxes of 128 tokens, the last two of kSwaQueryTile
  TensorMap k;
  TensorMap v;
  TensorMap d_o;
  TensorMap q_small;
  TensorMap do_small;
  SwaBand band;
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
