// The parts of op_check.h that do not depend on the backend.
#include <algorithm>

#include "tests/kernels/op_check.h"

namespace swax::test {

const Want& want_of(const std::vector<Want>& wants, const std::string& name) {
  for (const Want& w : wants) {
    if (w.name == name) return w;
  }
  ADD_FAILURE() << "no expected values for " << name;
  return wants.front();
}

double worst_ratio(const Outputs& got, const std::vector<Want>& wants) {
  double worst = 0.0;
  for (const Output& o : got) {
    const Want& w = want_of(wants, o.name);
    worst = std::max(worst, rel_error(std::span<const float>(o.values), w.values) / w.bound);
  }
  return worst;
}

Tensor f32(const std::vector<float>& x, std::initializer_list<int64_t> dims) {
  const Tensor t = Tensor::of(const_cast<float*>(x.data()), DType::kF32, dims);
  SWAX_CHECK(t.elements() == static_cast<int64_t>(x.size()));
  return t;
}

Tensor f32(GuardedBuffer<float>& x, std::initializer_list<int64_t> dims) {
  const Tensor t = Tensor::of(x.data(), DType::kF32, dims);
  SWAX_CHECK(t.elements() == x.size());
  return t;
}

Tensor f64(GuardedBuffer<double>& x, std::initializer_list<int64_t> dims) {
  const Tensor t = Tensor::of(x.data(), DType::kF64, dims);
  SWAX_CHECK(t.elements() == x.size());
  return t;
}

Tensor i32(const std::vector<int32_t>& x, std::initializer_list<int64_t> dims) {
  if (x.empty()) return {};
  return Tensor::of(const_cast<int32_t*>(x.data()), DType::kI32, dims);
}

Tensor u8(const std::vector<uint8_t>& x, std::initializer_list<int64_t> dims) {
  if (x.empty()) return {};
  return Tensor::of(const_cast<uint8_t*>(x.data()), DType::kU8, dims);
}

}  // namespace swax::test
