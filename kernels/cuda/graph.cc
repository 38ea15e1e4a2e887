#include "kernels/cuda/graph.h"

#include "kernels/cuda/check.h"

namespace swax::cuda {

CudaGraph::~CudaGraph() { cudaGraphExecDestroy(exec_); }

Status CudaGraph::launch(cudaStream_t stream) {
  return status_of(cudaGraphLaunch(exec_, stream), "graph", "cudaGraphLaunch");
}

Status begin_capture(cudaStream_t stream) {
  return status_of(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "graph",
                   "cudaStreamBeginCapture");
}

Result<std::unique_ptr<DeviceGraph>> end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  SWAX_CUDA_TRY("graph", cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  SWAX_TRY(status_of(error, "graph", "cudaGraphInstantiate"));
  return std::unique_ptr<DeviceGraph>(std::make_unique<CudaGraph>(exec));
}

}  // namespace swax::cuda
