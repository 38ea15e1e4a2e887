// Which device calls of a rank its stream has reached and which are complete, by a pair of CUDA
// events around each. Internal to worker/comm. Threads: begin and end from the rank's thread, poll
// from the watchdog.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "proto/base/status.h"

namespace swax {

class NcclCallWatch {
 public:
  struct Progress {
    int64_t asked = 0;
    int64_t reached = 0;
    int64_t completed = 0;
    int64_t waiting_ms = 0;  // since the oldest call that is not complete was reached; 0: none is
  };

  // `calls` may be pending at a time. On the current device.
  static Result<std::unique_ptr<NcclCallWatch>> create(int calls);
  ~NcclCallWatch();
  NcclCallWatch(const NcclCallWatch&) = delete;
  NcclCallWatch& operator=(const NcclCallWatch&) = delete;

  // Around what is enqueued on `stream`. begin answers kUnavailable while as many calls are pending
  // as there is room for.
  Status begin(cudaStream_t stream);
  Status end(cudaStream_t stream);
  // kInternal when the device is lost.
  Result<Progress> poll(int64_t now_ms);

 private:
  struct Call {
    cudaEvent_t before = nullptr;
    cudaEvent_t after = nullptr;
    bool enqueued = false;  // `after` is recorded
    int64_t reached_ms = -1;
  };
  NcclCallWatch() = default;
  Call& call(int64_t number) { return ring_[static_cast<size_t>(number) % ring_.size()]; }

  std::mutex mutex_;
  std::vector<Call> ring_;  // call number n (from 1) is ring_[n % size]
  int64_t asked_ = 0;
  int64_t reached_ = 0;
  int64_t completed_ = 0;
};

}  // namespace swax
