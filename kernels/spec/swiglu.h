// SwiGLU gate: s = silu(a) * b, silu(a) = a sigmoid(a). Source: arXiv 2002.05202.
// Bounds: K = 1, c = 4 (s, db: sigmoid 3, two products), 8 (da).
// Backward: db = ds silu(a); da = ds b sigmoid(a) (1 + a (1 - sigmoid(a))). da may be a or ds,
// db may be b; else they lie apart. f32, [T,F].
#pragma once

#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax {

struct SwigluArgs {
  Tensor a_TF;
  Tensor b_TF;
  Tensor s_TF;
};
struct SwigluBackwardArgs {
  Tensor a_TF;
  Tensor b_TF;
  Tensor ds_TF;
  Tensor da_TF;
  Tensor db_TF;
};
Status validate(const SwigluArgs& a);
Status validate(const SwigluBackwardArgs& a);

}  // namespace swax
