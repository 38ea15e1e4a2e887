// Cross-entropy over soft-capped logits, alone and behind the head matrix (model-spec 1.3, 7).
// loss = sum over targets >= 0 of (lse - z_target + z_coef lse^2) / count, with z = cap tanh(u /
// cap) (cap 0: z = u).
#pragma once

#include "tests/reference/types.h"

namespace swax::reference {

struct LossOptions {
  double cap = 0.0;
  double z_coef = 0.0;
  int64_t count = 0;  // divisor (targets of the whole step); 0: the targets >= 0 of this call
  Canary canary = Canary::kNone;
};

int64_t count_targets(IntView targets_T);  // those >= 0

struct CrossEntropyOut {
  double loss = 0;
  int64_t count = 0;  // the divisor used
  Vec lse_T;          // of the capped logits, for every token
  Vec dlogits_TV;     // gradient of the uncapped logits; rows of ignored targets are 0
};
CrossEntropyOut cross_entropy(View logits_TV, IntView targets_T, const LossOptions& options);

struct HeadLossOut {
  double loss = 0;
  int64_t count = 0;
  Vec logits_TV;  // after the cap
  Vec lse_T;
  Vec dx_TD;
  Vec dw_VD;
};
// u = x W^T, then cross_entropy, value and gradients in one call.
HeadLossOut linear_cross_entropy(View x_TD, View w_VD, IntView targets_T,
                                 const LossOptions& options);

}  // namespace swax::reference
