#include "tests/support/grad_check.h"

#include "tests/support/tensor_check.h"

namespace swax::test {

testing::AssertionResult gradient_matches(
    std::string_view name, const std::function<double(std::span<const double>)>& loss,
    std::span<const double> x, std::span<const double> grad, const GradCheck& options) {
  if (x.size() != grad.size()) {
    return testing::AssertionFailure()
           << name << ": gradient has " << grad.size() << " elements, want " << x.size();
  }
  const auto size = static_cast<int64_t>(x.size());
  std::vector<int32_t> elements;
  if (options.samples >= size) {
    for (int32_t e = 0; e < size; ++e) elements.push_back(e);
  } else {
    elements = random_ints(options.seed, name, options.samples, static_cast<int32_t>(size));
  }
  std::vector<double> point(x.begin(), x.end());
  std::vector<double> analytic, numeric;
  for (const int32_t e : elements) {
    double& value = point[static_cast<size_t>(e)];
    const double centre = value;
    const auto loss_at = [&](double shift) {
      value = centre + shift;
      return loss(point);
    };
    const double near = loss_at(options.h) - loss_at(-options.h);
    const double far = loss_at(2 * options.h) - loss_at(-2 * options.h);
    value = centre;
    numeric.push_back((8 * near - far) / (12 * options.h));
    analytic.push_back(grad[static_cast<size_t>(e)]);
  }
  testing::AssertionResult result = tensor_near(name, analytic, numeric, options.bound);
  if (!result) result << " (samples of a central difference)";
  return result;
}

}  // namespace swax::test
