#include "kernels/cuda/graph.h"

#include <string>

#include "kernels/cuda/check.h"
#include "proto/base/text.h"

namespace swax::cuda {

CudaGraph::~CudaGraph() { cudaGraphExecDestroy(exec_); }

Status CudaGraph::launch(const CudaStream& stream) {
  if (stream.id() != stream_) {
    return invalid_argument("graph: captured on stream " + to_text(stream_) +
                            ", launched on stream " + to_text(stream.id()) + ": must be the same");
  }
  return status_of(cudaGraphLaunch(exec_, stream.handle()), "graph", "cudaGraphLaunch");
}

Status begin_capture(const CudaStream& stream) {
  return status_of(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal),
                   "graph", "cudaStreamBeginCapture");
}

Result<std::unique_ptr<DeviceGraph>> end_capture(const CudaStream& stream) {
  cudaGraph_t graph = nullptr;
  SWAX_CUDA_TRY("graph", cudaStreamEndCapture(stream.handle(), &graph));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  SWAX_TRY(status_of(error, "graph", "cudaGraphInstantiate"));
  return std::unique_ptr<DeviceGraph>(std::make_unique<CudaGraph>(exec, stream.id()));
}

}  // namespace swax::cuda
