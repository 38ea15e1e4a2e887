// The model as a table of tensors: names, shapes, initial values, weight decay and FSDP unit. Pure
// function of the spec's [model]. Source: model-spec 1.3. Threads: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "proto/job.pb.h"

namespace swax {

enum class LayerKind : char { kAttention = 'S', kMlstm = 'M' };

enum class InitRule {
  kNormalSmall,  // sigma_s = sqrt(2 / (5 d))
  kNormalOut,    // sigma_w = 2 / (N sqrt(d)), N layers
  kZero,
  kOne,
  kInputGateBias,   // -10
  kForgetGateBias,  // linspace(3, 6) over heads
};

struct TensorInfo {
  std::string name;            // full name: "layers.3.mlstm.wq"
  std::vector<int64_t> shape;  // 1 or 2 dims
  InitRule init = InitRule::kZero;
  bool decay = false;  // weight decay applies
  int unit = 0;        // FSDP unit
  int64_t elements() const;
  // Rows of a 1-D tensor have one element.
  int64_t row_elements() const { return shape.size() == 2 ? shape[1] : 1; }
  int64_t rows() const { return elements() / row_elements(); }
};

// Unit 0 is the embedding, units 1..layers are the layers, unit layers + 1 is output norm + head.
struct ModelShape {
  int64_t layers = 0, dim = 0, vocab = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t mlstm_heads = 0, mlstm_qk = 0, mlstm_v = 0, ff = 0, mlstm_chunk = 0;
  double rope_base = 0, norm_eps = 0, gate_cap = 0, logit_cap = 0;
  bool doc_reset = true;
  std::vector<LayerKind> kinds;     // per layer
  std::vector<TensorInfo> tensors;  // table order: by unit, then as model-spec 1.3 lists them
  int units() const { return static_cast<int>(layers) + 2; }
  int64_t parameters() const;
  std::vector<int> unit_tensors(int unit) const;  // indices into tensors, rising
  int find(const std::string& name) const;        // -1 when absent
};

// Fails (kInvalidArgument) only on shapes that cannot be (head_dim odd, heads not a multiple of
// kv_heads, ...); jobs/spec reports those with line numbers before.
Result<ModelShape> model_shape(const pb::Model& model);

// Value of one element before training: depends on (seed, hash(name), element) alone.
float init_value(const TensorInfo& t, const ModelShape& m, uint64_t seed, int64_t element);

// Model FLOPs per token of one forward pass at window w and sequence length T (model-spec 7);
// training costs three times this.
double forward_flops_per_token(const ModelShape& m, int64_t window, int64_t seq_len);

}  // namespace swax
