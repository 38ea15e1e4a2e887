// Device memory for tests of single kernels: poisoned between guard bands like GuardedBuffer,
// filled from and read into host vectors as f32 or bf16. Threads: one test thread.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace swax::test {

// Empty when a device of compute capability 9.0 is there, else why not.
std::string no_device_reason();

class DeviceTensor {
 public:
  // Payload NaN in every dtype.
  DeviceTensor(std::string name, DType dtype, std::initializer_list<int64_t> dims);
  // The values, rounded to bf16 when that is the dtype.
  DeviceTensor(std::string name, DType dtype, std::initializer_list<int64_t> dims,
               const std::vector<float>& values);
  ~DeviceTensor();
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;
  const Tensor& tensor() const { return tensor_; }
  void poison();
  void write_bytes(const void* from, int64_t bytes);
  std::vector<float> values() const;  // of f32 and bf16
  std::vector<std::byte> bytes() const;

 private:
  std::string name_;
  Tensor tensor_;
  std::byte* memory_ = nullptr;  // guard, payload, guard
};

// EXPECTs that everything enqueued so far has run without an error.
void sync_device();

}  // namespace swax::test

// First line of every test that needs a device.
#define SWAX_NEED_DEVICE()                                             \
  do {                                                                 \
    const std::string swax_reason_ = ::swax::test::no_device_reason(); \
    if (!swax_reason_.empty()) GTEST_SKIP() << swax_reason_;           \
  } while (false)
