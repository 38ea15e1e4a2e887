// y = x W^T, its backward, and the soft cap. Rows of W are output dims.
#pragma once

#include "tests/reference/types.h"

namespace swax::reference {

// y_TO = sum_I x_TI w_OI. T and O follow from the sizes.
Vec linear(View x_TI, View w_OI, int64_t in_dim, Canary canary = Canary::kNone);

struct LinearGrad {
  Vec dx_TI;
  Vec dw_OI;
};
LinearGrad linear_backward(View x_TI, View w_OI, View dy_TO, int64_t in_dim,
                           Canary canary = Canary::kNone);

// cap * tanh(x / cap); cap 0 is the identity.
Vec soft_cap(View x, double cap);
// dx = dy (1 - (y / cap)^2) with y the capped value.
Vec soft_cap_backward(View y, View dy, double cap, Canary canary = Canary::kNone);

void add_to(Vec& into, View x);               // into += x
Vec sum_over_tokens(View x_TD, int64_t dim);  // bias gradient: [D]
Vec add_bias(View x_TD, View b_D);

}  // namespace swax::reference
