// Host tensors of either value type: inputs that are exact in bfloat16 (so that f32 and bf16 runs
// read the same numbers), outputs that start as NaN, and the bound that goes with the type.
#pragma once

#include <string>
#include <vector>

#include "tests/kernels/op_check.h"

namespace swax::test {

class Values {
 public:
  // Poisoned output.
  Values(DType dtype, int64_t count);
  // `x` must be exact in bf16 when dtype is.
  Values(DType dtype, const std::vector<float>& x);
  Tensor view(std::initializer_list<int64_t> dims);
  std::vector<float> floats() const;

 private:
  DType dtype_;
  std::vector<float> wide_;
  std::vector<uint16_t> narrow_;
};

// The bound of sums in f32, plus one rounding of each element (half an ulp of 8 bits) for bf16.
double value_bound(DType dtype, double f32_bound);
std::vector<float> exact_normal(std::string_view stream, int64_t count, Draw draw = {});

}  // namespace swax::test
