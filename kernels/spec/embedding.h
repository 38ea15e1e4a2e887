// Embedding: y_TD[t] = weight_VD[tokens_T[t]].
// Backward: dweight_VD[v] = sum over t with tokens[t] = v of dy_TD[t], in rising t (stable order
// (token, position)); rows of other tokens are zero: every element of dweight is written. No
// atomics. Bound: K = T, c = 1; forward exact. tokens i32 in [0, V). f32.
#pragma once

#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax {

struct EmbeddingArgs {
  Tensor tokens_T;
  Tensor weight_VD;
  Tensor y_TD;
};
struct EmbeddingBackwardArgs {
  Tensor tokens_T;
  Tensor dy_TD;
  Tensor dweight_VD;
};
Status validate(const EmbeddingArgs& a);
Status validate(const EmbeddingBackwardArgs& a);

}  // namespace swax
