#include "worker/comm/nccl_call_watch.h"

#include "kernels/cuda/check.h"

namespace swax {
namespace {

// Whether the event has come. An error is the device's.
Result<bool> has_come(cudaEvent_t event) {
  const cudaError_t state = cudaEventQuery(event);
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // or it would show as the error of the next launch of this thread
    return false;
  }
  SWAX_CUDA_TRY("collectives", state);
  return true;
}

}  // namespace

Result<std::unique_ptr<NcclCallWatch>> NcclCallWatch::create(int calls) {
  std::unique_ptr<NcclCallWatch> watch(new NcclCallWatch());
  watch->ring_.resize(static_cast<size_t>(calls));
  for (Call& c : watch->ring_) {
    SWAX_CUDA_TRY("collectives", cudaEventCreateWithFlags(&c.before, cudaEventDisableTiming));
    SWAX_CUDA_TRY("collectives", cudaEventCreateWithFlags(&c.after, cudaEventDisableTiming));
  }
  return watch;
}

NcclCallWatch::~NcclCallWatch() {
  for (const Call& c : ring_) {
    if (c.before != nullptr) cudaEventDestroy(c.before);
    if (c.after != nullptr) cudaEventDestroy(c.after);
  }
}

Status NcclCallWatch::begin(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (asked_ - completed_ >= static_cast<int64_t>(ring_.size())) {
    return unavailable("too many device calls are pending");
  }
  Call& c = call(asked_ + 1);
  SWAX_CUDA_TRY("collectives", cudaEventRecord(c.before, stream));
  c.enqueued = false;
  c.reached_ms = -1;
  ++asked_;
  return ok();
}

Status NcclCallWatch::end(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  SWAX_CUDA_TRY("collectives", cudaEventRecord(call(asked_).after, stream));
  call(asked_).enqueued = true;
  return ok();
}

Result<NcclCallWatch::Progress> NcclCallWatch::poll(int64_t now_ms) {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (completed_ < asked_ && call(completed_ + 1).enqueued) {
    SWAX_ASSIGN(const bool complete, has_come(call(completed_ + 1).after));
    if (!complete) break;
    ++completed_;
  }
  if (reached_ < completed_) reached_ = completed_;
  while (reached_ < asked_) {
    SWAX_ASSIGN(const bool here, has_come(call(reached_ + 1).before));
    if (!here) break;
    ++reached_;
  }
  Progress p{.asked = asked_, .reached = reached_, .completed = completed_, .waiting_ms = 0};
  if (completed_ < reached_) {
    Call& oldest = call(completed_ + 1);
    if (oldest.reached_ms < 0) oldest.reached_ms = now_ms;
    p.waiting_ms = now_ms - oldest.reached_ms;
  }
  return p;
}

}  // namespace swax
