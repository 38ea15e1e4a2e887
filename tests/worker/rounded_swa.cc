#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/tensor_check.h"
#include "tests/worker/rounded_cells.h"

namespace swax::test {
namespace {

double bf16(double x) { return bf16_round(static_cast<float>(x)); }

double dot(const float* a, const float* b, int64_t count) {
  double sum = 0.0;
  for (int64_t e = 0; e < count; ++e) sum += static_cast<double>(a[e]) * static_cast<double>(b[e]);
  return sum;
}
void add(std::vector<double>& sum, double factor, const float* x) {
  for (size_t e = 0; e < sum.size(); ++e) sum[e] += factor * static_cast<double>(x[e]);
}
void store(float* to, const std::vector<double>& from) {
  for (size_t e = 0; e < from.size(); ++e) to[e] = static_cast<float>(bf16(from[e]));
}

// Turns a row back by the angles of token t, if asked.
void turn_back(const SwaBackwardArgs& a, int64_t t, std::vector<double>& x) {
  if (a.cos_TP.empty()) return;
  const size_t pairs = x.size() / 2;
  for (size_t i = 0; i < pairs; ++i) {
    const double c = static_cast<double>((a.cos_TP.f32() + t * a.cos_TP.row_stride)[i]);
    const double s = static_cast<double>((a.sin_TP.f32() + t * a.sin_TP.row_stride)[i]);
    const double low = x[i], high = x[i + pairs];
    x[i] = low * c + high * s;
    x[i + pairs] = high * c - low * s;
  }
}

float* row(const Tensor& x, int64_t t, int64_t head) {
  return x.f32() + t * x.row_stride + head * x.dims[2];
}

// First key that the query sees.
template <typename Args>
int64_t first_key(const Args& a, int64_t t) {
  const int64_t low = std::max<int64_t>(0, t - a.window + 1);
  return a.doc_start_T.empty() ? low : std::max<int64_t>(low, a.doc_start_T.i32()[t]);
}

}  // namespace

void rounded_swa(const SwaArgs& a) {
  const int64_t heads = a.q_THE.dims[1], group = heads / a.k_TGE.dims[1], size = a.q_THE.dims[2];
  std::vector<double> p, o(static_cast<size_t>(size));
  for (int64_t t = 0; t < a.q_THE.dims[0]; ++t) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t low = first_key(a, t);
      p.clear();
      for (int64_t j = low; j <= t; ++j)
        p.push_back(static_cast<double>(a.scale) *
                    dot(row(a.q_THE, t, head), row(a.k_TGE, j, head / group), size));
      const double top = *std::max_element(p.begin(), p.end());
      double sum = 0.0;
      std::fill(o.begin(), o.end(), 0.0);
      for (int64_t j = low; j <= t; ++j) {
        const double weight = std::exp(p[static_cast<size_t>(j - low)] - top);
        sum += weight;
        add(o, bf16(weight), row(a.v_TGE, j, head / group));
      }
      for (double& x : o) x /= sum;
      store(row(a.o_THE, t, head), o);
      a.lse_TH.f32()[t * heads + head] = static_cast<float>(top + std::log(sum));
    }
  }
}

void rounded_swa_backward(const SwaBackwardArgs& a) {
  const int64_t heads = a.q_THE.dims[1], group = heads / a.k_TGE.dims[1], size = a.q_THE.dims[2];
  const int64_t tokens = a.q_THE.dims[0], kv_heads = a.k_TGE.dims[1];
  const auto scale = static_cast<double>(a.scale);
  const auto width = static_cast<size_t>(size);
  std::vector<std::vector<double>> dk(static_cast<size_t>(tokens * kv_heads),
                                      std::vector<double>(width));
  std::vector<std::vector<double>> dv = dk;
  std::vector<double> dq(width);
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t kv_head = head / group;
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t low = first_key(a, t);
      const float* q = row(a.q_THE, t, head);
      const float* d_o = row(a.do_THE, t, head);
      const double delta = dot(row(a.o_THE, t, head), d_o, size);
      std::fill(dq.begin(), dq.end(), 0.0);
      for (int64_t j = low; j <= t; ++j) {
        const float* k = row(a.k_TGE, j, kv_head);
        const double lse = a.lse_TH.f32()[t * heads + head];
        const double p = std::exp(scale * dot(q, k, size) - lse);
        const double dp = dot(d_o, row(a.v_TGE, j, kv_head), size);
        const double ds = low == t ? 0.0 : bf16(p * (dp - delta) * scale);
        const auto key = static_cast<size_t>(j * kv_heads + kv_head);
        add(dq, ds, k);
        add(dk[key], ds, q);
        add(dv[key], bf16(p), d_o);
      }
      turn_back(a, t, dq);
      store(row(a.dq_THE, t, head), dq);
    }
  }
  for (int64_t j = 0; j < tokens; ++j) {
    for (int64_t head = 0; head < kv_heads; ++head) {
      std::vector<double>& key = dk[static_cast<size_t>(j * kv_heads + head)];
      turn_back(a, j, key);
      store(row(a.dk_TGE, j, head), key);
      store(row(a.dv_TGE, j, head), dv[static_cast<size_t>(j * kv_heads + head)]);
    }
  }
}

}  // namespace swax::test
