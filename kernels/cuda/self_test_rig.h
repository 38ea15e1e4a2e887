// Device memory of the self test: tensors in one slab that has a mirror on the host, so that a case
// is one copy there and one back. What is not filled is NaN. Internal to kernels/cuda. Threads:
// one.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace swax::cuda {

float round_to_bf16(float x);  // to nearest, ties to even; x is finite

class SelfTestRig {
 public:
  static Result<SelfTestRig> create(Backend& backend);

  // A new case: no tensors, all memory NaN.
  void reset();
  // Values are rounded where dtype is bf16; without values an output.
  Tensor tensor(DType dtype, std::initializer_list<int64_t> dims,
                std::span<const float> values = {});
  Tensor integers(std::span<const int32_t> values);
  Status upload();    // kResourceExhausted: the tensors of the case did not fit
  Status download();  // waits
  std::vector<float> values(const Tensor& t) const;  // of f32 or bf16, after download
  Stream& stream() { return *stream_; }

 private:
  explicit SelfTestRig(Backend& backend) : backend_(&backend) {}
  Tensor place(DType dtype, std::initializer_list<int64_t> dims);
  std::byte* mirror(const Tensor& t) const;
  Status move(bool to_device);

  Backend* backend_;
  Buffer device_, host_;
  std::unique_ptr<Stream> stream_;
  int64_t used_ = 0;
};

}  // namespace swax::cuda
