// SwiGLU (SiLU gate), alone and as the three-matrix block of model-spec 1.3, and the token
// embedding.
#pragma once

#include "tests/reference/types.h"

namespace swax::reference {

// y = silu(a) * b, element-wise.
Vec swiglu(View a, View b);
struct SwigluGrad {
  Vec da;
  Vec db;
};
SwigluGrad swiglu_backward(View a, View b, View dy);

struct MlpWeights {
  View gate_FD, up_FD, down_DF;
};
// y_TD = swiglu(x Wg^T, x Wu^T) Wd^T.
Vec mlp(View x_TD, const MlpWeights& w, int64_t dim, Canary canary = Canary::kNone);
struct MlpGrad {
  Vec dx_TD;
  Vec dgate_FD, dup_FD, ddown_DF;
};
MlpGrad mlp_backward(View x_TD, const MlpWeights& w, View dy_TD, int64_t dim,
                     Canary canary = Canary::kNone);

Vec embedding(View w_VD, IntView tokens_T, int64_t dim);
// dw_VD = sum of dy_T over the tokens with that id, in token order.
Vec embedding_backward(View dy_TD, IntView tokens_T, int64_t vocab, int64_t dim);

}  // namespace swax::reference
