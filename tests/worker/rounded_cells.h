// The two cells of a model in float64 with a rounding to bf16 at each place where the kernels of a
// GPU must round, because a value is an operand of a matrix unit or is stored in bf16; nothing else
// is rounded. f32 host tensors; inputs are used as they are. The places:
//   attention   P before P V; o; P before P^T dO; dS before dS K and dS^T Q; dq, dk, dv
//   mLSTM       weighted keys before K'^T V; stored states C (the carry to the next chunk is not,
//               nor is n); P before P V (its row sum, the normaliser, is not); h
//   backward    weighted queries before Q'^T dH; stored dC (again not the carry, nor dn); dS before
//               dS K and dS^T Q; P / D before P'^T dH; dq, dk, dv. di, df come from what was not
//               rounded: dP P of the pairs and the products through the states.
// Threads: pure functions.
#pragma once

#include "kernels/spec/mlstm.h"
#include "kernels/spec/swa.h"

namespace swax::test {

void rounded_swa(const SwaArgs& a);
void rounded_swa_backward(const SwaBackwardArgs& a);
void rounded_mlstm(const MlstmArgs& a);
void rounded_mlstm_backward(const MlstmBackwardArgs& a);

}  // namespace swax::test
