#include "kernels/device_facts.h"

#include "kernels/backend.h"
#ifdef SWAX_HAVE_CUDA
#include "kernels/cuda/device_facts.h"
#endif

namespace swax {

std::vector<DeviceFact> device_facts() {
  std::vector<DeviceFact> facts;
  const auto cpu = open_backend({});
  facts.push_back({.name = "CPU backend",
                   .text = cpu.ok() ? (*cpu)->fingerprint() : cpu.status().message(),
                   .fits = cpu.ok()});
#ifdef SWAX_HAVE_CUDA
  for (DeviceFact& fact : cuda::device_facts()) facts.push_back(std::move(fact));
#else
  facts.push_back({.name = "GPU", .text = "this build has no CUDA backend"});
#endif
  return facts;
}

}  // namespace swax
