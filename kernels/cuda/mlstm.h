// The mLSTM cell on an NVIDIA GPU (contract: kernels/spec/mlstm.h). q, k, v, h and their gradients
// are all f32 or all bf16; gates, m, den, scratch are f32; sums are f32. States: f32 as in the
// spec, or bf16 (with bf16 values only) with the same bytes as [chunks + 1, N, K, U + 2]: C of
// every chunk as bf16 [chunks + 1, N, K, U], then n of every chunk as f32 [chunks + 1, N, K]; the
// carry from chunk to chunk is f32 in both. Every function only enqueues on the stream and gives
// the same bits for the same input: no atomics, one written order. kInvalidArgument for dtypes or
// shapes that no form takes, kInternal when CUDA refuses the launch. Threads: any, one per stream.
#pragma once

#include "kernels/spec/mlstm.h"
#include "proto/base/status.h"

struct CUstream_st;  // *: cudaStream_t, without CUDA's headers

namespace swax::cuda {

enum class MlstmForm {
  kAuto,    // the tuned form where it applies, chosen by shape alone
  kSimple,  // any shape; the reference of the tuned form
};

// Elements of a bf16 states tensor.
constexpr int64_t mlstm_bf16_states(int64_t chunks, int64_t heads, int64_t qk, int64_t v) {
  return (chunks + 1) * heads * qk * (v + 2);
}

Status launch_mlstm(CUstream_st* stream, const MlstmArgs& a, MlstmForm form = MlstmForm::kAuto);
Status launch_mlstm_backward(CUstream_st* stream, const MlstmBackwardArgs& a,
                             MlstmForm form = MlstmForm::kAuto);
// state_NKU1 and m_N are f32.
Status launch_mlstm_step(CUstream_st* stream, const MlstmStepArgs& a);

}  // namespace swax::cuda
