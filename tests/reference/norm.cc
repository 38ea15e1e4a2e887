#include "tests/reference/norm.h"

#include <cmath>

namespace swax::reference {

RmsNormOut rms_norm(View x_TD, View w_D, double eps) {
  const int64_t dim = length(w_D);
  SWAX_CHECK(dim > 0);
  SWAX_CHECK(length(x_TD) % dim == 0);
  const int64_t tokens = length(x_TD) / dim;
  RmsNormOut out{.y_TD = zeros(tokens * dim), .rstd_T = zeros(tokens)};
  for (int64_t t = 0; t < tokens; ++t) {
    double squares = 0;
    for (int64_t d = 0; d < dim; ++d) squares += at(x_TD, t * dim + d) * at(x_TD, t * dim + d);
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(dim) + eps);
    at(out.rstd_T, t) = rstd;
    for (int64_t d = 0; d < dim; ++d)
      at(out.y_TD, t * dim + d) = at(x_TD, t * dim + d) * rstd * at(w_D, d);
  }
  return out;
}

RmsNormGrad rms_norm_backward(View x_TD, View w_D, View dy_TD, double eps, Canary canary) {
  const int64_t dim = length(w_D);
  const int64_t tokens = length(x_TD) / dim;
  SWAX_CHECK(dy_TD.size() == x_TD.size());
  const Vec rstd_T = rms_norm(x_TD, w_D, eps).rstd_T;
  RmsNormGrad g{.dx_TD = zeros(tokens * dim), .dw_D = zeros(dim)};
  for (int64_t t = 0; t < tokens; ++t) {
    const double r = at(rstd_T, t);
    double mean = 0;
    for (int64_t d = 0; d < dim; ++d) {
      mean +=
          at(x_TD, t * dim + d) * at(w_D, d) * at(dy_TD, t * dim + d) / static_cast<double>(dim);
    }
    if (canary == Canary::kNoNormMean) mean = 0;
    for (int64_t d = 0; d < dim; ++d) {
      const double x = at(x_TD, t * dim + d);
      const double dy = at(dy_TD, t * dim + d);
      at(g.dx_TD, t * dim + d) = r * at(w_D, d) * dy - x * r * r * r * mean;
      at(g.dw_D, d) += dy * x * r;
    }
  }
  return g;
}

namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

void check_head_norm(const HeadNormSizes& s, View h_THV, View w_HV, View gate_THV) {
  SWAX_CHECK(length(h_THV) == s.tokens * s.heads * s.dim);
  SWAX_CHECK(length(w_HV) == s.heads * s.dim);
  SWAX_CHECK(gate_THV.empty() || gate_THV.size() == h_THV.size());
}

}  // namespace

HeadNormOut head_norm(const HeadNormSizes& s, View h_THV, View w_HV, View gate_THV, double eps) {
  check_head_norm(s, h_THV, w_HV, gate_THV);
  HeadNormOut out{.y_THV = zeros(length(h_THV)),
                  .mean_TH = zeros(s.tokens * s.heads),
                  .rstd_TH = zeros(s.tokens * s.heads)};
  const double dim = static_cast<double>(s.dim);
  for (int64_t row = 0; row < s.tokens * s.heads; ++row) {  // row = t * heads + h
    const int64_t first = row * s.dim;
    double mean = 0;
    for (int64_t v = 0; v < s.dim; ++v) mean += at(h_THV, first + v) / dim;
    double variance = 0;
    for (int64_t v = 0; v < s.dim; ++v) variance += std::pow(at(h_THV, first + v) - mean, 2) / dim;
    const double rstd = 1.0 / std::sqrt(variance + eps);
    at(out.mean_TH, row) = mean;
    at(out.rstd_TH, row) = rstd;
    for (int64_t v = 0; v < s.dim; ++v) {
      const double gate = gate_THV.empty() ? 1.0 : sigmoid(at(gate_THV, first + v));
      const double w = at(w_HV, row % s.heads * s.dim + v);
      at(out.y_THV, first + v) = gate * (at(h_THV, first + v) - mean) * rstd * w;
    }
  }
  return out;
}

HeadNormGrad head_norm_backward(const HeadNormSizes& s, View h_THV, View w_HV, View gate_THV,
                                View dy_THV, double eps) {
  check_head_norm(s, h_THV, w_HV, gate_THV);
  SWAX_CHECK(dy_THV.size() == h_THV.size());
  const HeadNormOut out = head_norm(s, h_THV, w_HV, {}, eps);
  HeadNormGrad g{.dh_THV = zeros(length(h_THV)),
                 .dw_HV = zeros(length(w_HV)),
                 .dgate_THV = zeros(length(gate_THV))};
  const double dim = static_cast<double>(s.dim);
  for (int64_t row = 0; row < s.tokens * s.heads; ++row) {
    const int64_t first = row * s.dim;
    Vec xhat = zeros(s.dim);
    Vec dxhat = zeros(s.dim);
    double mean_d = 0;   // mean of dxhat
    double mean_dx = 0;  // mean of dxhat * xhat
    for (int64_t v = 0; v < s.dim; ++v) {
      const double gate = gate_THV.empty() ? 1.0 : sigmoid(at(gate_THV, first + v));
      const double w = at(w_HV, row % s.heads * s.dim + v);
      const double dy = at(dy_THV, first + v);
      at(xhat, v) = (at(h_THV, first + v) - at(out.mean_TH, row)) * at(out.rstd_TH, row);
      at(dxhat, v) = dy * gate * w;
      at(g.dw_HV, row % s.heads * s.dim + v) += dy * gate * at(xhat, v);
      if (!gate_THV.empty())
        at(g.dgate_THV, first + v) = dy * at(xhat, v) * w * gate * (1.0 - gate);
      mean_d += at(dxhat, v) / dim;
      mean_dx += at(dxhat, v) * at(xhat, v) / dim;
    }
    for (int64_t v = 0; v < s.dim; ++v) {
      at(g.dh_THV, first + v) =
          at(out.rstd_TH, row) * (at(dxhat, v) - mean_d - at(xhat, v) * mean_dx);
    }
  }
  return g;
}

}  // namespace swax::reference
