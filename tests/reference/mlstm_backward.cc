#include <algorithm>
#include <cmath>

#include "tests/reference/mlstm_chunk.h"

namespace swax::reference {
namespace {

// Gradient of [num | den] for the tokens of a chunk: G' = [dh / scale | gamma] (model-spec 2.4).
Vec output_gradient(const MlstmView& x, const MlstmOut& out, View dh_THV, const ChunkWeights& w) {
  const int64_t width = x.s.v_dim + 1;
  Vec g_T1 = zeros(w.count * width);
  for (int64_t t = 0; t < w.count; ++t) {
    const int64_t row = x.row(w.first + t);
    const double scale = at(out.scale_TH, row);
    const double den = at(out.den_TH, row);
    double dh_dot_h = 0;
    for (int64_t u = 0; u < x.s.v_dim; ++u) {
      at(g_T1, t * width + u) = at(dh_THV, row * x.s.v_dim + u) / scale;
      dh_dot_h += at(dh_THV, row * x.s.v_dim + u) * at(out.h_THV, row * x.s.v_dim + u);
    }
    const bool den_counts = std::abs(den) > std::exp(-at(out.m_TH, row));
    const double sign = den > 0 ? 1.0 : -1.0;
    const bool planted = x.canary == Canary::kNoNormaliser;
    at(g_T1, t * width + x.s.v_dim) = den_counts && !planted ? -sign * dh_dot_h / scale : 0.0;
  }
  return g_T1;
}

// dq, dk, dv of one chunk; c is the state before it, dc the gradient of the state after it (both K
// x (V + 1)).
void add_chunk_qkv(const MlstmView& x, const ChunkWeights& w, View g_T1, View c_K1, View dc_K1,
                   MlstmGrad& grad) {
  const int64_t keys = x.s.qk_dim, values = x.s.v_dim, width = values + 1;
  const double root = std::sqrt(static_cast<double>(keys));
  for (int64_t t = 0; t < w.count; ++t) {
    const int64_t dq = x.row(w.first + t) * keys;
    for (int64_t j = 0; j <= t; ++j) {
      const int64_t dk = x.row(w.first + j) * keys;
      const double weight = at(w.intra_TT, t * w.count + j);
      const double p = x.q_dot_k(w.first + t, w.first + j) * weight;
      double ds = 0;
      for (int64_t u = 0; u < width; ++u)
        ds += at(g_T1, t * width + u) * x.v(w.first + j, u) * weight;
      for (int64_t k = 0; k < keys; ++k) {
        at(grad.dq_THK, dq + k) += ds * x.k(w.first + j, k) / root;
        at(grad.dk_THK, dk + k) += ds * x.q(w.first + t, k);
      }
      for (int64_t u = 0; u < values; ++u) {
        at(grad.dv_THV, x.row(w.first + j) * values + u) += p * at(g_T1, t * width + u);
      }
    }
    for (int64_t k = 0; k < keys; ++k) {
      for (int64_t u = 0; u < width; ++u) {
        const double dc = at(dc_K1, k * width + u) * at(w.out_T, t);
        at(grad.dq_THK, dq + k) +=
            at(w.inter_T, t) * at(c_K1, k * width + u) * at(g_T1, t * width + u) / root;
        at(grad.dk_THK, dq + k) += x.v(w.first + t, u) * dc;
        if (u < values)
          at(grad.dv_THV, x.row(w.first + t) * values + u) += x.k(w.first + t, k) * dc;
      }
    }
  }
}

// di = k dk and df from the suffix sums of q dq - k dk inside the chunk plus <C, dC> of the state
// after it.
void add_chunk_gates(const MlstmView& x, const ChunkWeights& w, double carry, MlstmGrad& grad) {
  double run = carry;
  for (int64_t t = w.first + w.count - 1; t >= w.first; --t) {
    double q_dq = 0, k_dk = 0;
    for (int64_t k = 0; k < x.s.qk_dim; ++k) {
      q_dq +=
          at(x.in.q_THK, x.row(t) * x.s.qk_dim + k) * at(grad.dq_THK, x.row(t) * x.s.qk_dim + k);
      k_dk += x.k(t, k) * at(grad.dk_THK, x.row(t) * x.s.qk_dim + k);
    }
    at(grad.di_TH, x.row(t)) = k_dk;
    run += q_dq - k_dk;
    // The forget gate of a first token has nothing to forget, and what follows it does not depend
    // on earlier gates.
    if (x.reset(t)) run = 0;
    at(grad.df_TH, x.row(t)) =
        run / (1.0 + std::exp(at(x.in.f_TH, x.row(t))));  // run * sigmoid(-f)
  }
}

}  // namespace

MlstmGrad mlstm_backward(const MlstmSizes& s, const MlstmInput& in, int64_t chunk, View dh_THV,
                         const MlstmStateGrad* d_last, Canary canary) {
  const MlstmOut out = mlstm_chunkwise(s, in, chunk, canary);
  SWAX_CHECK(dh_THV.size() == out.h_THV.size());
  const int64_t rows = s.tokens * s.heads, width = s.v_dim + 1;
  MlstmGrad grad{.dq_THK = zeros(rows * s.qk_dim),
                 .dk_THK = zeros(rows * s.qk_dim),
                 .dv_THV = zeros(rows * s.v_dim),
                 .di_TH = zeros(rows),
                 .df_TH = zeros(rows),
                 .d_initial = {}};
  MlstmState d_state =
      empty_state(s, 0.0);  // gradient of the state after the current chunk, as a state
  if (d_last != nullptr) {
    SWAX_CHECK(d_last->dc_HKV.size() == d_state.c_HKV.size());
    SWAX_CHECK(d_last->dn_HK.size() == d_state.n_HK.size());
    d_state.c_HKV = d_last->dc_HKV;
    d_state.n_HK = d_last->dn_HK;
  }
  const int64_t chunks = (s.tokens + chunk - 1) / chunk;
  for (int64_t c = chunks - 1; c >= 0; --c) {
    const MlstmState& before = out.states[static_cast<size_t>(c)];
    const MlstmState& after = out.states[static_cast<size_t>(c + 1)];
    const int64_t first = c * chunk, count = std::min(chunk, s.tokens - first);
    for (int64_t head = 0; head < s.heads; ++head) {
      const MlstmView x{s, in, head, canary};
      const ChunkWeights w = chunk_weights(x, first, count, at(before.m_H, head));
      const Vec g_T1 = output_gradient(x, out, dh_THV, w);
      const Vec c_K1 = head_state(s, before, head);
      const Vec after_K1 = head_state(s, after, head);
      Vec dc_K1 = head_state(s, d_state, head);
      add_chunk_qkv(x, w, g_T1, c_K1, dc_K1, grad);
      double carry = 0;  // <C, dC> behind the chunk
      for (size_t e = 0; e < dc_K1.size(); ++e) carry += after_K1[e] * dc_K1[e];
      add_chunk_gates(x, w, canary == Canary::kNoCarry ? 0.0 : carry, grad);
      for (int64_t e = 0; e < s.qk_dim * width; ++e) {
        at(dc_K1, e) *= w.carry;
        for (int64_t t = 0; t < count; ++t) {
          at(dc_K1, e) +=
              at(w.inter_T, t) * x.q(first + t, e / width) * at(g_T1, t * width + e % width);
        }
      }
      set_head_state(s, dc_K1, head, d_state);
    }
  }
  grad.d_initial = {.dc_HKV = std::move(d_state.c_HKV), .dn_HK = std::move(d_state.n_HK)};
  return grad;
}

}  // namespace swax::reference
