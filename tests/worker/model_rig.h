// A model with weights, a CPU backend and an arena of exactly the planned size, for the tests of
// worker/model; and the same model in float64 (tests/reference). One rig is one rank: nothing in it
// is shared. Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/reference/model.h"
#include "worker/model/model.h"

namespace swax::test {

// Sizes of a model for tests; q heads are grouped when kv_heads < heads.
struct TinyModel {
  std::string pattern = "SM";
  uint32_t layers = 2, dim = 32, vocab = 61, heads = 2, kv_heads = 2, head_dim = 16;
  uint32_t mlstm_heads = 2, qk = 8, v = 16, ff = 40, chunk = 16;
  double logit_cap = 30.0;
  double norm_eps = 1e-6;
};
ModelShape tiny_shape(const TinyModel& m);

// One sequence. doc_start and reset are empty when there are no borders.
struct SlotData {
  std::vector<int32_t> tokens, targets, doc_start;
  std::vector<uint8_t> reset;
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
};
// Random tokens; targets are the next ones, the last (if not the only one) and those across a
// border ignored.
SlotData random_slot(uint64_t seed, int64_t tokens, int64_t vocab,
                     const std::vector<int64_t>& first_tokens = {});
int64_t target_count(const SlotData& slot);

// Matrices normal with std 1/sqrt(columns), norms about 1, gate biases that keep gates open: every
// tensor gets a gradient.
std::vector<float> random_weights(const ModelShape& shape, uint64_t seed);

struct RunOptions {
  int64_t window = 8;
  RecomputePolicy recompute{};
  float inv_targets = 0.0F;  // 0: 1 / targets of the slot
};
struct RunResult {
  double loss = 0.0;               // sum, nats
  std::vector<float> logits;       // eval only, [T,V]
  std::vector<double> token_loss;  // eval only, [T]
  std::vector<float> grads;        // train only, flat
  int64_t arena_peak = 0;
  int64_t arena_planned = 0;
};

class Rig {
 public:
  Rig(const ModelShape& shape, std::vector<float> weights, const BackendOptions& options = {});
  const ModelShape& shape() const { return shape_; }
  Model& model() { return *model_; }
  Backend& backend() { return *backend_; }
  std::vector<float>& weights() { return weights_; }
  ResidentStore& store() { return *store_; }
  // Gradients and arena start as NaN: what backward does not write is seen.
  RunResult train(const SlotData& slot, const RunOptions& o, UnitStore* store = nullptr);
  RunResult eval(const SlotData& slot, const RunOptions& o, UnitStore* store = nullptr);
  // Status of the last run.
  const Status& status() const { return status_; }

  // Feeds the tokens one by one; row t of the answer holds the logits after token t.
  std::vector<float> decode(const std::vector<int32_t>& tokens, int64_t window);

 private:
  struct Inputs;
  RunResult run(const SlotData& slot, const RunOptions& o, UnitStore* store, bool train);

  ModelShape shape_;
  std::vector<float> weights_, grads_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ResidentStore> store_;
  Status status_;
};

// The float64 side.
reference::ModelSizes reference_sizes(const ModelShape& shape);
reference::Tensors reference_weights(const ModelShape& shape, const std::vector<float>& flat);
reference::ModelGrad reference_run(const ModelShape& shape, const reference::Tensors& weights,
                                   const SlotData& slot, int64_t window,
                                   reference::Canary canary = reference::Canary::kNone);
// The part of a flat buffer that is tensor `index` of the table.
std::vector<float> tensor_of(const ModelShape& shape, const std::vector<float>& flat, size_t index);

// Norm-wise error of the fp32 model against float64: at most conditioning * stage bound.
// Stage bound: the bounds that the kernel specs state (0.5 * 2^-24 * sqrt(K) * c) of the calls from
// one weight product to the next, summed; the largest such sum of the model. Rounding changes the
// result of a stage by at most that. Backward calls have twice the c of their forward in every
// spec; a weight gradient adds one sum over the tokens.
double forward_stage_bound(const ModelShape& shape, int64_t tokens, int64_t window);
double backward_stage_bound(const ModelShape& shape, int64_t tokens, int64_t window);
// Conditioning: how much the float64 model amplifies a relative change of all its weights at once,
// and so of the result of every stage, per output; at least 1. Knows nothing of the code under
// test.
struct Conditioning {
  double logits = 1.0;
  double loss = 1.0;
  std::map<std::string, double> grads;
};
Conditioning conditioning(const ModelShape& shape, const std::vector<float>& weights,
                          const SlotData& slot, int64_t window, const reference::ModelGrad& at);

}  // namespace swax::test
