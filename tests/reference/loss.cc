#include "tests/reference/loss.h"

#include <algorithm>
#include <cmath>

#include "tests/reference/linear.h"

namespace swax::reference {

int64_t count_targets(IntView targets_T) {
  return std::count_if(targets_T.begin(), targets_T.end(),
                       [](int32_t target) { return target >= 0; });
}

CrossEntropyOut cross_entropy(View logits_TV, IntView targets_T, const LossOptions& options) {
  SWAX_CHECK(!targets_T.empty());
  const int64_t tokens = static_cast<int64_t>(targets_T.size());
  SWAX_CHECK(length(logits_TV) % tokens == 0);
  const int64_t vocab = length(logits_TV) / tokens;
  const Vec z_TV = soft_cap(logits_TV, options.cap);
  CrossEntropyOut out{.loss = 0,
                      .count = options.count > 0 ? options.count : count_targets(targets_T),
                      .lse_T = zeros(tokens),
                      .dlogits_TV = {}};
  Vec dz_TV = zeros(tokens * vocab);
  // Without any target the loss is 0, not 0/0.
  const double share = out.count > 0 ? 1.0 / static_cast<double>(out.count) : 0.0;
  for (int64_t t = 0; t < tokens; ++t) {
    const View z = View(z_TV).subspan(static_cast<size_t>(t * vocab), static_cast<size_t>(vocab));
    const double top = *std::max_element(z.begin(), z.end());
    double sum = 0;
    for (const double value : z) sum += std::exp(value - top);
    const double lse = top + std::log(sum);
    at(out.lse_T, t) = lse;
    const int32_t target = targets_T[static_cast<size_t>(t)];
    if (target < 0) continue;
    SWAX_CHECK(target < vocab);
    out.loss += (lse - at(z, target) + options.z_coef * lse * lse) * share;
    for (int64_t v = 0; v < vocab; ++v) {
      const double p = std::exp(at(z, v) - lse);
      const double hot = v == target ? 1.0 : 0.0;
      at(dz_TV, t * vocab + v) = (p * (1.0 + 2.0 * options.z_coef * lse) - hot) * share;
    }
  }
  out.dlogits_TV = soft_cap_backward(z_TV, dz_TV, options.cap, options.canary);
  return out;
}

HeadLossOut linear_cross_entropy(View x_TD, View w_VD, IntView targets_T,
                                 const LossOptions& options) {
  SWAX_CHECK(!targets_T.empty());
  const int64_t dim = length(x_TD) / static_cast<int64_t>(targets_T.size());
  const Vec u_TV = linear(x_TD, w_VD, dim, options.canary);
  CrossEntropyOut ce = cross_entropy(u_TV, targets_T, options);
  LinearGrad g = linear_backward(x_TD, w_VD, ce.dlogits_TV, dim, options.canary);
  return {.loss = ce.loss,
          .count = ce.count,
          .logits_TV = soft_cap(u_TV, options.cap),
          .lse_T = std::move(ce.lse_T),
          .dx_TD = std::move(g.dx_TI),
          .dw_VD = std::move(g.dw_OI)};
}

}  // namespace swax::reference
