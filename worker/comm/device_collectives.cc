#include "worker/comm/device_collectives.h"

#include "proto/base/text.h"
#include "worker/comm/local_collectives.h"
#ifdef SWAX_HAVE_NCCL
#include "worker/comm/nccl_collectives.h"
#endif

namespace swax {

Result<std::unique_ptr<Collectives>> make_device_collectives(Backend& backend, Collectives& host) {
  if (backend.kind() == BackendKind::kCpu) return std::unique_ptr<Collectives>();
  if (host.size() == 1) {
    Backend* const alone[] = {&backend};
    return std::move(make_local_collectives(alone).front());
  }
#ifdef SWAX_HAVE_NCCL
  return make_nccl_collectives(backend, host);
#else
  return failed_precondition(
      "backend cuda with " + to_text(host.size()) +
      " ranks needs NCCL, which this build does not have: build where nccl.h "
      "and libnccl lie beside CUDA");
#endif
}

std::string device_collectives_text() {
#ifdef SWAX_HAVE_NCCL
  return "NCCL " + nccl_version();
#else
  return "none: this build has no NCCL";
#endif
}

}  // namespace swax
