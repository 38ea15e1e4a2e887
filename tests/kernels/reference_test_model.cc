// Stored cases and gradients of the whole tiny model. See reference_test.cc.
#include <cmath>

#include "tests/kernels/reference_test_checks.h"
#include "tests/reference/linear.h"
#include "tests/reference/loss.h"
#include "tests/reference/model.h"
#include "tests/support/grad_check.h"
#include "tests/support/tensor_check.h"

namespace swax::reference {
namespace {

using testing::AssertionResult;

AssertionResult equal(const std::string& name, View got, View want) {
  return test::tensor_near(name, got, want, kEqualBound);
}

ModelSizes case_sizes(const CaseFile& c) {
  const int64_t dim = c.integer("d"), q_heads = c.integer("swa_heads"),
                heads = c.integer("mlstm_heads");
  return {.pattern = "SM",
          .layers = c.integer("layers"),
          .dim = dim,
          .vocab = c.integer("vocab"),
          .ff_dim = c.integer("ffn"),
          .q_heads = q_heads,
          .kv_heads = q_heads,
          .head_dim = dim / q_heads,
          .mlstm_heads = heads,
          .qk_dim = c.integer("qk") / heads,
          .v_dim = dim / heads,
          .rope_base = c.number("rope_base"),
          .norm_eps = c.number("norm_eps"),
          .mlstm_eps = c.number("mlstm_eps"),
          .gate_cap = c.number("gate_cap"),
          .logit_cap = c.number("logit_cap")};
}

// Names of model-spec 1.3 -> those of the older swax_tiny_* files (tests/data/reference/README.md).
std::string old_name(std::string name) {
  const std::pair<const char*, const char*> table[] = {
      {"norm_mix.", "norm1."},  {"norm_mlp.", "norm2."},      {"norm_out.", "norm_f."},
      {"mlp.w_gate", "ffn.wg"}, {"mlp.w_up", "ffn.wu"},       {"mlp.w_down", "ffn.wd"},
      {"mhnorm.", "norm."},     {"mlstm.w_out", "mlstm.wout"}};
  for (const auto& [now, before] : table) {
    const size_t place = name.find(now);
    if (place != std::string::npos) name.replace(place, std::string(now).size(), before);
  }
  return name;
}

// Values and gradients of all rows; the loss is the mean over the targets of all rows.
struct Batch {
  std::vector<ModelOut> rows;
  double loss = 0;
  Tensors grads;
};
Batch run_batch(const CaseFile& inputs, int64_t window, bool old_names, Canary canary) {
  const ModelSizes s = case_sizes(inputs);
  Tensors weights;
  for (const TensorShape& t : model_tensors(s)) {
    const CaseTensor& stored = inputs.in(old_names ? old_name(t.name) : t.name);
    SWAX_CHECK(stored.shape == t.shape);
    weights[t.name] = stored.values;
  }
  Batch batch;
  for (int64_t row = 0; row < inputs.integer("batch"); ++row) {
    const std::vector<int32_t> tokens = batch_row_ints(inputs.in("tokens"), row);
    const std::vector<int32_t> targets = batch_row_ints(inputs.in("targets"), row);
    std::vector<int32_t> reset_T;
    if (inputs.has("in", "doc_start")) reset_T = batch_row_ints(inputs.in("doc_start"), row);
    ModelGrad g = model_backward(s, weights,
                                 {.tokens_T = tokens,
                                  .targets_T = targets,
                                  .reset_T = reset_T,
                                  .window = window,
                                  .chunk = 16,
                                  .m0 = inputs.number("m0"),
                                  .loss_count = count_targets(inputs.in("targets").ints),
                                  .canary = canary});
    batch.loss += g.out.loss;
    batch.rows.push_back(std::move(g.out));
    for (auto& [name, grad] : g.grads) {
      if (row == 0) batch.grads[name] = Vec(grad.size(), 0.0);
      add_to(batch.grads[name], grad);
    }
  }
  return batch;
}

// Tokens first .. first + count - 1 of every row, one behind the other.
Vec tokens_of(const std::vector<View>& rows_TD, int64_t dim, int64_t first, int64_t count) {
  Vec all;
  for (const View row : rows_TD) {
    const View part =
        row.subspan(static_cast<size_t>(first * dim), static_cast<size_t>(count * dim));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

AssertionResult compare_batch(const Batch& batch, const CaseFile& inputs, const CaseFile& want,
                              bool old_names) {
  Findings f;
  f.add(equal("loss", Vec{batch.loss}, want.out("loss").values));
  const int64_t vocab = inputs.integer("vocab"), tokens = inputs.integer("seq");
  std::vector<View> logits;
  for (const ModelOut& row : batch.rows) logits.push_back(row.logits_TV);
  if (want.has("out", "logits"))
    f.add(equal("logits", tokens_of(logits, vocab, 0, tokens), want.out("logits").values));
  if (want.has("out", "logits_first4")) {
    f.add(equal("first logits", tokens_of(logits, vocab, 0, 4), want.out("logits_first4").values));
    f.add(equal("last logits", tokens_of(logits, vocab, tokens - 1, 1),
                want.out("logits_last").values));
  }
  for (size_t layer = 0; layer < batch.rows[0].hidden_TD.size(); ++layer) {
    std::vector<View> hidden;
    for (const ModelOut& row : batch.rows) hidden.push_back(row.hidden_TD[layer]);
    const std::string name = "hidden" + std::to_string(layer) + "_last";
    f.add(
        equal(name, tokens_of(hidden, inputs.integer("d"), tokens - 1, 1), want.out(name).values));
  }
  if (want.names_of("grad").size() != batch.grads.size()) {
    f.add(testing::AssertionFailure()
          << batch.grads.size() << " gradients, stored " << want.names_of("grad").size());
  }
  for (const auto& [name, grad] : batch.grads) {
    f.add(equal("d " + name, grad, want.grad(old_names ? old_name(name) : name).values));
  }
  return f.result();
}

AssertionResult tiny_case(Canary canary) {
  const CaseFile inputs = load_case("swax_tiny_inputs"), want = load_case("swax_tiny_w8");
  return compare_batch(run_batch(inputs, want.integer("window"), true, canary), inputs, want, true);
}

AssertionResult docs_case(Canary canary) {
  const CaseFile c = load_case("swax_docs");
  return compare_batch(run_batch(c, c.integer("window"), false, canary), c, c, false);
}

// A model smaller than the stored ones, with grouped heads and an uneven pattern: sampled elements
// of every tensor.
AssertionResult model_gradient(const std::string& pattern, Canary canary) {
  const ModelSizes s{.pattern = pattern,
                     .layers = 3,
                     .dim = 12,
                     .vocab = 17,
                     .ff_dim = 20,
                     .q_heads = 4,
                     .kv_heads = 2,
                     .head_dim = 4,
                     .mlstm_heads = 2,
                     .qk_dim = 3,
                     .v_dim = 5,
                     .rope_base = 50.0,
                     .norm_eps = 1e-6,
                     .mlstm_eps = 0.0,
                     .gate_cap = 15.0,
                     .logit_cap = 6.0};
  const int64_t length_T = 19;
  Tensors weights;
  for (const TensorShape& t : model_tensors(s)) {
    double mean = t.shape.size() == 1 ? 1.0 : 0.0, std = t.shape.size() == 1 ? 0.2 : 0.4;
    if (t.name.ends_with(".bi")) mean = -1.0;
    if (t.name.ends_with(".bf")) mean = 3.0;
    if (t.name == "embed.weight" || t.name == "head.weight") std = 1.0;
    weights[t.name] =
        test::widen(test::random_normal(9, t.name, t.elements(), {.mean = mean, .std = std}));
  }
  const std::vector<int32_t> tokens = test::random_ints(9, "tokens", length_T, 17);
  std::vector<int32_t> targets = test::random_ints(9, "targets", length_T, 17);
  targets[6] = -100;
  const std::vector<int32_t> reset_T = test::doc_starts(length_T, {0, 7, 8});
  const ModelInput right{
      .tokens_T = tokens, .targets_T = targets, .reset_T = reset_T, .window = 5, .chunk = 4};
  ModelInput planted = right;
  planted.canary = canary;
  const Tensors grads = model_backward(s, weights, planted).grads;
  Findings f;
  for (const TensorShape& t : model_tensors(s)) {
    Vec& x = weights.at(t.name);
    const Vec kept = x;
    f.add(test::gradient_matches("d " + t.name,
                                 [&](View point) {
                                   x.assign(point.begin(), point.end());
                                   return model_forward(s, weights, right).loss;
                                 },
                                 kept, grads.at(t.name), {.samples = 6, .h = 1e-4}));
    x = kept;
  }
  return f.result();
}

}  // namespace

std::vector<Check> model_case_checks() {
  return {{"swax_tiny_w8", tiny_case}, {"swax_docs", docs_case}};
}

std::vector<Check> model_gradient_checks() {
  return {{"model SM", [](Canary canary) { return model_gradient("SM", canary); }},
          {"model MMS", [](Canary canary) { return model_gradient("MMS", canary); }}};
}

}  // namespace swax::reference
