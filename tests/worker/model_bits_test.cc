// What must not change a bit: the recompute mode, the number of compute threads, other ranks in the
// same process, tokens that a position cannot see. And what must: the first token inside the
// window.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "tests/support/tensor_check.h"
#include "tests/worker/model_rig.h"

namespace swax::test {
namespace {

constexpr TinyModel kFour{.layers = 4,
                          .dim = 48,
                          .vocab = 257,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 12,
                          .mlstm_heads = 3,
                          .ff = 200};

struct Runs {
  ModelShape shape = tiny_shape(kFour);
  std::vector<float> weights = random_weights(shape, 11);
  SlotData slot = random_slot(11, 150, shape.vocab, {0, 40, 41, 100});
};

void expect_same(const RunResult& a, const RunResult& b) {
  EXPECT_TRUE(same_bits("gradients", a.grads, b.grads));
  EXPECT_EQ(a.loss, b.loss);
}

TEST(ModelBits, RecomputeModesAgreeAndShrinkTheArena) {
  const Runs r;
  Rig rig(r.shape, r.weights);
  const RunResult none = rig.train(r.slot, {.window = 32, .recompute = RecomputeMode::kNone});
  const RunResult light = rig.train(r.slot, {.window = 32, .recompute = RecomputeMode::kLight});
  const RunResult block = rig.train(r.slot, {.window = 32, .recompute = RecomputeMode::kBlock});
  ASSERT_TRUE(rig.status().ok()) << rig.status().to_string();
  EXPECT_TRUE(all_finite("gradients", none.grads));
  expect_same(none, light);
  expect_same(none, block);
  EXPECT_LT(light.arena_peak, none.arena_peak);
  EXPECT_LT(block.arena_peak, light.arena_peak);
}

// Each layer that recomputes more takes less memory; of the last one's there is nothing to come
// beside what its backward makes again.
TEST(ModelBits, LayersMayRecomputeDifferently) {
  const Runs r;
  Rig rig(r.shape, r.weights);
  RunResult before = rig.train(r.slot, {.window = 32});
  const RunResult none = before;
  for (const RecomputeMode mode : {RecomputeMode::kLight, RecomputeMode::kBlock}) {
    for (int64_t layers = 1; layers <= r.shape.layers; ++layers) {
      const RunResult run = rig.train(r.slot, {.window = 32, .recompute = {mode, layers}});
      ASSERT_TRUE(rig.status().ok()) << rig.status().to_string();
      expect_same(none, run);
      EXPECT_EQ(run.arena_peak, run.arena_planned);
      if (layers < r.shape.layers) {
        EXPECT_LT(run.arena_peak, before.arena_peak) << layers;
      }
      before = run;
    }
  }
}

TEST(ModelBits, WhatLayersRecompute) {
  const RecomputePolicy all(RecomputeMode::kBlock), first(RecomputeMode::kBlock, 2),
      light(RecomputeMode::kLight, 1), none(RecomputeMode::kNone, 1);
  EXPECT_EQ(all.of_layer(511), RecomputeMode::kBlock);
  EXPECT_EQ(first.of_layer(1), RecomputeMode::kBlock);
  EXPECT_EQ(first.of_layer(2), RecomputeMode::kLight);
  EXPECT_EQ(light.of_layer(0), RecomputeMode::kLight);
  EXPECT_EQ(light.of_layer(1), RecomputeMode::kNone);
  EXPECT_EQ(none.of_layer(1), RecomputeMode::kNone);
}

TEST(ModelBits, RunningTwiceAgrees) {
  const Runs r;
  Rig rig(r.shape, r.weights);
  const RunResult first = rig.train(r.slot, {.window = 32});
  rig.eval(random_slot(5, 64, r.shape.vocab), {.window = 4});
  expect_same(first, rig.train(r.slot, {.window = 32}));
}

TEST(ModelBits, ComputeThreadsAgree) {
  const Runs r;
  Rig one(r.shape, r.weights, {.compute_threads = 1}),
      two(r.shape, r.weights, {.compute_threads = 2});
  expect_same(one.train(r.slot, {.window = 32}), two.train(r.slot, {.window = 32}));
  EXPECT_TRUE(same_bits("logits", one.eval(r.slot, {.window = 32}).logits,
                        two.eval(r.slot, {.window = 32}).logits));
}

TEST(ModelBits, RanksInOneProcessShareNothing) {
  const Runs r;
  Rig alone(r.shape, r.weights);
  const RunResult want = alone.train(r.slot, {.window = 32});
  std::vector<RunResult> got(3);
  std::vector<std::thread> ranks;
  for (RunResult& result : got) {
    ranks.emplace_back([&r, &result] {
      Rig rig(r.shape, r.weights);
      for (int i = 0; i < 2; ++i) result = rig.train(r.slot, {.window = 32});
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const RunResult& result : got) expect_same(want, result);
}

// Logits of tokens [begin, end) of two runs.
testing::AssertionResult same_rows(const Runs& r, const RunResult& a, const RunResult& b,
                                   int64_t begin, int64_t end) {
  const auto rows = [&](const RunResult& x) {
    return std::span(x.logits).subspan(static_cast<size_t>(begin * r.shape.vocab),
                                       static_cast<size_t>((end - begin) * r.shape.vocab));
  };
  return same_bits("logits", rows(a), rows(b));
}

TEST(ModelBits, ADocumentDoesNotSeeAnother) {
  Runs r;
  Rig rig(r.shape, r.weights);
  const RunResult before = rig.eval(r.slot, {.window = 64});
  // Every token of the document 41..99, whose borders lie inside chunks.
  for (size_t t = 41; t < 100; ++t) r.slot.tokens[t] = (r.slot.tokens[t] + 7) % 257;
  const RunResult after = rig.eval(r.slot, {.window = 64});
  EXPECT_TRUE(same_rows(r, before, after, 0, 41));
  EXPECT_TRUE(same_rows(r, before, after, 100, 150));
  EXPECT_FALSE(same_rows(r, before, after, 41, 100));
  // Without borders the change is seen behind it: the test can fail.
  Runs open;
  open.slot = random_slot(11, 150, r.shape.vocab);
  const RunResult open_before = rig.eval(open.slot, {.window = 64});
  open.slot.tokens[99] = (open.slot.tokens[99] + 7) % 257;
  EXPECT_FALSE(same_rows(r, open_before, rig.eval(open.slot, {.window = 64}), 100, 101));
}

TEST(ModelBits, ALaterTokenIsNotSeen) {
  Runs r;
  Rig rig(r.shape, r.weights);
  const RunResult before = rig.eval(r.slot, {.window = 64});
  for (const int64_t changed : {149, 77, 16, 1}) {
    SlotData slot = r.slot;
    slot.tokens[static_cast<size_t>(changed)] =
        (slot.tokens[static_cast<size_t>(changed)] + 1) % 257;
    const RunResult after = rig.eval(slot, {.window = 64});
    EXPECT_TRUE(same_rows(r, before, after, 0, changed)) << changed;
    EXPECT_FALSE(same_rows(r, before, after, changed, changed + 1)) << changed;
  }
}

TEST(ModelBits, AttentionSeesItsWindowAndNoMore) {
  Runs r;
  r.shape = tiny_shape({.pattern = "S", .layers = 1});
  r.slot = random_slot(3, 60, r.shape.vocab);
  Rig rig(r.shape, random_weights(r.shape, 3));
  for (const int64_t window : {1, 2, 7, 16, 60}) {
    const RunResult before = rig.eval(r.slot, {.window = window});
    SlotData slot = r.slot;
    const int64_t changed = 10;
    slot.tokens[10] = (slot.tokens[10] + 1) % 61;
    const RunResult after = rig.eval(slot, {.window = window});
    // Key j is visible to t iff t - window < j <= t.
    const int64_t last = std::min<int64_t>(changed + window - 1, 59);
    EXPECT_FALSE(same_rows(r, before, after, last, last + 1)) << window;
    EXPECT_TRUE(same_rows(r, before, after, last + 1, 60)) << window;
    EXPECT_TRUE(same_rows(r, before, after, 0, changed)) << window;
  }
}

}  // namespace
}  // namespace swax::test
