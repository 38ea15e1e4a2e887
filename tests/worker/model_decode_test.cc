// Decoding one token at a time gives the logits of the whole sequence, at a constant number of
// bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
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

struct Sequence {
  Sequence(const TinyModel& model, int64_t tokens, int64_t attention_window)
      : shape(tiny_shape(model)),
        weights(random_weights(shape, 21)),
        slot(random_slot(21, tokens, shape.vocab)),
        window(attention_window),
        rig(shape, weights),
        exact(reference_run(shape, reference_weights(shape, weights), slot, window).out.logits_TV),
        prefill(rig.eval(slot, {.window = window}).logits) {}
  // Error of the first `tokens` rows against float64.
  double error(std::span<const float> logits, int64_t tokens) const {
    const auto count = static_cast<size_t>(tokens * shape.vocab);
    return rel_error(std::span<const double>(widen(logits.first(count))),
                     std::span<const double>(exact).first(count));
  }
  ModelShape shape;
  std::vector<float> weights;
  SlotData slot;
  int64_t window;
  Rig rig;
  std::vector<double> exact;
  std::vector<float> prefill;
};

class DecodeWindows : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Windows, DecodeWindows, testing::Values(1, 2, 7, 16, 33));

TEST_P(DecodeWindows, EqualsPrefillOverThreeWindows) {
  const int64_t w = GetParam();
  Sequence s(kFour, std::max<int64_t>(3 * w, 40), w);
  const std::vector<float> logits = s.rig.decode(s.slot.tokens, w);
  // Around the first eviction, and up to the end.
  for (const int64_t tokens : {int64_t{1}, w - 1, w, w + 1, 2 * w, 3 * w, s.slot.size()}) {
    if (tokens < 1 || tokens > s.slot.size()) continue;
    EXPECT_LE(s.error(logits, tokens), tuned_bound(s.error(s.prefill, tokens)))
        << "window " << w << " tokens " << tokens;
  }
}

TEST(Decode, AWindowOffByOneIsSeen) {
  Sequence s(kFour, 40, 8);
  const double bound = tuned_bound(s.error(s.prefill, 9));
  EXPECT_GT(s.error(s.rig.decode(s.slot.tokens, 7), 9), bound);
  // A larger ring shows first when it keeps what the window has dropped: token 8 sees position 0.
  EXPECT_LE(s.error(s.rig.decode(s.slot.tokens, 9), 8), tuned_bound(s.error(s.prefill, 8)));
  EXPECT_GT(s.error(s.rig.decode(s.slot.tokens, 9), 9), bound);
}

TEST(Decode, SameTokensGiveSameBits) {
  Sequence s(kFour, 40, 8);
  EXPECT_TRUE(same_bits("logits", s.rig.decode(s.slot.tokens, 8), s.rig.decode(s.slot.tokens, 8)));
}

TEST(Decode, BytesAreConstantOver10000Tokens) {
  const ModelShape shape = tiny_shape({.dim = 16,
                                       .vocab = 32,
                                       .heads = 1,
                                       .kv_heads = 1,
                                       .head_dim = 8,
                                       .mlstm_heads = 1,
                                       .qk = 4,
                                       .v = 8,
                                       .ff = 16});
  Rig rig(shape, random_weights(shape, 1));
  const std::vector<int32_t> tokens = random_ints(1, "tokens", 10'000, 32);
  const std::vector<float> logits = rig.decode(tokens, 16);  // compares the bytes and the arena
  EXPECT_TRUE(all_finite("logits", logits));
}

TEST(Decode, StateGrowsWithTheWindowAlone) {
  const ModelShape shape = tiny_shape(kFour);
  Rig rig(shape, random_weights(shape, 1));
  const auto bytes = [&](int64_t window) {
    return (*rig.model().make_decode_state(rig.backend(), window))->bytes();
  };
  // Two attention layers, keys and values, 2 heads of 12 floats a token.
  EXPECT_EQ(bytes(512) - bytes(256), 256 * 2 * 2 * (2 * 12 * 4));
  EXPECT_EQ(rig.model().make_decode_state(rig.backend(), 0).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace swax::test
