#include "tests/reference/adamw.h"

#include <algorithm>
#include <cmath>

namespace swax::reference {

void adamw_step(const AdamWOptions& o, int64_t step, double clip, View g, AdamWState& state) {
  SWAX_CHECK(step >= 1);
  SWAX_CHECK(g.size() == state.p.size());
  SWAX_CHECK(g.size() == state.m.size());
  SWAX_CHECK(g.size() == state.v.size());
  const double bias1 = 1.0 - std::pow(o.beta1, static_cast<double>(step));
  const double bias2 = 1.0 - std::pow(o.beta2, static_cast<double>(step));
  for (size_t e = 0; e < g.size(); ++e) {
    const double gradient = g[e] * clip;
    state.m[e] = o.beta1 * state.m[e] + (1.0 - o.beta1) * gradient;
    state.v[e] = o.beta2 * state.v[e] + (1.0 - o.beta2) * gradient * gradient;
    const double change = (state.m[e] / bias1) / (std::sqrt(state.v[e] / bias2) + o.eps);
    state.p[e] = state.p[e] * (1.0 - o.lr * o.weight_decay) - o.lr * change;
  }
}

double sum_of_squares(View g) {
  double sum = 0;
  for (const double value : g) sum += value * value;
  return sum;
}

double clip_factor(double norm, double max_norm) {
  return max_norm == 0.0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace swax::reference
