// Causal sliding-window attention (model-spec 4). Key j is visible to token t iff t - window < j <=
// t and both lie in one document. Scale 1/sqrt(K). Query head h reads kv head h / (q_heads /
// kv_heads). No sinks, no rotation (rope.h does that).
#pragma once

#include "tests/reference/types.h"

namespace swax::reference {

struct AttentionSizes {
  int64_t tokens, q_heads, kv_heads, dim;
  int64_t window;  // keys including self; >= tokens: full causal attention
};
struct AttentionOut {
  Vec o_THK;
  Vec lse_TH;  // natural log of sum_j exp(score)
};
// reset_T: 1 at the first token of a document (types.h), or empty.
AttentionOut attention(const AttentionSizes& s, View q_THK, View k_THK, View v_THK, IntView reset_T,
                       Canary canary = Canary::kNone);

struct AttentionGrad {
  Vec dq_THK;
  Vec dk_THK;  // kv_heads
  Vec dv_THK;
};
AttentionGrad attention_backward(const AttentionSizes& s, View q_THK, View k_THK, View v_THK,
                                 IntView reset_T, View do_THK, Canary canary = Canary::kNone);

}  // namespace swax::reference
