// mLSTM cell with exponential input gate, chunkwise. Source: arXiv 2405.04517 (cell), 2503.14376
// (chunkwise form), model-spec 2.
//
// Gates: i_TN = cap(x wi^T + bi), f_TN = cap(x wf^T + bf), cap(z) = 15 tanh(z / 15) (0 switches it
// off), f32 always. Cell, per head: lf = logsigmoid(f), li = i, m_t = max(lf_t + m_{t-1}, li_t),
// m_0 = -1e30 (kMlstmNoPast);
//   C_t = e^{lf+m_{t-1}-m_t} C_{t-1} + e^{li-m_t} k_t [v_t, 1]^T;  [num, den] = C_t^T q_t /
//   sqrt(K); h_t = num / (max(|den|, e^{-m_t}) + eps), eps = kMlstmEps.
// reset_T[t] = 1: C, n and m are dropped before the update of token t (a mask, never a small gate).
// Chunks of `chunk` tokens, the last may be short; sums of log gates never cross a chunk. Saved for
// the backward pass: states_CNKU1 (C' = [C | n] before each chunk, f32, index 0 = the initial
// state), m_state_CN (before each chunk), m_TN, den_TN (signed). Backward is exact, the gradient of
// the normaliser included (m is held constant, exact up to eps); gate gradients per chunk with the
// carry <C', dC'> (model-spec 2.4). di, df are gradients with respect to the capped gates.
// f32 on the CPU. Bounds: K = chunk + mLSTM key size, c = 8 forward, 16 backward; one step and
// chains of steps: K = steps + mLSTM key size. They hold for gates like those of the model. In
// general a bound is multiplied by the condition number of its tensor (relative change per relative
// change of the inputs: large where |den| comes near 0) and, for gradients, by the ratio of the
// gradient with the normaliser held to the whole gradient (where the two parts cancel). Gates: K =
// D (over tokens: T + D), c = 3; the slope 1 - r^2 is taken from the saved r = value / cap, so near
// the cap the bound of di, df and what follows from them grows with |2 r^2 dy| / |(1 - r^2) dy|.
#pragma once

#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax {

constexpr float kMlstmNoPast = -1e30F;
constexpr float kMlstmEps = 1e-6F;
constexpr int64_t kMlstmChunkMax = 1024;

struct MlstmGatesArgs {
  Tensor x_TD;
  Tensor wi_ND;
  Tensor wf_ND;
  Tensor bi_N;
  Tensor bf_N;
  Tensor i_TN;
  Tensor f_TN;
  float cap = 0.0F;
};
struct MlstmGatesBackwardArgs {
  Tensor x_TD;
  Tensor wi_ND;
  Tensor wf_ND;
  Tensor i_TN;  // capped, as saved
  Tensor f_TN;
  Tensor di_TN;  // with respect to the capped values; overwritten with those of the pre-activations
  Tensor df_TN;
  Tensor dx_TD;   // += (accumulates)
  Tensor dwi_ND;  // written
  Tensor dwf_ND;
  Tensor dbi_N;
  Tensor dbf_N;
  float cap = 0.0F;
};
struct MlstmArgs {
  Tensor q_TNK;
  Tensor k_TNK;
  Tensor v_TNU;
  Tensor i_TN;
  Tensor f_TN;
  Tensor reset_T;  // u8 or empty
  Tensor h_TNU;
  Tensor states_CNKU1;  // [chunks + 1, N, K, U + 1]; entry `chunks` is the final state
  Tensor m_state_CN;    // [chunks + 1, N]
  Tensor m_TN;
  Tensor den_TN;
  Tensor scratch;  // f32, mlstm_scratch(...) elements
  int64_t chunk = 0;
  bool initial_state = false;  // entry 0 of states and m_state holds a state (decode after
                               // prefill); else it is filled with "no past"
};
struct MlstmBackwardArgs {
  Tensor q_TNK;
  Tensor k_TNK;
  Tensor v_TNU;
  Tensor i_TN;
  Tensor f_TN;
  Tensor reset_T;
  Tensor h_TNU;
  Tensor states_CNKU1;
  Tensor m_state_CN;
  Tensor m_TN;
  Tensor den_TN;
  Tensor dh_TNU;
  Tensor dq_TNK;
  Tensor dk_TNK;
  Tensor dv_TNU;
  Tensor di_TN;
  Tensor df_TN;
  Tensor scratch;  // f32, mlstm_backward_scratch(...) elements
  int64_t chunk = 0;
};
// One token: state_NKU1 and m_N are updated in place (model-spec 2.1).
struct MlstmStepArgs {
  Tensor q_NK;
  Tensor k_NK;
  Tensor v_NU;
  Tensor i_N;
  Tensor f_N;
  Tensor h_NU;
  Tensor state_NKU1;
  Tensor m_N;
};
constexpr int64_t mlstm_chunks(int64_t tokens, int64_t chunk) {
  return (tokens + chunk - 1) / chunk;
}
// Elements of scratch for T tokens: enough for any split of the work over threads (it depends on
// the spec alone).
int64_t mlstm_scratch(int64_t tokens, int64_t heads, int64_t qk, int64_t v, int64_t chunk);
int64_t mlstm_backward_scratch(int64_t tokens, int64_t heads, int64_t qk, int64_t v, int64_t chunk);
Status validate(const MlstmGatesArgs& a);
Status validate(const MlstmGatesBackwardArgs& a);
Status validate(const MlstmArgs& a);
Status validate(const MlstmBackwardArgs& a);
Status validate(const MlstmStepArgs& a);
double cost(const MlstmArgs& a);
double cost(const MlstmBackwardArgs& a);

}  // namespace swax
