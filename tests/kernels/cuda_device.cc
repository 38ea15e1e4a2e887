#include "tests/kernels/cuda_device.h"

#include <cstring>

#include "tests/support/tensor_check.h"

namespace swax::test {
namespace {

constexpr int64_t kGuard = 4096;  // keeps the payload aligned as cudaMalloc aligns
constexpr int kGuardByte = 0xa5;
constexpr int kPoison = 0xff;  // NaN as f32 and as bf16

void check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

uint16_t bf16_bits(float x) {
  const float rounded = bf16_round(x);
  uint32_t bits = 0;
  std::memcpy(&bits, &rounded, sizeof(bits));
  return static_cast<uint16_t>(bits >> 16);
}

float bf16_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float x = 0.0F;
  std::memcpy(&x, &wide, sizeof(x));
  return x;
}

}  // namespace

std::string no_device_reason() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(error);
  if (count == 0) return "no CUDA device";
  int major = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major != 9) return "the CUDA device is not of compute capability 9.0";
  return "";
}

DeviceTensor::DeviceTensor(std::string name, DType dtype, std::initializer_list<int64_t> dims)
    : name_(std::move(name)) {
  tensor_ = Tensor::of(nullptr, dtype, dims);
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<size_t>(tensor_.bytes() + 2 * kGuard)));
  memory_ = static_cast<std::byte*>(memory);
  tensor_.data = memory_ + kGuard;
  check(cudaMemset(memory_, kGuardByte, static_cast<size_t>(tensor_.bytes() + 2 * kGuard)));
  poison();
}

DeviceTensor::DeviceTensor(std::string name, DType dtype, std::initializer_list<int64_t> dims,
                           const std::vector<float>& values)
    : DeviceTensor(std::move(name), dtype, dims) {
  SWAX_CHECK(tensor_.elements() == static_cast<int64_t>(values.size()));
  if (dtype == DType::kF32) {
    write_bytes(values.data(), tensor_.bytes());
    return;
  }
  SWAX_CHECK(dtype == DType::kBF16);
  std::vector<uint16_t> rounded(values.size());
  for (size_t i = 0; i < values.size(); ++i) rounded[i] = bf16_bits(values[i]);
  write_bytes(rounded.data(), tensor_.bytes());
}

DeviceTensor::~DeviceTensor() {
  std::vector<std::byte> guards(2 * kGuard);
  check(cudaMemcpy(guards.data(), memory_, kGuard, cudaMemcpyDeviceToHost));
  check(cudaMemcpy(guards.data() + kGuard, memory_ + kGuard + tensor_.bytes(), kGuard,
                   cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < guards.size(); ++i) {
    if (guards[i] == std::byte{kGuardByte}) continue;
    ADD_FAILURE() << name_ << ": written outside, guard byte " << i;
    break;
  }
  check(cudaFree(memory_));
}

void DeviceTensor::poison() {
  check(cudaMemset(tensor_.data, kPoison, static_cast<size_t>(tensor_.bytes())));
}

void DeviceTensor::write_bytes(const void* from, int64_t bytes) {
  ASSERT_LE(bytes, tensor_.bytes()) << name_;
  check(cudaMemcpy(tensor_.data, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
}

std::vector<std::byte> DeviceTensor::bytes() const {
  std::vector<std::byte> out(static_cast<size_t>(tensor_.bytes()));
  check(cudaMemcpy(out.data(), tensor_.data, out.size(), cudaMemcpyDeviceToHost));
  return out;
}

std::vector<float> DeviceTensor::values() const {
  const std::vector<std::byte> raw = bytes();
  std::vector<float> out(static_cast<size_t>(tensor_.elements()));
  if (tensor_.dtype == DType::kF32) {
    std::memcpy(out.data(), raw.data(), raw.size());
    return out;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, raw.data() + 2 * i, sizeof(bits));
    out[i] = bf16_value(bits);
  }
  return out;
}

void sync_device() { check(cudaDeviceSynchronize()); }

}  // namespace swax::test
