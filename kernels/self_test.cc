#include "kernels/self_test.h"

#ifdef SWAX_HAVE_CUDA
#include "kernels/cuda/self_test.h"
#endif

namespace swax {

Status self_test(Backend& backend) {
#ifdef SWAX_HAVE_CUDA
  if (backend.kind() == BackendKind::kCuda) return cuda::self_test(backend);
#endif
  return backend.kind() == BackendKind::kCpu ? ok() : failed_precondition("not in this build");
}

}  // namespace swax
