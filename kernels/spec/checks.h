// Shape checks shared by the validate() functions. They look at shapes, dtypes and strides alone:
// data pointers may be null (planning without memory) and are never read through.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax::spec {

enum class Rows {
  kContiguous,
  kStrided,  // dimension 0 may have any stride >= the row
};

struct Expect {
  Expect(const char* tensor_name, const Tensor& tensor, DType want,
         std::initializer_list<int64_t> shape, Rows rows_form = Rows::kContiguous)
      : name(tensor_name), t(&tensor), dtype(want), rows(rows_form) {
    for (const int64_t d : shape) dims[rank++] = d;
  }
  const char* name;
  const Tensor* t;
  DType dtype;
  Rows rows;
  int rank = 0;
  int64_t dims[4] = {0, 0, 0, 0};
};

// Element type of activations or weights: bf16 when `t` is, else f32 (which expect() then demands).
// Backends that take f32 only refuse bf16 themselves.
inline DType value_type(const Tensor& t) {
  return t.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
}

// kInvalidArgument naming op, tensor, value and limit at the first tensor that is not as expected.
// Every dimension must be at least 1.
Status expect(const char* op, std::initializer_list<Expect> all);
// Ok for an absent optional tensor, else as expect().
Status expect_optional(const char* op, const Expect& e);
Status bad_value(const char* op, const char* what, int64_t value, const char* limit);
Status bad_value(const char* op, const char* what, double value, const char* limit);
// False only when they share no byte, or one has no memory. Rows of one stride may lie between each
// other; of two strides, ranges that meet count as shared.
bool overlap(const Tensor& a, const Tensor& b);
struct Named {
  const char* name;
  const Tensor& t;
};
// kInvalidArgument unless `out` is `in` or apart from it: what an op that may work in place takes.
Status expect_same_or_apart(const char* op, const Named& out, const Named& in);
// kInvalidArgument when `out` and `in` overlap.
Status expect_apart(const char* op, const Named& out, const Named& in);

}  // namespace swax::spec
