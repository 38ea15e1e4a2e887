#include <memory>

#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "proto/base/text.h"
#ifdef SWAX_HAVE_CUDA
#include "kernels/cuda/open.h"
#endif

namespace swax {

Result<std::unique_ptr<Backend>> open_backend(const BackendOptions& options) {
  if (options.kind != BackendKind::kCpu) {
#ifdef SWAX_HAVE_CUDA
    return cuda::open_cuda_backend(options.ordinal);
#else
    return failed_precondition("backend cuda: not in this build");
#endif
  }
  if (options.compute_threads < 1 || options.compute_threads > cpu::kComputeThreadsMax) {
    return invalid_argument("compute_threads=" + to_text(options.compute_threads) +
                            ": must be 1.." + to_text(cpu::kComputeThreadsMax));
  }
  return std::unique_ptr<Backend>(std::make_unique<cpu::CpuBackend>(options));
}

}  // namespace swax
