// Inputs, expected values and one run of the mLSTM ops, shared by the mLSTM tests.
#pragma once

#include <vector>

#include "tests/kernels/op_check.h"
#include "tests/reference/mlstm.h"

namespace swax::test {

struct MlstmCase {
  int64_t tokens = 0, heads = 0, qk = 0, v = 0, chunk = 0;
  std::vector<int32_t> reset = {};
  double i_mean = 0.0;
  double f_mean = 1.0;
  double gate_spread = 1.0;
  bool alternate_gates = false;  // -15 and 15 in turns instead of random gates
  // Gates far from their usual values bring normalisers near 0 and gradients that cancel: the
  // bounds then grow with the condition of the result (mlstm_wants).
  bool conditioned = false;
};
struct MlstmInputs {
  std::vector<float> q, k, v, i, f, dh;
};
MlstmInputs mlstm_inputs(const MlstmCase& c);
// Tokens [begin, begin + count) of all inputs.
MlstmInputs mlstm_slice(const MlstmCase& c, const MlstmInputs& in, int64_t begin, int64_t count);

struct MlstmWants {
  std::vector<Want> forward;   // h, m, den, states
  std::vector<Want> backward;  // dq, dk, dv, di, df
};
// Bounds of kernels/spec/mlstm.h. With `conditioned` each is multiplied by the condition number of
// the tensor: the relative change of the float64 result per relative change of the inputs. The
// gradients dq, dk, di, df are differences of the part with the normaliser held and the part
// through the normaliser; where they cancel, the bound is relative to the part with it held.
MlstmWants mlstm_wants(const MlstmCase& c, const MlstmInputs& in,
                       reference::Canary canary = reference::Canary::kNone);

struct MlstmFinal {
  std::vector<float> state, m;
};
struct MlstmResults {
  Outputs forward;
  Outputs backward;
  MlstmFinal final_state;
};
MlstmResults run_mlstm(const MlstmCase& c, const MlstmInputs& in, Rig& rig,
                       const MlstmFinal* initial = nullptr);

}  // namespace swax::test
