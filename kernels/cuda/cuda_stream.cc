#include "kernels/cuda/cuda_stream.h"

#include "kernels/cuda/check.h"

namespace swax::cuda {
namespace {

constexpr const char* kWhere = "make_stream";
// Behind the workspace they would take 2 MiB more than the plan knows.
constexpr int64_t kTicketBytes = 256;

}  // namespace

Result<std::unique_ptr<CudaStream>> CudaStream::make() {
  std::unique_ptr<CudaStream> s(new CudaStream);
  SWAX_CUDA_TRY(kWhere, cudaMalloc(&s->workspace_, kStreamWorkspace));
  SWAX_CUDA_TRY(kWhere, cudaMalloc(&s->tickets_, kTicketBytes));
  SWAX_CUDA_TRY(kWhere, cudaStreamCreateWithFlags(&s->handle_, cudaStreamNonBlocking));
  SWAX_CUDA_TRY(kWhere, cudaMemsetAsync(s->tickets_, 0, kTicketBytes, s->handle_));
  return s;
}

CudaStream::~CudaStream() {
  if (handle_ != nullptr) {
    cudaStreamSynchronize(handle_);
    cudaStreamDestroy(handle_);
  }
  cudaFree(tickets_);
  cudaFree(workspace_);
}

}  // namespace swax::cuda
