#include "worker/comm/device_collectives.h"

#include "proto/base/text.h"
#include "worker/comm/local_collectives.h"
#ifdef SWAX_HAVE_NCCL
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "worker/comm/nccl_collectives.h"
#endif

namespace swax {
#ifdef SWAX_HAVE_NCCL
namespace {

constexpr int64_t kLimitMsMin = 1'000, kLimitMsMax = 3'600'000;

Result<NcclOptions> options_of_environment() {
  NcclOptions options;
  const char* text = std::getenv("SWAX_COMM_LIMIT_MS");
  if (text == nullptr) return options;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, options.call_ms_max);
  if (error != std::errc() || stop != end || options.call_ms_max < kLimitMsMin ||
      options.call_ms_max > kLimitMsMax) {
    return invalid_argument("SWAX_COMM_LIMIT_MS=" + printable(text) + ": must be " +
                            to_text(kLimitMsMin) + ".." + to_text(kLimitMsMax));
  }
  return options;
}

}  // namespace
#endif

Result<std::unique_ptr<Collectives>> make_device_collectives(Backend& backend, Collectives& host) {
  if (backend.kind() == BackendKind::kCpu) return std::unique_ptr<Collectives>();
  if (host.size() == 1) {
    Backend* const alone[] = {&backend};
    return std::move(make_local_collectives(alone).front());
  }
#ifdef SWAX_HAVE_NCCL
  SWAX_ASSIGN(const NcclOptions options, options_of_environment());
  return make_nccl_collectives(backend, host, options);
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
