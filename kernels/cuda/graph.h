// Stream capture: the kernels that calls enqueue, as one executable graph. Threads: as the backend;
// what other threads of the process do meanwhile is their own affair (thread-local capture).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/backend.h"

namespace swax::cuda {

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(cudaGraphExec_t exec) : exec_(exec) {}
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  Status launch(cudaStream_t stream);

 private:
  cudaGraphExec_t exec_;
};

Status begin_capture(cudaStream_t stream);
// Ends the capture in any case.
Result<std::unique_ptr<DeviceGraph>> end_capture(cudaStream_t stream);

}  // namespace swax::cuda
