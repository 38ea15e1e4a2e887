#include "kernels/cuda/device_facts.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <string>

#include "kernels/cuda/open.h"
#include "kernels/cuda/self_test.h"
#include "proto/base/clock.h"
#include "proto/base/text.h"

namespace swax::cuda {
namespace {

std::string version(int v) {  // 13010 -> "13.1"
  return v == 0 ? "none" : to_text(v / 1000) + "." + to_text(v % 1000 / 10);
}

int attribute(cudaDeviceAttr what, int ordinal) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, what, ordinal) == cudaSuccess ? value : 0;
}

std::string mhz(int khz) { return to_text(khz / 1000) + " MHz"; }

std::string libraries() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const auto blas = static_cast<int64_t>(cublasLtGetVersion());  // 130100 -> "13.1.0"
  return "driver for " + version(driver) + ", runtime " + version(runtime) + ", cuBLASLt " +
         to_text(blas / 10000) + "." + to_text(blas / 100 % 100) + "." + to_text(blas % 100);
}

DeviceFact tested(const std::string& name, int ordinal) {
  SystemClock clock;
  const auto backend = open_cuda_backend(ordinal);
  if (!backend.ok()) return {.name = name, .text = backend.status().message(), .fits = false};
  const int64_t begin_ms = clock.monotonic_ms();
  const Status s = self_test(**backend);
  if (!s.ok()) return {.name = name, .text = s.message(), .fits = false};
  return {.name = name,
          .text = "passed in " + duration_text(clock.monotonic_ms() - begin_ms),
          .fits = true};
}

void add_device(int ordinal, std::vector<DeviceFact>* facts) {
  const std::string name = "GPU " + to_text(ordinal);
  cudaDeviceProp p{};
  if (const cudaError_t e = cudaGetDeviceProperties(&p, ordinal); e != cudaSuccess) {
    facts->push_back({.name = name, .text = cudaGetErrorString(e), .fits = false});
    return;
  }
  facts->push_back({.name = name,
                    .text = std::string(p.name) + ", compute capability " + to_text(p.major) + "." +
                            to_text(p.minor) + ", " + to_text(p.multiProcessorCount) +
                            " multiprocessors",
                    .fits = p.major == 9 && p.minor == 0});
  size_t free = 0, total = 0;
  cudaSetDevice(ordinal);
  const cudaError_t memory = cudaMemGetInfo(&free, &total);
  facts->push_back({.name = name + " memory",
                    .text = memory != cudaSuccess
                                ? cudaGetErrorString(memory)
                                : bytes_text(static_cast<int64_t>(free)) + " free of " +
                                      bytes_text(static_cast<int64_t>(total)) + ", ECC " +
                                      (p.ECCEnabled != 0 ? "on" : "off"),
                    .fits = memory == cudaSuccess});
  facts->push_back({.name = name + " clocks",
                    .text = "up to " + mhz(attribute(cudaDevAttrClockRate, ordinal)) + ", memory " +
                            mhz(attribute(cudaDevAttrMemoryClockRate, ordinal))});
  facts->push_back(tested(name + " self test", ordinal));
}

}  // namespace

std::vector<DeviceFact> device_facts() {
  std::vector<DeviceFact> facts;
  facts.push_back({.name = "CUDA", .text = libraries()});
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  int driver = 0;
  cudaDriverGetVersion(&driver);
  // No driver at all is a machine without GPUs; a driver that refuses is not.
  if (found != cudaSuccess || count == 0) {
    cudaGetLastError();
    facts.push_back({.name = "GPU",
                     .text = found == cudaSuccess || found == cudaErrorNoDevice
                                 ? "none"
                                 : std::string("none: ") + cudaGetErrorString(found),
                     .fits = driver == 0 || found == cudaSuccess || found == cudaErrorNoDevice});
    return facts;
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) add_device(ordinal, &facts);
  return facts;
}

}  // namespace swax::cuda
