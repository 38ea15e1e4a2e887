#include "kernels/tensor.h"

namespace swax {

const char* dtype_name(DType t) {
  switch (t) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kBF16:
      return "bf16";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  return "unknown";
}

Tensor Tensor::of(void* data, DType dtype, std::initializer_list<int64_t> dims) {
  SWAX_CHECK(dims.size() >= 1);
  SWAX_CHECK(dims.size() <= 4);
  Tensor t;
  t.data = data;
  t.dtype = dtype;
  for (const int64_t d : dims) {
    SWAX_CHECK(d >= 0);
    t.dims[t.rank++] = d;
  }
  t.row_stride = t.row_elements();
  return t;
}

Tensor Tensor::rows(int64_t begin, int64_t count) const {
  SWAX_CHECK(rank >= 1);
  SWAX_CHECK(begin >= 0);
  SWAX_CHECK(count >= 0);
  SWAX_CHECK(begin + count <= dims[0]);
  Tensor t = *this;
  t.dims[0] = count;
  // A view without memory (a plan) stays one: arithmetic on null is not defined.
  if (data != nullptr) {
    t.data = static_cast<char*>(data) + begin * row_stride * dtype_bytes(dtype);
  }
  return t;
}

Tensor Tensor::reshaped(std::initializer_list<int64_t> new_dims) const {
  SWAX_CHECK(contiguous());
  Tensor t = Tensor::of(data, dtype, new_dims);
  SWAX_CHECK(t.elements() == elements());
  return t;
}

}  // namespace swax
