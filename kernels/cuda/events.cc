#include "kernels/cuda/events.h"

namespace swax::cuda {

Events::~Events() {
  for (cudaEvent_t e : open_) cudaEventDestroy(e);
  for (cudaEvent_t e : idle_) cudaEventDestroy(e);
}

void Events::retire() {
  while (!open_.empty()) {
    if (cudaEventQuery(open_.front()) != cudaSuccess) {
      cudaGetLastError();  // "not ready" would show as the error of the next launch
      return;
    }
    idle_.push_back(open_.front());
    open_.pop_front();
    ++first_;
  }
}

Event Events::record(cudaStream_t stream) {
  retire();
  cudaEvent_t event = nullptr;
  if (!idle_.empty()) {
    event = idle_.back();
    idle_.pop_back();
  } else if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
    // Without an event later work could overtake: wait here, and 0 is always complete.
    cudaStreamSynchronize(stream);
    return {};
  }
  if (cudaEventRecord(event, stream) != cudaSuccess) {
    idle_.push_back(event);
    return {};
  }
  open_.push_back(event);
  return {first_ + open_.size() - 1};
}

void Events::wait(cudaStream_t stream, Event e) {
  if (e.id < first_ || e.id >= first_ + open_.size()) return;
  cudaStreamWaitEvent(stream, open_[e.id - first_], 0);
}

}  // namespace swax::cuda
