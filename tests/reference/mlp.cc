#include "tests/reference/mlp.h"

#include <cmath>

#include "tests/reference/linear.h"

namespace swax::reference {
namespace {
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
}  // namespace

Vec swiglu(View a, View b) {
  SWAX_CHECK(a.size() == b.size());
  Vec y(a.size());
  for (size_t e = 0; e < y.size(); ++e) y[e] = a[e] * sigmoid(a[e]) * b[e];
  return y;
}

SwigluGrad swiglu_backward(View a, View b, View dy) {
  SWAX_CHECK(a.size() == b.size());
  SWAX_CHECK(a.size() == dy.size());
  SwigluGrad g{.da = Vec(a.size()), .db = Vec(a.size())};
  for (size_t e = 0; e < a.size(); ++e) {
    const double s = sigmoid(a[e]);
    g.da[e] = dy[e] * b[e] * s * (1.0 + a[e] * (1.0 - s));
    g.db[e] = dy[e] * a[e] * s;
  }
  return g;
}

Vec mlp(View x_TD, const MlpWeights& w, int64_t dim, Canary canary) {
  const Vec a = linear(x_TD, w.gate_FD, dim, canary);
  const Vec b = linear(x_TD, w.up_FD, dim, canary);
  return linear(swiglu(a, b), w.down_DF, length(w.gate_FD) / dim, canary);
}

MlpGrad mlp_backward(View x_TD, const MlpWeights& w, View dy_TD, int64_t dim, Canary canary) {
  const Vec a = linear(x_TD, w.gate_FD, dim, canary);
  const Vec b = linear(x_TD, w.up_FD, dim, canary);
  LinearGrad down =
      linear_backward(swiglu(a, b), w.down_DF, dy_TD, length(w.gate_FD) / dim, canary);
  const SwigluGrad inner = swiglu_backward(a, b, down.dx_TI);
  LinearGrad gate = linear_backward(x_TD, w.gate_FD, inner.da, dim, canary);
  LinearGrad up = linear_backward(x_TD, w.up_FD, inner.db, dim, canary);
  add_to(gate.dx_TI, up.dx_TI);
  return {.dx_TD = std::move(gate.dx_TI),
          .dgate_FD = std::move(gate.dw_OI),
          .dup_FD = std::move(up.dw_OI),
          .ddown_DF = std::move(down.dw_OI)};
}

Vec embedding(View w_VD, IntView tokens_T, int64_t dim) {
  Vec y_TD;
  for (const int32_t token : tokens_T) {
    SWAX_CHECK(token >= 0 && (token + 1) * dim <= length(w_VD));
    for (int64_t d = 0; d < dim; ++d) y_TD.push_back(at(w_VD, token * dim + d));
  }
  return y_TD;
}

Vec embedding_backward(View dy_TD, IntView tokens_T, int64_t vocab, int64_t dim) {
  SWAX_CHECK(length(dy_TD) == static_cast<int64_t>(tokens_T.size()) * dim);
  Vec dw_VD = zeros(vocab * dim);
  for (size_t t = 0; t < tokens_T.size(); ++t) {
    SWAX_CHECK(tokens_T[t] >= 0 && tokens_T[t] < vocab);
    for (int64_t d = 0; d < dim; ++d) {
      at(dw_VD, tokens_T[t] * dim + d) += at(dy_TD, static_cast<int64_t>(t) * dim + d);
    }
  }
  return dw_VD;
}

}  // namespace swax::reference
