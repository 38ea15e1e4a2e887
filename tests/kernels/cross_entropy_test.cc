// Goal: loss and gradient of the soft-capped cross-entropy equal the float64 reference inside the
// bound of kernels/spec/cross_entropy.h, for odd vocabularies, ignored targets and far logits.
#include <algorithm>
#include <cmath>

#include "tests/kernels/op_check.h"
#include "tests/reference/loss.h"

namespace swax::test {
namespace {

struct Case {
  int64_t tokens, vocab;
  float cap = 0.0F;
  double shift = 0.0;
  double spread = 1.0;
};

struct Inputs {
  std::vector<float> logits;
  std::vector<int32_t> targets;
  float inv_targets;
};

Inputs inputs(const Case& c) {
  Inputs in;
  in.logits = random_normal(10, "u", c.tokens * c.vocab, {.mean = c.shift, .std = c.spread});
  in.targets = random_ints(10, "targets", c.tokens, static_cast<int32_t>(c.vocab));
  for (size_t t = 3; t < in.targets.size(); t += 5) in.targets[t] = -1;
  in.inv_targets = 1.0F / static_cast<float>(reference::count_targets(in.targets));
  return in;
}

struct Expected {
  double loss;
  Want du;
};

Expected expected(const Case& c, const Inputs& in,
                  reference::Canary canary = reference::Canary::kNone) {
  reference::LossOptions options;
  options.cap = static_cast<double>(c.cap);
  options.canary = canary;
  const reference::Vec u = widen(in.logits);
  const auto out = reference::cross_entropy(u, in.targets, options);
  // The exponent z - max has the absolute error of its operands.
  double largest = 0.0;
  for (const double x : u) largest = std::max(largest, std::abs(x));
  if (c.cap > 0.0F) largest = std::min(largest, static_cast<double>(c.cap));
  const double exponent = c.cap > 0.0F ? 2.0 * largest * std::ldexp(1.0, -24) : 0.0;
  const double bound = rounding_bound(c.vocab, 4) + exponent;
  return {out.loss * static_cast<double>(out.count), {"du", out.dlogits_TV, bound}};
}

struct Result64 {
  Outputs outputs;
  double loss = 0.0;
  std::vector<double> token_loss;
};

Result64 run(const Case& c, const Inputs& in, Rig& rig, bool gradient) {
  GuardedBuffer<float> logits("logits", std::span<const float>(in.logits));
  GuardedBuffer<double> sum("loss_sum", 1), each("token_loss", c.tokens);
  sum.data()[0] = 100.0;
  StepScalars scalars;
  scalars.inv_targets = in.inv_targets;
  CrossEntropyArgs a;
  a.logits_TV = f32(logits, {c.tokens, c.vocab});
  a.targets_T = i32(in.targets, {c.tokens});
  a.loss_sum = f64(sum, {1});
  a.token_loss_T = f64(each, {c.tokens});
  a.scalars = gradient ? &scalars : nullptr;
  a.cap = c.cap;
  a.write_gradient = gradient;
  const Status status = rig.backend->cross_entropy(*rig.stream, a);
  EXPECT_TRUE(status.ok()) << status.to_string();
  if (!gradient) {
    EXPECT_TRUE(same_bits("logits kept", logits.values(), in.logits));
  }
  return {{{"du", logits.values()}}, sum.data()[0], each.values()};
}

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << "T " << c.tokens << " V " << c.vocab << " cap " << c.cap
                                  << " shift " << c.shift << " spread " << c.spread);
  const Inputs in = inputs(c);
  const Expected want = expected(c, in);
  check_op([&](Rig& rig) { return run(c, in, rig, true).outputs; }, {want.du});
  Rig rig = open_rig(2);
  const Result64 with = run(c, in, rig, true);
  const Result64 without = run(c, in, rig, false);
  EXPECT_EQ(with.loss, without.loss);
  EXPECT_NEAR(with.loss - 100.0, want.loss, want.du.bound * (std::abs(want.loss) + 1.0));
  double sum = 100.0;
  double magnitudes = 100.0;
  for (size_t t = 0; t < in.targets.size(); ++t) {
    if (in.targets[t] < 0) {
      EXPECT_EQ(with.token_loss[t], 0.0);
    }
    sum += with.token_loss[t];
    magnitudes += std::abs(with.token_loss[t]);
  }
  if (rig.backend->kind() == BackendKind::kCpu) {
    EXPECT_EQ(sum, with.loss);  // tokens in rising order
  } else {
    // Any order: at most T roundings, here and there.
    const double roundings = 2.0 * static_cast<double>(c.tokens) * std::ldexp(1.0, -53);
    EXPECT_NEAR(sum, with.loss, roundings * magnitudes);
  }
}

TEST(CrossEntropy, EqualsReferenceForOddVocabularies) {
  for (const int64_t vocab : {1, 2, 7, 8, 9, 31, 257, 1000}) {
    check({.tokens = 21, .vocab = vocab});
    check({.tokens = 21, .vocab = vocab, .cap = 30.0F});
  }
}

TEST(CrossEntropy, HoldsForShiftedAndWideLogits) {
  for (const double shift : {-120.0, 120.0}) {
    check({.tokens = 20, .vocab = 65, .shift = shift});
    check({.tokens = 20, .vocab = 65, .cap = 30.0F, .shift = shift});
  }
  check({.tokens = 20, .vocab = 300, .spread = 50.0});
  check({.tokens = 20, .vocab = 300, .cap = 30.0F, .spread = 20.0});
}

TEST(CrossEntropy, GoesOnBeyondOneBatchOfLosses) { check({.tokens = 1100, .vocab = 11}); }

TEST(CrossEntropy, ChecksNoticeADroppedCapDerivative) {
  const Case c{.tokens = 20, .vocab = 65, .cap = 30.0F, .spread = 10.0};
  const Inputs in = inputs(c);
  Rig rig = open_rig();
  const Result64 got = run(c, in, rig, true);
  EXPECT_GT(worst_ratio(got.outputs, {expected(c, in, reference::Canary::kNoCapDerivative).du}),
            100.0);
}

TEST(CrossEntropy, NonFiniteLogitsShowInTheLoss) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    const Case c{.tokens = 4, .vocab = 9};
    Inputs in = inputs(c);
    in.targets[1] = 2;
    in.logits[11] = bad;  // the target's own logit
    Rig rig = open_rig();
    EXPECT_FALSE(std::isfinite(run(c, in, rig, true).loss)) << bad;
  }
}

TEST(CrossEntropy, RefusesTargetsBeyondTheVocabularyAndMissingScalars) {
  Rig rig = open_rig();
  std::vector<float> logits(8);
  std::vector<int32_t> targets = {0, 4};
  GuardedBuffer<double> sum("sum", 1);
  CrossEntropyArgs a;
  a.logits_TV = f32(logits, {2, 4});
  a.targets_T = i32(targets, {2});
  a.loss_sum = f64(sum, {1});
  EXPECT_EQ(rig.backend->cross_entropy(*rig.stream, a).code(), Code::kInvalidArgument);
  targets[1] = 3;
  a.write_gradient = true;
  EXPECT_EQ(rig.backend->cross_entropy(*rig.stream, a).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace swax::test
