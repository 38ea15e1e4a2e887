#include "tests/reference/mlstm_chunk.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace swax::reference {

double MlstmView::q(int64_t t, int64_t k) const {
  return at(in.q_THK, row(t) * s.qk_dim + k) / std::sqrt(static_cast<double>(s.qk_dim));
}

double MlstmView::log_forget(int64_t t) const {
  const double f = at(in.f_TH, row(t));
  return f >= 0 ? -std::log1p(std::exp(-f)) : f - std::log1p(std::exp(f));
}

double MlstmView::q_dot_k(int64_t t, int64_t j) const {
  double sum = 0;
  for (int64_t i = 0; i < s.qk_dim; ++i) sum += q(t, i) * k(j, i);
  return sum;
}

ChunkWeights chunk_weights(const MlstmView& x, int64_t first, int64_t count, double m_in) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  // b: sum of the log forget gates from the start of the chunk, those of first tokens left out;
  // segment: borders so far; past: log factor of whatever m came before, which after a border is
  // m0.
  Vec b = zeros(count);
  Vec past = zeros(count);
  std::vector<int64_t> segment(static_cast<size_t>(count));
  double b_run = 0, past_run = m_in;
  int64_t borders = 0;
  for (int64_t t = 0; t < count; ++t) {
    const double lf = x.log_forget(first + t);
    const bool reset = x.reset(first + t);
    b_run += reset ? 0.0 : lf;
    past_run = (reset ? x.in.m0 : past_run) + lf;
    borders += reset ? 1 : 0;
    at(b, t) = b_run;
    at(past, t) = past_run;
    segment[static_cast<size_t>(t)] = borders;
  }
  const auto log_d = [&](int64_t t, int64_t j) {
    const bool same = j <= t && segment[static_cast<size_t>(t)] == segment[static_cast<size_t>(j)];
    return same ? at(b, t) - at(b, j) + x.log_input(first + j) : kNever;
  };
  ChunkWeights w{.first = first,
                 .count = count,
                 .m_T = zeros(count),
                 .inter_T = zeros(count),
                 .intra_TT = zeros(count * count),
                 .out_T = zeros(count)};
  for (int64_t t = 0; t < count; ++t) {
    double m = at(past, t);
    for (int64_t j = 0; j <= t; ++j) m = std::max(m, log_d(t, j));
    at(w.m_T, t) = m;
    const bool sees_state = segment[static_cast<size_t>(t)] == 0;
    at(w.inter_T, t) = sees_state ? std::exp(b[static_cast<size_t>(t)] + m_in - m) : 0.0;
    for (int64_t j = 0; j <= t; ++j) at(w.intra_TT, t * count + j) = std::exp(log_d(t, j) - m);
  }
  // The state after the chunk is what the last token sees.
  w.m_out = w.m_T.back();
  w.carry = w.inter_T.back();
  for (int64_t j = 0; j < count; ++j) at(w.out_T, j) = at(w.intra_TT, (count - 1) * count + j);
  return w;
}

Vec head_state(const MlstmSizes& s, const MlstmState& state, int64_t head) {
  Vec c_K1 = zeros(s.qk_dim * (s.v_dim + 1));
  for (int64_t k = 0; k < s.qk_dim; ++k) {
    for (int64_t u = 0; u < s.v_dim; ++u) {
      at(c_K1, k * (s.v_dim + 1) + u) = at(state.c_HKV, (head * s.qk_dim + k) * s.v_dim + u);
    }
    at(c_K1, k * (s.v_dim + 1) + s.v_dim) = at(state.n_HK, head * s.qk_dim + k);
  }
  return c_K1;
}

void set_head_state(const MlstmSizes& s, View c_K1, int64_t head, MlstmState& state) {
  for (int64_t k = 0; k < s.qk_dim; ++k) {
    for (int64_t u = 0; u < s.v_dim; ++u) {
      at(state.c_HKV, (head * s.qk_dim + k) * s.v_dim + u) = at(c_K1, k * (s.v_dim + 1) + u);
    }
    at(state.n_HK, head * s.qk_dim + k) = at(c_K1, k * (s.v_dim + 1) + s.v_dim);
  }
}

MlstmState empty_state(const MlstmSizes& s, double m0) {
  return {.c_HKV = zeros(s.heads * s.qk_dim * s.v_dim),
          .n_HK = zeros(s.heads * s.qk_dim),
          .m_H = Vec(static_cast<size_t>(s.heads), m0)};
}

Vec pack_state(const MlstmSizes& s, const MlstmState& state) {
  Vec packed;
  for (int64_t head = 0; head < s.heads; ++head) {
    const Vec c_K1 = head_state(s, state, head);
    packed.insert(packed.end(), c_K1.begin(), c_K1.end());
  }
  return packed;
}

MlstmState unpack_state(const MlstmSizes& s, View state_HKV1, View m_H) {
  const int64_t stride = s.qk_dim * (s.v_dim + 1);
  SWAX_CHECK(length(state_HKV1) == s.heads * stride);
  SWAX_CHECK(length(m_H) == s.heads);
  MlstmState state = empty_state(s, 0.0);
  state.m_H.assign(m_H.begin(), m_H.end());
  for (int64_t head = 0; head < s.heads; ++head) {
    set_head_state(
        s, state_HKV1.subspan(static_cast<size_t>(head * stride), static_cast<size_t>(stride)),
        head, state);
  }
  return state;
}

void check_mlstm(const MlstmSizes& s, const MlstmInput& in) {
  SWAX_CHECK(s.tokens > 0);
  SWAX_CHECK(length(in.q_THK) == s.tokens * s.heads * s.qk_dim);
  SWAX_CHECK(in.k_THK.size() == in.q_THK.size());
  SWAX_CHECK(length(in.v_THV) == s.tokens * s.heads * s.v_dim);
  SWAX_CHECK(length(in.i_TH) == s.tokens * s.heads);
  SWAX_CHECK(in.f_TH.size() == in.i_TH.size());
  SWAX_CHECK(in.reset_T.empty() || static_cast<int64_t>(in.reset_T.size()) == s.tokens);
  if (in.initial == nullptr) return;
  SWAX_CHECK(length(in.initial->c_HKV) == s.heads * s.qk_dim * s.v_dim);
  SWAX_CHECK(length(in.initial->n_HK) == s.heads * s.qk_dim);
  SWAX_CHECK(length(in.initial->m_H) == s.heads);
}

}  // namespace swax::reference
