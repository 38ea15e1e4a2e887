// Stream capture: the kernels that calls enqueue, as one executable graph. It belongs to the stream
// that it was captured on, whose workspace and counters its kernels use: beside a kernel of another
// stream they would meet. Threads: as the backend; what other threads of the process do meanwhile
// is their own affair (thread-local capture).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_stream.h"

namespace swax::cuda {

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(cudaGraphExec_t exec, uint64_t stream) : exec_(exec), stream_(stream) {}
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  // kInvalidArgument on another stream.
  Status launch(const CudaStream& stream);

 private:
  cudaGraphExec_t exec_;
  uint64_t stream_;  // its id
};

Status begin_capture(const CudaStream& stream);
// Ends the capture in any case.
Result<std::unique_ptr<DeviceGraph>> end_capture(const CudaStream& stream);

}  // namespace swax::cuda
