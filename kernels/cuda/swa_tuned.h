// Sliding-window attention, the tuned form: bf16, head size 128, tensor cores and tile copies of
// sm_90a; only tiles that touch the band are visited. Internal to kernels/cuda.
#pragma once

#include "kernels/cuda/swa.h"

namespace swax::cuda {

// Decided by shape, dtype and alignment alone.
bool swa_tuned_takes(const SwaArgs& a);
bool swa_tuned_takes(const SwaBackwardArgs& a);
Status launch_swa_tuned(CUstream_st* stream, const SwaArgs& a);
Status launch_swa_backward_tuned(CUstream_st* stream, const SwaBackwardArgs& a);

}  // namespace swax::cuda
