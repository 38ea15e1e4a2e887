// A stream of the CUDA backend and the device memory that its kernels may use between them. What a
// kernel leaves there, the next one of the stream may find; no other stream may run kernels on it.
// Threads: as Stream.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/device.h"
#include "proto/base/status.h"

namespace swax::cuda {

// Of each stream: for cuBLASLt (what NVIDIA advises for Hopper) and for partial sums of other ops.
constexpr int64_t kStreamWorkspace = stream_workspace_bytes(BackendKind::kCuda);

class CudaStream final : public Stream {
 public:
  // kResourceExhausted where the workspace does not fit.
  static Result<std::unique_ptr<CudaStream>> make();
  ~CudaStream() override;
  cudaStream_t handle() const { return handle_; }
  void* workspace() const { return workspace_; }  // kStreamWorkspace bytes
  // Counters of kernels whose blocks draw their work: zero between kernels.
  int* tickets() const { return static_cast<int*>(tickets_); }

 private:
  CudaStream() = default;
  cudaStream_t handle_ = nullptr;
  void* workspace_ = nullptr;
  void* tickets_ = nullptr;
};
inline cudaStream_t raw(Stream& s) { return static_cast<CudaStream&>(s).handle(); }

}  // namespace swax::cuda
