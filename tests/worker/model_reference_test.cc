// The fp32 model on the CPU backend against the float64 model: loss, logits and every gradient, on
// random small shapes and on the stored cases. Bounds are derived (model_rig.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/tensor_check.h"
#include "tests/worker/model_rig.h"

namespace swax::test {
namespace {

using reference::Canary;
using reference::ModelGrad;

struct Case {
  TinyModel model;
  int64_t tokens = 0;
  int64_t window = 0;
  std::vector<int64_t> documents = {};
  uint64_t seed = 1;
};

// Both sides of one case, run once.
struct Compared {
  explicit Compared(const Case& c)
      : shape(tiny_shape(c.model)),
        weights(random_weights(shape, c.seed)),
        slot(random_slot(c.seed, c.tokens, shape.vocab, c.documents)),
        window(c.window),
        want(reference_run(shape, reference_weights(shape, weights), slot, window)),
        condition(conditioning(shape, weights, slot, window, want)) {
    Rig rig(shape, weights);
    eval = rig.eval(slot, {.window = window});
    EXPECT_TRUE(rig.status().ok()) << rig.status().to_string();
    train = rig.train(slot, {.window = window});
    EXPECT_TRUE(rig.status().ok()) << rig.status().to_string();
  }
  // The outputs that are further from `right` than rounding explains.
  std::vector<std::string> wrong(const ModelGrad& right) const {
    std::vector<std::string> names;
    const auto check = [&](const std::string& name, std::span<const double> got,
                           std::span<const double> wanted, double bound) {
      const auto result = tensor_near(name, got, wanted, bound);
      if (!result) names.push_back(result.message());
    };
    const double forward = forward_stage_bound(shape, slot.size(), window);
    const double backward = backward_stage_bound(shape, slot.size(), window);
    check("logits", widen(eval.logits), right.out.logits_TV, forward * condition.logits);
    const double loss = right.out.loss * static_cast<double>(right.out.count);
    check("loss", {&train.loss, 1}, {&loss, 1}, forward * condition.loss);
    for (size_t i = 0; i < shape.tensors.size(); ++i) {
      const std::string& name = shape.tensors[i].name;
      check(name, widen(tensor_of(shape, train.grads, i)), right.grads.at(name),
            backward * condition.grads.at(name));
    }
    return names;
  }

  ModelShape shape;
  std::vector<float> weights;
  SlotData slot;
  int64_t window;
  ModelGrad want;
  Conditioning condition;
  RunResult eval, train;
};

constexpr TinyModel kGrouped{.layers = 4,
                             .dim = 48,
                             .vocab = 257,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 12,
                             .mlstm_heads = 3,
                             .qk = 8,
                             .v = 16,
                             .ff = 200,
                             .chunk = 16};

class ModelAgainstReference : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Shapes, ModelAgainstReference,
    testing::Values(
        Case{.model = {}, .tokens = 40, .window = 8, .seed = 1},
        Case{.model = kGrouped, .tokens = 77, .window = 9, .documents = {0, 13, 32, 33}, .seed = 2},
        // More tokens than a loss chunk, the window wider than the sequence.
        Case{.model = {.pattern = "MS", .layers = 3}, .tokens = 150, .window = 4096, .seed = 3},
        Case{.model = {.pattern = "S", .layers = 1, .kv_heads = 1},
             .tokens = 33,
             .window = 1,
             .seed = 4},
        Case{.model = {.pattern = "M", .layers = 2, .mlstm_heads = 1, .qk = 4, .v = 9, .chunk = 7},
             .tokens = 50,
             .window = 3,
             .documents = {5, 20},
             .seed = 5},
        Case{.model = {.logit_cap = 0.0}, .tokens = 3, .window = 2, .seed = 6},
        Case{.model = kGrouped, .tokens = 64, .window = 16, .documents = {0, 16, 17}, .seed = 7}));

TEST_P(ModelAgainstReference, LossLogitsAndGradientsAgree) {
  const Compared both(GetParam());
  EXPECT_THAT(both.wrong(both.want), testing::IsEmpty());
  EXPECT_EQ(both.train.loss, both.eval.loss);
  double sum = 0.0;
  for (const double loss : both.eval.token_loss) sum += loss;
  EXPECT_EQ(sum, both.eval.loss);  // the same terms in the same order
}

// The bounds must be tight enough to see a bug: the model differs from a reference with a planted
// one. The head norm hides the gradient of the cell's normaliser, up to its eps (model-spec 2.4):
// only a large eps shows whether it is there.
TEST(ModelAgainstReferenceCanaries, EveryPlantedBugIsSeen) {
  TinyModel model = kGrouped;
  model.norm_eps = 1e-2;
  const Compared both(
      {.model = model, .tokens = 77, .window = 9, .documents = {0, 13, 32, 33}, .seed = 2});
  EXPECT_THAT(both.wrong(both.want), testing::IsEmpty());
  for (const Canary canary :
       {Canary::kNoNormaliser, Canary::kNoCarry, Canary::kNoResetMask, Canary::kNoCapDerivative,
        Canary::kNoNormMean, Canary::kWindowOffByOne, Canary::kLastTileDropped}) {
    const ModelGrad bug = reference_run(both.shape, reference_weights(both.shape, both.weights),
                                        both.slot, both.window, canary);
    EXPECT_THAT(both.wrong(bug), testing::Not(testing::IsEmpty()))
        << "canary " << static_cast<int>(canary);
  }
}

}  // namespace
}  // namespace swax::test
