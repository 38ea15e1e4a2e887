// Tensor: a non-owning view of at most four dimensions, row-major and contiguous except for the
// stride of dimension 0. It carries no arithmetic and never owns memory; it must not outlive the
// buffer or arena behind it. Legend of dimension letters used everywhere: T tokens of a slot, D
// model width, V vocabulary, F inner MLP width, H query heads, G key/value heads, E head size, N
// mLSTM heads, K mLSTM key size, U mLSTM value size, C chunks, R rows, S shard elements, W ranks.
// Threads: a plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "proto/base/check.h"

namespace swax {

enum class DType : uint8_t { kF32, kF64, kBF16, kI32, kI64, kU8 };
constexpr int64_t dtype_bytes(DType t) {
  switch (t) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}
const char* dtype_name(DType t);

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  int64_t dims[4] = {0, 0, 0, 0};
  int64_t row_stride =
      0;  // elements between neighbours of dimension 0; the product of dims[1..] when contiguous

  static Tensor of(void* data, DType dtype, std::initializer_list<int64_t> dims);
  bool empty() const { return rank == 0; }  // optional arguments are left empty
  int64_t elements() const {
    int64_t n = rank == 0 ? 0 : 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  int64_t row_elements() const {  // product of dims[1..]
    int64_t n = 1;
    for (int i = 1; i < rank; ++i) n *= dims[i];
    return n;
  }
  bool contiguous() const { return rank <= 1 || dims[0] <= 1 || row_stride == row_elements(); }
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }  // of a contiguous view
  float* f32() const {
    SWAX_DCHECK(dtype == DType::kF32);
    return static_cast<float*>(data);
  }
  double* f64() const {
    SWAX_DCHECK(dtype == DType::kF64);
    return static_cast<double*>(data);
  }
  int32_t* i32() const {
    SWAX_DCHECK(dtype == DType::kI32);
    return static_cast<int32_t*>(data);
  }
  int64_t* i64() const {
    SWAX_DCHECK(dtype == DType::kI64);
    return static_cast<int64_t*>(data);
  }
  uint8_t* u8() const {
    SWAX_DCHECK(dtype == DType::kU8);
    return static_cast<uint8_t*>(data);
  }
  // Rows [begin, begin + count) of dimension 0.
  Tensor rows(int64_t begin, int64_t count) const;
  // The same elements under other dims; contiguous views only.
  Tensor reshaped(std::initializer_list<int64_t> dims) const;
};

}  // namespace swax
