// Sliding-window attention on an NVIDIA GPU (contract: kernels/spec/swa.h). q, k, v, o and their
// gradients are all f32 or all bf16; lse and scratch are f32; sums are f32. Every function only
// enqueues on the stream and gives the same bits for the same input: no atomics, one written order.
// kInvalidArgument for dtypes or shapes that no form takes, kInternal when CUDA refuses the launch.
// Threads: any, one per stream.
#pragma once

#include "kernels/spec/swa.h"
#include "proto/base/status.h"

struct CUstream_st;  // *: cudaStream_t, without CUDA's headers

namespace swax::cuda {

enum class SwaForm {
  kAuto,    // the tuned form where it applies, chosen by shape alone
  kSimple,  // any shape; the reference of the tuned form
};

Status launch_swa(CUstream_st* stream, const SwaArgs& a, SwaForm form = SwaForm::kAuto);
Status launch_swa_backward(CUstream_st* stream, const SwaBackwardArgs& a,
                           SwaForm form = SwaForm::kAuto);
Status launch_swa_decode(CUstream_st* stream, const SwaDecodeArgs& a);

}  // namespace swax::cuda
