#include "tests/kernels/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace swax::test {

Values::Values(DType dtype, int64_t count) : dtype_(dtype) {
  if (dtype == DType::kBF16) {
    narrow_.assign(static_cast<size_t>(count), 0xffff);
  } else {
    wide_.assign(static_cast<size_t>(count), std::nanf(""));
  }
}

Values::Values(DType dtype, const std::vector<float>& x) : dtype_(dtype) {
  if (dtype != DType::kBF16) {
    wide_ = x;
    return;
  }
  for (const float value : x) {
    SWAX_CHECK(bf16_round(value) == value);
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    narrow_.push_back(static_cast<uint16_t>(bits >> 16));
  }
}

Tensor Values::view(std::initializer_list<int64_t> dims) {
  void* data = dtype_ == DType::kBF16 ? static_cast<void*>(narrow_.data()) : wide_.data();
  const Tensor t = Tensor::of(data, dtype_, dims);
  SWAX_CHECK(t.elements() == static_cast<int64_t>(std::max(wide_.size(), narrow_.size())));
  return t;
}

std::vector<float> Values::floats() const {
  if (dtype_ != DType::kBF16) return wide_;
  std::vector<float> out;
  for (const uint16_t x : narrow_) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float value = 0.0F;
    std::memcpy(&value, &bits, sizeof(value));
    out.push_back(value);
  }
  return out;
}

double value_bound(DType dtype, double f32_bound) {
  return dtype == DType::kBF16 ? f32_bound + std::ldexp(1.0, -9) : f32_bound;
}

std::vector<float> exact_normal(std::string_view stream, int64_t count, Draw draw) {
  draw.bf16 = true;
  return random_normal(21, stream, count, draw);
}

}  // namespace swax::test
