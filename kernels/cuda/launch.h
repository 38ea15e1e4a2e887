// Host side of kernel launches: grid sizes and the choice of the element type. Threads: pure.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"
#include "proto/base/ids.h"

namespace swax::cuda {

constexpr int kThreads = 256;
// Blocks of a kernel that strides over its work: enough to fill any Hopper device, few enough to
// keep the tail short. A constant, so that nothing depends on the device.
constexpr int64_t kStrideBlocks = 132 * 16;

// Blocks of a kernel whose block fills a multiprocessor and strides over rows: one wave of an H200.
constexpr int64_t kOneWave = 132;

inline unsigned blocks_for(int64_t items, int64_t per_block = kThreads) {
  const int64_t n = div_ceil(items, per_block);
  return static_cast<unsigned>(n < kStrideBlocks ? n : kStrideBlocks);
}

// Threads of a block that goes along rows of this width, eight elements a thread.
inline unsigned row_threads(int64_t width) {
  const int64_t wanted = round_up(div_ceil(width, 8), int64_t{32});
  return static_cast<unsigned>(wanted < kThreads ? wanted : int64_t{kThreads});
}

}  // namespace swax::cuda
