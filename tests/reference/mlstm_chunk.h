// Internal to mlstm_forward.cc and mlstm_backward.cc: the exponential weights of one chunk of one
// head (model-spec 2.3).
#pragma once

#include "tests/reference/mlstm.h"

namespace swax::reference {

// Element access with the two conventions of the chunkwise form: q is scaled by 1/sqrt(K), v has a
// column of ones behind it.
struct MlstmView {
  const MlstmSizes& s;
  const MlstmInput& in;
  int64_t head;
  Canary canary = Canary::kNone;

  int64_t row(int64_t t) const { return t * s.heads + head; }
  double q(int64_t t, int64_t k) const;  // scaled
  double k(int64_t t, int64_t i) const { return at(in.k_THK, row(t) * s.qk_dim + i); }
  double v(int64_t t, int64_t u) const {
    return u == s.v_dim ? 1.0 : at(in.v_THV, row(t) * s.v_dim + u);
  }
  double log_input(int64_t t) const { return at(in.i_TH, row(t)); }
  double log_forget(int64_t t) const;  // logsigmoid(f)
  bool reset(int64_t t) const {
    return canary != Canary::kNoResetMask && starts_document(in.reset_T, t);
  }
  double q_dot_k(int64_t t, int64_t j) const;
};

// Tokens first .. first + count - 1; all indices below are relative to first.
struct ChunkWeights {
  int64_t first = 0, count = 0;
  Vec m_T;
  Vec inter_T;       // e^{binter - m}: factor of the state before the chunk; 0 behind a border
  Vec intra_TT;      // e^{logD - m}: factor of token j in token t
  Vec out_T;         // e^{a - m_out}: factor of token j in the state after the chunk
  double carry = 0;  // e^{g + m_in - m_out}: factor of the state before in the state after
  double m_out = 0;
};
ChunkWeights chunk_weights(const MlstmView& x, int64_t first, int64_t count, double m_in);

// [C | n] of one head as K x (V + 1).
Vec head_state(const MlstmSizes& s, const MlstmState& state, int64_t head);
void set_head_state(const MlstmSizes& s, View c_K1, int64_t head, MlstmState& state);
MlstmState empty_state(const MlstmSizes& s, double m0);

void check_mlstm(const MlstmSizes& s, const MlstmInput& in);

}  // namespace swax::reference
