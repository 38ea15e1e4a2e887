// Sliding-window attention, the simple form: one warp per (query, head) or per (key, key head), any
// head size, window and group. Internal to kernels/cuda.
#pragma once

#include "kernels/cuda/swa.h"

namespace swax::cuda {

Status launch_swa_simple(CUstream_st* stream, const SwaArgs& a);
Status launch_swa_backward_simple(CUstream_st* stream, const SwaBackwardArgs& a);

}  // namespace swax::cuda
