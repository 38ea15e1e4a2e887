// Events of one backend: numbered points in streams. A number stands for one record() for ever; its
// CUDA event goes back to the pool once it is complete, and a wait for a complete event is nothing.
// Threads: one, as the backend.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "kernels/device.h"

namespace swax::cuda {

class Events {
 public:
  Events() = default;
  ~Events();
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;
  // Errors show in the next call that returns a Status: CUDA errors are sticky.
  Event record(cudaStream_t stream);
  void wait(cudaStream_t stream, Event e);

 private:
  void retire();
  std::deque<cudaEvent_t> open_;  // events first_ , first_ + 1, ...
  std::vector<cudaEvent_t> idle_;
  uint64_t first_ = 1;
};

}  // namespace swax::cuda
