// AdamW with decoupled decay (arXiv 1711.05101) and clipping by the global L2 norm.
#pragma once

#include "tests/reference/types.h"

namespace swax::reference {

struct AdamWOptions {
  double lr, beta1, beta2, eps, weight_decay;
};
struct AdamWState {
  Vec p, m, v;
};
// step = 1, 2, ...; g is multiplied by clip first.
//   p *= 1 - lr wd;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2
//   p -= lr (m / (1-b1^step)) / (sqrt(v / (1-b2^step)) + eps)
void adamw_step(const AdamWOptions& o, int64_t step, double clip, View g, AdamWState& state);

double sum_of_squares(View g);
// min(1, max_norm / (norm + 1e-6)); max_norm 0 means no clipping.
double clip_factor(double norm, double max_norm);

}  // namespace swax::reference
