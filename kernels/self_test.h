// Whether the device at hand computes what it should, before a rank trusts it with a run.
#pragma once

#include "kernels/backend.h"

namespace swax {

// CUDA: forward and gradients of the tuned attention and mLSTM kernels, and of the norm with its
// gates, on small shapes, against the simple f32 forms; less than two seconds, memory freed again.
// CPU: nothing to do. kInternal with the kernel, the result and the two errors. Threads: the
// backend's.
Status self_test(Backend& backend);

}  // namespace swax
