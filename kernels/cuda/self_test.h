// The CUDA part of kernels/self_test.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/backend.h"

namespace swax::cuda {

Status self_test(Backend& backend);

// One result of a kernel in three forms: exact is the simple form in f32, simple and tuned are
// bf16. Against float64 a tuned form may have twice the error of the simple one + 2^-26. Measured
// against `exact`, whose own error is at most `exact_bound`, that is
//   err(tuned) <= 2 err(simple) + 3 exact_bound + 2^-26.
// kInternal when it is larger or not a number.
Status check_result(std::string_view kernel, std::string_view result, std::span<const float> tuned,
                    std::span<const float> simple, std::span<const float> exact,
                    double exact_bound);

}  // namespace swax::cuda
