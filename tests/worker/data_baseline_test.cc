// Goal: the baseline is Witten-Bell as its header says, on the targets that validation scores.
// Method: probabilities of a tiny text by hand; sums over all symbols; a data set small enough to
// score by hand.
#include "worker/data/baseline.h"

#include <gmock/gmock.h>

#include <cmath>

#include "proto/base/hash.h"
#include "proto/base/rng.h"
#include "tests/worker/data_fixture.h"
#include "worker/data/build.h"
#include "worker/data/ngram_model.h"

namespace swax {
namespace {

NgramContext count_text(NgramModel& model, std::string_view text) {
  NgramContext context;
  for (const char c : text) {
    EXPECT_TRUE(model.count(static_cast<unsigned char>(c), &context).ok());
  }
  return context;
}

// Sums and products of at most 20 doubles of size <= 1: rounding below 20 * 2^-53.
constexpr double kRounding = 20.0 / 9007199254740992.0;

TEST(NgramModel, IsTheEquationByHand) {
  NgramModel model(3);
  count_text(model, "abab");  // a2 b2; ab2 ba1; aba1 bab1
  NgramContext context;
  std::vector<double> p(3);
  // Empty context: c = 4, T = 2.
  const double a1 = (2.0 + 2.0 / 257.0) / 6.0;
  const double c1 = (0.0 + 2.0 / 257.0) / 6.0;
  model.probabilities('a', context, p);
  EXPECT_THAT(p, testing::Each(testing::DoubleNear(a1, kRounding)));
  model.advance('a', &context);
  // After a: c(a.) = 2, T = 1 (b).
  model.probabilities('b', context, p);
  EXPECT_NEAR(p[0], a1, kRounding);
  EXPECT_NEAR(p[1], (2.0 + a1) / 3.0, kRounding);
  EXPECT_EQ(p[2], p[1]);  // the document has no more context
  model.advance('b', &context);
  // After ab: b was followed once, by a; ab once, by a.
  model.probabilities('a', context, p);
  const double a2 = (1.0 + a1) / 2.0;
  EXPECT_NEAR(p[1], a2, kRounding);
  EXPECT_NEAR(p[2], (1.0 + a2) / 2.0, kRounding);
  model.probabilities('c', context, p);
  EXPECT_NEAR(p[2], c1 / 2.0 / 2.0, kRounding);
  // A context that was never seen falls back to the next shorter one.
  model.advance('c', &context);
  model.probabilities('a', context, p);
  EXPECT_NEAR(p[2], a1, kRounding);
  model.advance('a', &context);
  model.probabilities('b', context, p);
  EXPECT_NEAR(p[2], (2.0 + a1) / 3.0, kRounding);
}

TEST(NgramModel, SumsToOneInEveryContext) {
  NgramModel model(kNgramOrderMax);
  const std::string text = test::random_document(6, 0, 3000);
  for (size_t i = 0; i < text.size(); i += 300) {
    std::string part = text.substr(i, 300);
    for (char& c : part) c = static_cast<char>('a' + (c - 'a') % 3);
    NgramContext context = count_text(model, part);
    ASSERT_TRUE(model.count(kEodToken, &context).ok());
  }
  NgramContext context;
  for (uint64_t i = 0; i < 100; ++i) {
    std::vector<double> sum(kNgramOrderMax);
    std::vector<double> p(kNgramOrderMax);
    for (uint32_t symbol = 0; symbol < kByteVocab; ++symbol) {
      model.probabilities(symbol, context, p);
      for (size_t k = 0; k < p.size(); ++k) sum[k] += p[k];
    }
    // 257 additions of terms that sum to 1, each term with a few roundings.
    for (const double s : sum) EXPECT_NEAR(s, 1.0, 300.0 / 9007199254740992.0) << "context " << i;
    const uint32_t draw = random_block(7, Purpose::kTest, i)[0];
    model.advance(draw % 16 == 0 ? draw >> 24 : 'a' + draw % 3, &context);
  }
}

TEST(NgramModel, OrdersDoNotDependOnTheLargest) {
  NgramModel small(2);
  NgramModel large(6);
  const std::string text = test::random_document(8, 0, 100'000);
  NgramContext a = count_text(small, text);
  NgramContext b = count_text(large, text);
  std::vector<double> p(2);
  std::vector<double> q(6);
  for (uint32_t symbol = 0; symbol < kByteVocab; ++symbol) {
    small.probabilities(symbol, a, p);
    large.probabilities(symbol, b, q);
    EXPECT_EQ(p[1], q[1]);
  }
}

// Finds a document that is held out, by trying.
std::string held_document(std::string_view start) {
  for (uint64_t i = 0;; ++i) {
    std::string text = std::string(start) + test::random_document(9, i, 3);
    if (xxh3_128(text).low >> 63 == 0) return text;
  }
}

TEST(Baseline, ScoresTheTargetsOfValidation) {
  const test::TempFolder folder;
  const std::string x = held_document("ab");
  const std::string y = held_document("b");
  std::string train = "abab";
  const test::BuiltDataset built = test::build_documents(folder, "x", {train, x, y}, 0.5);
  NgramModel model(2);
  NgramContext context = count_text(model, train);
  ASSERT_TRUE(model.count(kEodToken, &context).ok());
  // Split: x EOD y EOD, 5 + 1 + 4 + 1 = 11 tokens; T = 3 has three windows, targets 1..9.
  std::vector<uint32_t> tokens(x.begin(), x.end());
  tokens.push_back(kEodToken);
  tokens.insert(tokens.end(), y.begin(), y.end());
  tokens.push_back(kEodToken);
  ASSERT_EQ(tokens.size(), 11U);
  for (const bool doc_reset : {false, true}) {
    double bits = 0.0;
    int64_t targets = 0;
    NgramContext at;
    std::vector<double> p(2);
    for (size_t i = 0; i <= 9; ++i) {
      const bool starts = i == 0 || tokens[i - 1] == kEodToken;
      if (starts) at = {};
      if (i > 0 && !(starts && doc_reset)) {
        model.probabilities(tokens[i], at, p);
        bits -= std::log2(p[1]);
        ++targets;
      }
      model.advance(tokens[i], &at);
    }
    const auto results = ngram_baseline(built.folder, {2}, 3, doc_reset);
    ASSERT_TRUE(results.ok()) << results.status().to_string();
    EXPECT_EQ((*results)[0].targets, targets);
    EXPECT_EQ((*results)[0].targets, doc_reset ? 8 : 9);
    EXPECT_EQ((*results)[0].text_bytes, targets - 1);
    // Nine logarithms of 2 ulp and their sum.
    const double expected = bits / static_cast<double>(targets - 1);
    EXPECT_NEAR((*results)[0].bits_per_byte, expected, expected * 30.0 / 9007199254740992.0);
  }
  EXPECT_EQ(ngram_baseline(built.folder, {2}, 11, true).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(ngram_baseline(built.folder, {9}, 3, true).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ngram_baseline(built.folder, {}, 3, true).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ngram_baseline(built.folder, {1}, 0, true).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace swax
