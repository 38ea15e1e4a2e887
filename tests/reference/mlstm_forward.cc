#include <algorithm>
#include <cmath>

#include "tests/reference/mlstm_chunk.h"

namespace swax::reference {
namespace {

MlstmOut empty_out(const MlstmSizes& s, const MlstmInput& in) {
  const int64_t rows = s.tokens * s.heads;
  return {.h_THV = zeros(rows * s.v_dim),
          .m_TH = zeros(rows),
          .den_TH = zeros(rows),
          .scale_TH = zeros(rows),
          .last = in.initial != nullptr ? *in.initial : empty_state(s, in.m0),
          .states = {}};
}

// Divides the numerator by the normaliser and stores token t of one head. num_1 has V + 1 elements,
// the last is den.
void finish_token(const MlstmView& x, int64_t t, View num_1, double m, MlstmOut& out) {
  const double den = num_1.back();
  const double scale = std::max(std::abs(den), std::exp(-m)) + x.in.eps;
  at(out.m_TH, x.row(t)) = m;
  at(out.den_TH, x.row(t)) = den;
  at(out.scale_TH, x.row(t)) = scale;
  for (int64_t u = 0; u < x.s.v_dim; ++u)
    at(out.h_THV, x.row(t) * x.s.v_dim + u) = at(num_1, u) / scale;
}

// num_1[u] += factor * sum_k q_t[k] c[k, u]
void add_state_term(const MlstmView& x, int64_t t, double factor, View c_K1, Vec& num_1) {
  const int64_t width = x.s.v_dim + 1;
  for (int64_t k = 0; k < x.s.qk_dim; ++k) {
    for (int64_t u = 0; u < width; ++u)
      at(num_1, u) += factor * x.q(t, k) * at(c_K1, k * width + u);
  }
}

}  // namespace

MlstmOut mlstm_recurrent(const MlstmSizes& s, const MlstmInput& in, Canary canary) {
  check_mlstm(s, in);
  MlstmOut out = empty_out(s, in);
  const int64_t width = s.v_dim + 1;
  for (int64_t head = 0; head < s.heads; ++head) {
    const MlstmView x{s, in, head, canary};
    Vec c_K1 = head_state(s, out.last, head);
    double m = at(out.last.m_H, head);
    for (int64_t t = 0; t < s.tokens; ++t) {
      if (x.reset(t)) {
        c_K1.assign(c_K1.size(), 0.0);
        m = in.m0;
      }
      const double m_new = std::max(x.log_forget(t) + m, x.log_input(t));
      const double keep = std::exp(x.log_forget(t) + m - m_new);
      const double add = std::exp(x.log_input(t) - m_new);
      m = m_new;
      for (int64_t k = 0; k < s.qk_dim; ++k) {
        for (int64_t u = 0; u < width; ++u) {
          double& c = at(c_K1, k * width + u);
          c = keep * c + add * x.k(t, k) * x.v(t, u);
        }
      }
      Vec num_1 = zeros(width);
      add_state_term(x, t, 1.0, c_K1, num_1);
      finish_token(x, t, num_1, m, out);
    }
    set_head_state(s, c_K1, head, out.last);
    at(out.last.m_H, head) = m;
  }
  return out;
}

MlstmOut mlstm_parallel(const MlstmSizes& s, const MlstmInput& in) {
  check_mlstm(s, in);
  MlstmOut out = empty_out(s, in);
  const int64_t width = s.v_dim + 1;
  for (int64_t head = 0; head < s.heads; ++head) {
    const MlstmView x{s, in, head};
    const Vec c_K1 = head_state(s, out.last, head);
    const double m_initial = at(out.last.m_H, head);
    Vec last_c_K1 = zeros(s.qk_dim * width);
    for (int64_t t = 0; t < s.tokens; ++t) {
      // Backwards from t: decay is the sum of the log forget gates of j + 1 .. t.
      Vec log_weight;  // of tokens t, t - 1, ...
      double decay = 0;
      int64_t j = t;
      for (;; --j) {
        log_weight.push_back(decay + x.log_input(j));
        decay += x.log_forget(j);
        if (j == 0 || x.reset(j)) break;
      }
      const bool sees_state = j == 0 && !x.reset(0);
      const double past = decay + (sees_state ? m_initial : in.m0);
      double m = past;
      for (const double value : log_weight) m = std::max(m, value);
      Vec num_1 = zeros(width);
      if (sees_state) add_state_term(x, t, std::exp(past - m), c_K1, num_1);
      for (size_t back = 0; back < log_weight.size(); ++back) {
        const int64_t source = t - static_cast<int64_t>(back);
        const double p = x.q_dot_k(t, source) * std::exp(log_weight[back] - m);
        for (int64_t u = 0; u < width; ++u) at(num_1, u) += p * x.v(source, u);
      }
      finish_token(x, t, num_1, m, out);
      if (t + 1 < s.tokens) continue;
      for (int64_t e = 0; e < s.qk_dim * width; ++e) {
        double c = sees_state ? std::exp(past - m) * at(c_K1, e) : 0.0;
        for (size_t back = 0; back < log_weight.size(); ++back) {
          const int64_t source = t - static_cast<int64_t>(back);
          c += std::exp(log_weight[back] - m) * x.k(source, e / width) * x.v(source, e % width);
        }
        at(last_c_K1, e) = c;
      }
    }
    set_head_state(s, last_c_K1, head, out.last);
    at(out.last.m_H, head) = at(out.m_TH, x.row(s.tokens - 1));
  }
  return out;
}

MlstmOut mlstm_chunkwise(const MlstmSizes& s, const MlstmInput& in, int64_t chunk, Canary canary) {
  check_mlstm(s, in);
  SWAX_CHECK(chunk > 0);
  MlstmOut out = empty_out(s, in);
  const int64_t width = s.v_dim + 1;
  out.states.push_back(out.last);
  for (int64_t first = 0; first < s.tokens; first += chunk) {
    const int64_t count = std::min(chunk, s.tokens - first);
    for (int64_t head = 0; head < s.heads; ++head) {
      const MlstmView x{s, in, head, canary};
      Vec c_K1 = head_state(s, out.last, head);
      const ChunkWeights w = chunk_weights(x, first, count, at(out.last.m_H, head));
      for (int64_t t = 0; t < count; ++t) {
        Vec num_1 = zeros(width);
        add_state_term(x, first + t, at(w.inter_T, t), c_K1, num_1);
        for (int64_t j = 0; j <= t; ++j) {
          const double p = x.q_dot_k(first + t, first + j) * at(w.intra_TT, t * count + j);
          for (int64_t u = 0; u < width; ++u) at(num_1, u) += p * x.v(first + j, u);
        }
        finish_token(x, first + t, num_1, at(w.m_T, t), out);
      }
      for (int64_t e = 0; e < s.qk_dim * width; ++e) {
        double c = w.carry * at(c_K1, e);
        for (int64_t j = 0; j < count; ++j) {
          c += at(w.out_T, j) * x.k(first + j, e / width) * x.v(first + j, e % width);
        }
        at(c_K1, e) = c;
      }
      set_head_state(s, c_K1, head, out.last);
      at(out.last.m_H, head) = w.m_out;
    }
    out.states.push_back(out.last);
  }
  return out;
}

}  // namespace swax::reference
