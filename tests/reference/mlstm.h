// The mLSTM cell with exponential input gate (model-spec 2.1 to 2.4): recurrent, parallel and
// chunkwise forward, and the backward with the exact gradient of the normaliser. The three forms
// agree for every m0, chunk and border. Scale 1/sqrt(K) on q. i, f are pre-activations after any
// soft cap; input gate exp(i), forget gate sigmoid(f).
//   lf = logsigmoid(f);  m_t = max(lf_t + m_{t-1}, i_t)
//   C_t = e^{lf_t + m_{t-1} - m_t} C_{t-1} + e^{i_t - m_t} k_t v_t^T;   n_t likewise with k_t
//   den_t = q_t n_t / sqrt(K);  scale_t = max(|den_t|, e^{-m_t}) + eps;  h_t = C_t^T q_t / sqrt(K)
//   / scale_t
// At the first token of a document C, n, m are set to 0, 0, m0 before the update: by a mask, never
// by a gate.
#pragma once

#include "tests/reference/types.h"

namespace swax::reference {

struct MlstmSizes {
  int64_t tokens, heads, qk_dim, v_dim;
};

// C and n are stored at the scale e^{-m}: the unstabilised memory is e^m C.
struct MlstmState {
  Vec c_HKV;
  Vec n_HK;
  Vec m_H;
};
struct MlstmStateGrad {
  Vec dc_HKV;
  Vec dn_HK;
};

struct MlstmInput {
  View q_THK, k_THK, v_THV;
  View i_TH, f_TH;
  IntView reset_T = {};                 // empty: no borders
  const MlstmState* initial = nullptr;  // null: C = 0, n = 0, m = m0
  double eps = 1e-6;
  double m0 = -1e30;  // "no past"; finite, so that no inf - inf arises
};

struct MlstmOut {
  Vec h_THV;
  Vec m_TH;
  Vec den_TH;    // signed q_t n_t / sqrt(K)
  Vec scale_TH;  // max(|den|, e^{-m}) + eps
  MlstmState last;
  std::vector<MlstmState> states;  // chunkwise only: before each chunk, then the last one
};
// [C | n] as one array [H, K, V + 1], the form the kernels store; and back (m is not part of it).
Vec pack_state(const MlstmSizes& s, const MlstmState& state);
MlstmState unpack_state(const MlstmSizes& s, View state_HKV1, View m_H);
MlstmOut mlstm_recurrent(const MlstmSizes& s, const MlstmInput& in, Canary canary = Canary::kNone);
MlstmOut mlstm_parallel(const MlstmSizes& s, const MlstmInput& in);
// chunk: tokens per chunk, the last one may be shorter.
MlstmOut mlstm_chunkwise(const MlstmSizes& s, const MlstmInput& in, int64_t chunk,
                         Canary canary = Canary::kNone);

struct MlstmGrad {
  Vec dq_THK, dk_THK, dv_THV;
  Vec di_TH, df_TH;  // of the (capped) pre-activations; df is 0 at the first token of a document
  MlstmStateGrad
      d_initial;  // of C and n of the initial state with its m held; 0 behind a border at token 0
};
// Chunkwise. m is a constant in the gradient (exact for eps = 0, because h then does not depend on
// m). d_last: gradient of the last state's C and n with m_last held (null: zero).
MlstmGrad mlstm_backward(const MlstmSizes& s, const MlstmInput& in, int64_t chunk, View dh_THV,
                         const MlstmStateGrad* d_last = nullptr, Canary canary = Canary::kNone);

}  // namespace swax::reference
