// Checks of the float64 reference, each with an optional planted bug: the same code proves that the
// right form passes (reference_test.cc) and that every canary fails.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/reference/case_file.h"
#include "tests/reference/types.h"

namespace swax::reference {

// All arithmetic is double and the sums are short: agreement of two correct forms is about 1e-13.
// model-spec 9.2.
constexpr double kEqualBound = 1e-10;

struct Check {
  std::string name;
  std::function<testing::AssertionResult(Canary)> run;
};

std::string case_dir();
CaseFile load_case(const std::string& name);

// First failure of several results, or success.
class Findings {
 public:
  void add(const testing::AssertionResult& result) {
    if (!result && first_) first_ = result;
  }
  testing::AssertionResult result() const { return first_; }

 private:
  testing::AssertionResult first_ = testing::AssertionSuccess();
};

// One per stored case, named like it: value and gradients to kEqualBound.
std::vector<Check> op_case_checks();
std::vector<Check> mlstm_case_checks();
std::vector<Check> model_case_checks();
// Gradients against central differences of the right forward function.
std::vector<Check> op_gradient_checks();
std::vector<Check> mlstm_gradient_checks();
std::vector<Check> model_gradient_checks();
// Recurrent (with the canary) against parallel and chunkwise.
std::vector<Check> mlstm_form_checks();

}  // namespace swax::reference
