#include "tests/reference/attention.h"

#include <algorithm>
#include <cmath>

namespace swax::reference {
namespace {

// First key that token t sees; the last one is t itself.
int64_t first_key(const AttentionSizes& s, IntView reset_T, int64_t t, Canary canary) {
  const int64_t window = s.window + (canary == Canary::kWindowOffByOne ? 1 : 0);
  int64_t j = t;
  while (j > 0 && t - (j - 1) < window) {
    if (starts_document(reset_T, j) && canary != Canary::kNoResetMask) break;
    --j;
  }
  return j;
}

double dot(View a, int64_t a_first, View b, int64_t b_first, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += at(a, a_first + i) * at(b, b_first + i);
  return sum;
}

void check_sizes(const AttentionSizes& s, View q, View k, View v, IntView reset_T) {
  SWAX_CHECK(s.window > 0);
  SWAX_CHECK(s.kv_heads > 0 && s.q_heads % s.kv_heads == 0);
  SWAX_CHECK(length(q) == s.tokens * s.q_heads * s.dim);
  SWAX_CHECK(length(k) == s.tokens * s.kv_heads * s.dim);
  SWAX_CHECK(v.size() == k.size());
  SWAX_CHECK(reset_T.empty() || static_cast<int64_t>(reset_T.size()) == s.tokens);
}

// Softmax over the visible keys of one (token, head).
struct Row {
  int64_t first = 0;
  Vec p;  // [t - first + 1]
  double lse = 0;
};
Row softmax_row(const AttentionSizes& s, View q, View k, IntView reset_T, int64_t t, int64_t head,
                Canary canary) {
  const int64_t kv_head = head / (s.q_heads / s.kv_heads);
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.dim));
  Row row{.first = first_key(s, reset_T, t, canary), .p = {}, .lse = 0};
  for (int64_t j = row.first; j <= t; ++j) {
    row.p.push_back(scale * dot(q, (t * s.q_heads + head) * s.dim, k,
                                (j * s.kv_heads + kv_head) * s.dim, s.dim));
  }
  const double top = *std::max_element(row.p.begin(), row.p.end());
  double sum = 0;
  for (const double score : row.p) sum += std::exp(score - top);
  row.lse = top + std::log(sum);
  for (double& value : row.p) value = std::exp(value - row.lse);
  return row;
}

}  // namespace

AttentionOut attention(const AttentionSizes& s, View q_THK, View k_THK, View v_THK, IntView reset_T,
                       Canary canary) {
  check_sizes(s, q_THK, k_THK, v_THK, reset_T);
  AttentionOut out{.o_THK = zeros(length(q_THK)), .lse_TH = zeros(s.tokens * s.q_heads)};
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t head = 0; head < s.q_heads; ++head) {
      const int64_t kv_head = head / (s.q_heads / s.kv_heads);
      const Row row = softmax_row(s, q_THK, k_THK, reset_T, t, head, canary);
      at(out.lse_TH, t * s.q_heads + head) = row.lse;
      for (int64_t j = row.first; j <= t; ++j) {
        for (int64_t d = 0; d < s.dim; ++d) {
          at(out.o_THK, (t * s.q_heads + head) * s.dim + d) +=
              at(row.p, j - row.first) * at(v_THK, (j * s.kv_heads + kv_head) * s.dim + d);
        }
      }
    }
  }
  return out;
}

AttentionGrad attention_backward(const AttentionSizes& s, View q_THK, View k_THK, View v_THK,
                                 IntView reset_T, View do_THK, Canary canary) {
  check_sizes(s, q_THK, k_THK, v_THK, reset_T);
  SWAX_CHECK(do_THK.size() == q_THK.size());
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.dim));
  AttentionGrad g{.dq_THK = zeros(length(q_THK)),
                  .dk_THK = zeros(length(k_THK)),
                  .dv_THK = zeros(length(v_THK))};
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t head = 0; head < s.q_heads; ++head) {
      const int64_t query = (t * s.q_heads + head) * s.dim;
      const int64_t kv_head = head / (s.q_heads / s.kv_heads);
      const Row row = softmax_row(s, q_THK, k_THK, reset_T, t, head, canary);
      Vec dp;
      double mean = 0;  // sum_j p_j dp_j = do . o
      for (int64_t j = row.first; j <= t; ++j) {
        dp.push_back(dot(do_THK, query, v_THK, (j * s.kv_heads + kv_head) * s.dim, s.dim));
        mean += at(row.p, j - row.first) * dp.back();
      }
      for (int64_t j = row.first; j <= t; ++j) {
        const int64_t key = (j * s.kv_heads + kv_head) * s.dim;
        const double p = at(row.p, j - row.first);
        const double ds = p * (at(dp, j - row.first) - mean) * scale;
        for (int64_t d = 0; d < s.dim; ++d) {
          at(g.dq_THK, query + d) += ds * at(k_THK, key + d);
          at(g.dk_THK, key + d) += ds * at(q_THK, query + d);
          at(g.dv_THK, key + d) += p * at(do_THK, query + d);
        }
      }
    }
  }
  return g;
}

}  // namespace swax::reference
