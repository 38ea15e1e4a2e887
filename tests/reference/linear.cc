#include "tests/reference/linear.h"

#include <cmath>

namespace swax::reference {
namespace {

// Length of a reduction after the canary: without its last tile (a partial tile counts as one).
int64_t reduced(int64_t count, Canary canary) {
  if (canary != Canary::kLastTileDropped) return count;
  return (count - 1) / kReductionTile * kReductionTile;
}

}  // namespace

Vec linear(View x_TI, View w_OI, int64_t in_dim, Canary canary) {
  SWAX_CHECK(in_dim > 0);
  SWAX_CHECK(length(x_TI) % in_dim == 0);
  SWAX_CHECK(length(w_OI) % in_dim == 0);
  const int64_t tokens = length(x_TI) / in_dim;
  const int64_t out_dim = length(w_OI) / in_dim;
  const int64_t sum_length = reduced(in_dim, canary);
  Vec y_TO = zeros(tokens * out_dim);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t o = 0; o < out_dim; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < sum_length; ++i)
        sum += at(x_TI, t * in_dim + i) * at(w_OI, o * in_dim + i);
      at(y_TO, t * out_dim + o) = sum;
    }
  }
  return y_TO;
}

LinearGrad linear_backward(View x_TI, View w_OI, View dy_TO, int64_t in_dim, Canary canary) {
  SWAX_CHECK(in_dim > 0);
  const int64_t tokens = length(x_TI) / in_dim;
  const int64_t out_dim = length(w_OI) / in_dim;
  SWAX_CHECK(length(dy_TO) == tokens * out_dim);
  LinearGrad g{.dx_TI = zeros(tokens * in_dim), .dw_OI = zeros(out_dim * in_dim)};
  const int64_t out_sum = reduced(out_dim, canary);
  const int64_t token_sum = reduced(tokens, canary);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t o = 0; o < out_dim; ++o) {
      const double dy = at(dy_TO, t * out_dim + o);
      for (int64_t i = 0; i < in_dim; ++i) {
        if (o < out_sum) at(g.dx_TI, t * in_dim + i) += dy * at(w_OI, o * in_dim + i);
        if (t < token_sum) at(g.dw_OI, o * in_dim + i) += dy * at(x_TI, t * in_dim + i);
      }
    }
  }
  return g;
}

Vec soft_cap(View x, double cap) {
  Vec y(x.begin(), x.end());
  if (cap == 0.0) return y;
  for (double& value : y) value = cap * std::tanh(value / cap);
  return y;
}

Vec soft_cap_backward(View y, View dy, double cap, Canary canary) {
  SWAX_CHECK(y.size() == dy.size());
  Vec dx(dy.begin(), dy.end());
  if (cap == 0.0 || canary == Canary::kNoCapDerivative) return dx;
  for (size_t e = 0; e < dx.size(); ++e) dx[e] *= 1.0 - (y[e] / cap) * (y[e] / cap);
  return dx;
}

void add_to(Vec& into, View x) {
  SWAX_CHECK(into.size() == x.size());
  for (size_t e = 0; e < x.size(); ++e) into[e] += x[e];
}

Vec sum_over_tokens(View x_TD, int64_t dim) {
  SWAX_CHECK(dim > 0);
  SWAX_CHECK(length(x_TD) % dim == 0);
  Vec sum_D = zeros(dim);
  for (int64_t e = 0; e < length(x_TD); ++e) at(sum_D, e % dim) += at(x_TD, e);
  return sum_D;
}

Vec add_bias(View x_TD, View b_D) {
  SWAX_CHECK(!b_D.empty());
  Vec y_TD(x_TD.begin(), x_TD.end());
  for (size_t e = 0; e < y_TD.size(); ++e) y_TD[e] += b_D[e % b_D.size()];
  return y_TD;
}

}  // namespace swax::reference
