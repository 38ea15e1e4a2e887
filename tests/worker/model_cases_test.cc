// The fp32 model on the CPU backend against the stored cases of tests/data/reference, which were
// made by another implementation (autograd in float64): two rows of a batch as two slots of one
// step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/reference/case_file.h"
#include "tests/reference/loss.h"
#include "tests/support/tensor_check.h"
#include "tests/worker/model_rig.h"

namespace swax::test {
namespace {

using reference::CaseFile;
using reference::Vec;

CaseFile load(const std::string& name) {
  auto c = CaseFile::load(std::string(SWAX_SOURCE_DIR) + "/tests/data/reference", name);
  SWAX_CHECK(c.ok());
  return std::move(c).value();
}

// Names of the table -> those of the swax_tiny files.
std::string old_name(std::string name) {
  const std::pair<const char*, const char*> table[] = {
      {"norm_mix.", "norm1."},  {"norm_mlp.", "norm2."},      {"norm_out.", "norm_f."},
      {"mlp.w_gate", "ffn.wg"}, {"mlp.w_up", "ffn.wu"},       {"mlp.w_down", "ffn.wd"},
      {"mhnorm.", "norm."},     {"mlstm.w_out", "mlstm.wout"}};
  for (const auto& [now, before] : table) {
    if (const size_t at = name.find(now); at != std::string::npos) {
      return name.replace(at, std::string(now).size(), before);
    }
  }
  return name;
}

ModelShape case_shape(const CaseFile& c) {
  const auto number = [&](const char* key) { return static_cast<uint32_t>(c.integer(key)); };
  const uint32_t heads = number("swa_heads"), cells = number("mlstm_heads"), dim = number("d");
  return tiny_shape({.layers = number("layers"),
                     .dim = dim,
                     .vocab = number("vocab"),
                     .heads = heads,
                     .kv_heads = heads,
                     .head_dim = dim / heads,
                     .mlstm_heads = cells,
                     .qk = number("qk") / cells,
                     .v = dim / cells,
                     .ff = number("ffn"),
                     .logit_cap = c.number("logit_cap")});
}

SlotData case_row(const CaseFile& c, int64_t row) {
  SlotData s;
  s.tokens = reference::batch_row_ints(c.in("tokens"), row);
  s.targets = reference::batch_row_ints(c.in("targets"), row);
  if (!c.has("in", "doc_start")) return s;
  const std::vector<int32_t> reset = reference::batch_row_ints(c.in("doc_start"), row);
  s.reset.assign(reset.begin(), reset.end());
  s.doc_start = reference::first_tokens(reset);
  return s;
}

double norm(const Vec& x) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

struct Stored {
  const CaseFile& inputs;
  const CaseFile& outputs;
  int64_t window = 0;
  bool old_names = false;
  double extra = 0.0;  // known difference of the definitions
};

void compare(const Stored& c) {
  const ModelShape shape = case_shape(c.inputs);
  const auto stored_name = [&](const TensorInfo& t) {
    return c.old_names ? old_name(t.name) : t.name;
  };
  std::vector<float> weights;
  for (const TensorInfo& t : shape.tensors) {
    const std::vector<float> values = narrow(c.inputs.in(stored_name(t)).values);
    ASSERT_EQ(static_cast<int64_t>(values.size()), t.elements()) << t.name;
    weights.insert(weights.end(), values.begin(), values.end());
  }
  const int64_t rows = c.inputs.integer("batch");
  const int64_t count = reference::count_targets(c.inputs.in("targets").ints);
  Rig rig(shape, weights);
  double loss = 0.0, condition_loss = 1.0, condition_logits = 1.0;
  Vec logits, grads(weights.size(), 0.0);
  std::map<std::string, double> allowed;  // norm of the error of the sum over rows, in stage bounds
  int64_t tokens = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const SlotData slot = case_row(c.inputs, row);
    tokens = slot.size();
    const RunResult eval = rig.eval(slot, {.window = c.window});
    const RunResult train =
        rig.train(slot, {.window = c.window, .inv_targets = 1.0F / static_cast<float>(count)});
    ASSERT_TRUE(rig.status().ok()) << rig.status().to_string();
    loss += train.loss / static_cast<double>(count);
    const Vec wide = widen(eval.logits);
    logits.insert(logits.end(), wide.begin(), wide.end());
    for (size_t i = 0; i < grads.size(); ++i) grads[i] += static_cast<double>(train.grads[i]);
    const auto at = reference_run(shape, reference_weights(shape, weights), slot, c.window);
    const Conditioning k = conditioning(shape, weights, slot, c.window, at);
    condition_loss = std::max(condition_loss, k.loss);
    condition_logits = std::max(condition_logits, k.logits);
    const double share = static_cast<double>(at.out.count) / static_cast<double>(count);
    for (const auto& [name, value] : k.grads)
      allowed[name] += value * share * norm(at.grads.at(name));
  }

  const double forward = forward_stage_bound(shape, tokens, c.window) + c.extra;
  const double backward = backward_stage_bound(shape, tokens, c.window) + c.extra;
  EXPECT_TRUE(
      tensor_near("loss", Vec{loss}, c.outputs.out("loss").values, forward * condition_loss));
  if (c.outputs.has("out", "logits")) {
    EXPECT_TRUE(
        tensor_near("logits", logits, c.outputs.out("logits").values, forward * condition_logits));
  } else {
    Vec last;
    for (int64_t row = 0; row < rows; ++row) {
      const auto end = logits.begin() + (row + 1) * tokens * shape.vocab;
      last.insert(last.end(), end - shape.vocab, end);
    }
    EXPECT_TRUE(tensor_near("last logits", last, c.outputs.out("logits_last").values,
                            forward * condition_logits));
  }
  size_t begin = 0;
  for (const TensorInfo& t : shape.tensors) {
    const auto size = static_cast<size_t>(t.elements());
    const std::span<const double> got = std::span(grads).subspan(begin, size);
    const Vec& want = c.outputs.grad(stored_name(t)).values;
    EXPECT_TRUE(tensor_near(t.name, got, want, backward * allowed[t.name] / norm(want)));
    begin += size;
  }
}

// The older files start the mLSTM at m = 0, we at "no past": the two differ through the cell's eps
// alone, by at most eps of h in each token.
TEST(ModelCases, TinyModel) {
  const CaseFile inputs = load("swax_tiny_inputs"), outputs = load("swax_tiny_w8");
  compare({.inputs = inputs,
           .outputs = outputs,
           .window = outputs.integer("window"),
           .old_names = true,
           .extra = 1e-6});
}

TEST(ModelCases, Documents) {
  const CaseFile inputs = load("swax_docs");
  compare({.inputs = inputs, .outputs = inputs, .window = inputs.integer("window")});
}

}  // namespace
}  // namespace swax::test
