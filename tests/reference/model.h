// The whole SWAX model in float64: loss, logits and all gradients of one sequence. Equations and
// names: model-spec 1.3. Weights and gradients are maps from full tensor names
// ("layers.1.mlstm.wq") to row-major arrays.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/reference/types.h"

namespace swax::reference {

struct ModelSizes {
  std::string pattern = "SM";  // S sliding-window attention, M mLSTM; layer l is pattern[l % size]
  int64_t layers, dim, vocab, ff_dim;
  int64_t q_heads, kv_heads, head_dim;
  int64_t mlstm_heads, qk_dim, v_dim;  // dims per head
  double rope_base = 10000.0;
  double norm_eps = 1e-6;  // RMSNorm and head norm
  double mlstm_eps = 1e-6;
  double gate_cap = 15.0;
  double logit_cap = 30.0;
};

using Tensors = std::map<std::string, Vec>;

struct TensorShape {
  std::string name;
  std::vector<int64_t> shape;
  int64_t elements() const;
};
// Every parameter, in the order embedding, layers, final norm, head.
std::vector<TensorShape> model_tensors(const ModelSizes& s);

struct ModelInput {
  IntView tokens_T, targets_T;  // target < 0: ignored
  IntView reset_T = {};
  int64_t window = 0;
  int64_t chunk = 32;  // of the mLSTM
  double m0 = -1e30;
  int64_t loss_count = 0;  // divisor of the loss; 0: the targets of this sequence
  Canary canary = Canary::kNone;
};
struct ModelOut {
  double loss = 0;
  int64_t count = 0;
  Vec logits_TV;               // after the cap
  std::vector<Vec> hidden_TD;  // residual stream: after the embedding, then after each layer
};
ModelOut model_forward(const ModelSizes& s, const Tensors& weights, const ModelInput& in);

struct ModelGrad {
  ModelOut out;
  Tensors grads;  // one entry per parameter
};
ModelGrad model_backward(const ModelSizes& s, const Tensors& weights, const ModelInput& in);

}  // namespace swax::reference
