// Analytic gradients against central differences, in double. Threads: pure functions.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

namespace swax::test {

// Compares `grad` with central differences of `loss` at `samples` seeded elements of x (all of them
// when samples >= size), norm-wise over the sampled elements: the failure names the tensor and the
// worst sample. The five-point form with h = 1e-5 has a truncation error of h^4 and leaves only the
// rounding of the loss (about 2^-53 |loss| / h).
struct GradCheck {
  int64_t samples = 12;
  double h = 1e-5;
  double bound = 1e-5;
  uint64_t seed = 1;
};
testing::AssertionResult gradient_matches(
    std::string_view name, const std::function<double(std::span<const double>)>& loss,
    std::span<const double> x, std::span<const double> grad, const GradCheck& options = {});

}  // namespace swax::test
