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

// A number of the environment, `value` where there is none.
Status read_number(const char* name, int64_t min, int64_t max, int64_t* value) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return ok();
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, *value);
  if (error == std::errc() && stop == end && *value >= min && *value <= max) return ok();
  return invalid_argument(std::string(name) + "=" + printable(text) + ": must be " + to_text(min) +
                          ".." + to_text(max));
}

Result<NcclOptions> options_of_environment() {
  NcclOptions options;
  SWAX_TRY(read_number("SWAX_COMM_LIMIT_MS", kLimitMsMin, kLimitMsMax, &options.call_ms_max));
  int64_t copy_engines = 1;
  SWAX_TRY(read_number("SWAX_COMM_COPY_ENGINES", 0, 1, &copy_engines));
  options.copy_engines = copy_engines != 0;
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
