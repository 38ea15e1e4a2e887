// Goal: the float64 reference that all kernel tests lean on is right, and its checks are able to
// fail. Method: (1) stored cases of an independent implementation, (2) three forms of the mLSTM
// against each other, (3) gradients against central differences, (4) every canary (a planted bug,
// tests/reference/types.h) must fail checks that the right form passes. The checks stand in
// reference_test_{ops,mlstm,model}.cc.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/reference_test_checks.h"
#include "tests/reference/attention.h"
#include "tests/reference/mlstm.h"
#include "tests/support/tensor_check.h"

namespace swax::reference {

std::string case_dir() { return std::string(SWAX_SOURCE_DIR) + "/tests/data/reference"; }

CaseFile load_case(const std::string& name) {
  Result<CaseFile> file = CaseFile::load(case_dir(), name);
  if (!file.ok()) ADD_FAILURE() << file.status().to_string();
  return std::move(file).value();
}

namespace {

std::vector<Check> joined(const std::vector<std::vector<Check>>& lists) {
  std::vector<Check> all;
  for (const std::vector<Check>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}
std::vector<Check> case_checks() {
  return joined({op_case_checks(), mlstm_case_checks(), model_case_checks()});
}
std::vector<Check> gradient_checks() {
  return joined({op_gradient_checks(), mlstm_gradient_checks(), model_gradient_checks()});
}

void expect_right(const std::vector<Check>& checks) {
  EXPECT_FALSE(checks.empty());
  for (const Check& check : checks)
    EXPECT_TRUE(check.run(Canary::kNone)) << "check: " << check.name;
}

TEST(ReferenceCases, AgreeWithStoredValuesAndGradients) { expect_right(case_checks()); }

TEST(ReferenceCases, EveryStoredCaseHasACheck) {
  Result<std::vector<std::string>> names = CaseFile::names(case_dir());
  ASSERT_TRUE(names.ok()) << names.status().to_string();
  const std::vector<Check> checks = case_checks();
  for (const std::string& name : *names) {
    if (name == "swax_tiny_inputs") continue;  // inputs of swax_tiny_w8
    EXPECT_TRUE(std::any_of(checks.begin(), checks.end(), [&](const Check& c) {
      return c.name == name;
    })) << name;
  }
}

TEST(ReferenceMlstm, ThreeFormsAndAllChunksAgree) { expect_right(mlstm_form_checks()); }

TEST(ReferenceGradients, OperationsMatchCentralDifferences) { expect_right(op_gradient_checks()); }
TEST(ReferenceGradients, CellMatchesCentralDifferences) { expect_right(mlstm_gradient_checks()); }
TEST(ReferenceGradients, WholeModelMatchesCentralDifferences) {
  expect_right(model_gradient_checks());
}

// A canary and the checks of each kind that must notice it. Central differences of the whole model
// are left out for the normaliser: the head norm behind the cell makes its term as small as their
// bound (model-spec 2.4), the stored case still sees it.
struct Planted {
  Canary canary;
  const char* name;
  std::vector<std::string> checks;
};

TEST(ReferenceCanaries, EveryPlantedBugIsNoticed) {
  const std::vector<Planted> table{
      {Canary::kNoNormaliser, "no normaliser term", {"mlstm", "cell, no border", "swax_docs"}},
      {Canary::kNoCarry,
       "no <C, dC> carry",
       {"mlstm", "mlstm_docs", "chunks, no border", "cell, no border", "swax_docs"}},
      {Canary::kNoResetMask,
       "no reset mask",
       {"mlstm_docs", "swa_docs", "swax_docs", "attention", "forms, inside a chunk",
        "forms, at chunk edges", "forms, consecutive", "chunks, at chunk edges",
        "cell, consecutive"}},
      {Canary::kNoCapDerivative,
       "no soft-cap derivative",
       {"cross_entropy_cap30_z", "gate", "loss", "swax_docs", "model SM"}},
      {Canary::kNoNormMean,
       "no mean term in the RMSNorm backward",
       {"rmsnorm", "rms_norm", "swax_tiny_w8", "model SM"}},
      {Canary::kWindowOffByOne,
       "window + 1",
       {"swa_w8", "swa_w1", "swa_docs", "attention", "swax_tiny_w8", "swax_docs"}},
      {Canary::kLastTileDropped,
       "last tile dropped",
       {"swiglu", "linear_cross_entropy", "linear", "mlp", "swax_tiny_w8"}}};
  const std::vector<Check> all = joined({case_checks(), mlstm_form_checks(), gradient_checks()});
  for (const Planted& planted : table) {
    for (const std::string& name : planted.checks) {
      const auto check =
          std::find_if(all.begin(), all.end(), [&](const Check& c) { return c.name == name; });
      ASSERT_NE(check, all.end()) << name;
      EXPECT_FALSE(check->run(planted.canary)) << planted.name << " passes the check " << name;
    }
  }
}

// The borders seen from outside: documents apart give the packed result, and a border at token 0
// cuts off a state.
TEST(ReferenceMlstm, BorderAtTokenZeroDropsTheState) {
  const MlstmSizes s{.tokens = 9, .heads = 2, .qk_dim = 3, .v_dim = 4};
  const auto draw = [](const char* stream, int64_t count) {
    return test::widen(test::random_normal(3, stream, count));
  };
  const Vec q = draw("q", 54), k = draw("k", 54), v = draw("v", 72), i = draw("i", 18),
            f = draw("f", 18);
  const MlstmState state{.c_HKV = draw("C", 24), .n_HK = draw("n", 6), .m_H = draw("m", 2)};
  const std::vector<int32_t> reset_T = test::doc_starts(9, {0, 4});
  MlstmInput in{.q_THK = q, .k_THK = k, .v_THV = v, .i_TH = i, .f_TH = f, .reset_T = reset_T};
  const MlstmOut without = mlstm_chunkwise(s, in, 4);
  in.initial = &state;
  const MlstmOut with = mlstm_chunkwise(s, in, 4);
  EXPECT_EQ(without.h_THV, with.h_THV);
  const MlstmGrad g = mlstm_backward(s, in, 4, draw("dh", 72));
  EXPECT_EQ(g.d_initial.dc_HKV, zeros(24));
  EXPECT_EQ(g.d_initial.dn_HK, zeros(6));
  EXPECT_EQ(at(g.df_TH, 4 * 2), 0.0);
  EXPECT_EQ(at(g.df_TH, 4 * 2 + 1), 0.0);
}

// A sequence cut in two: the state goes forward, its gradient comes back.
TEST(ReferenceMlstm, CutSequenceEqualsWhole) {
  const MlstmSizes whole{.tokens = 20, .heads = 2, .qk_dim = 3, .v_dim = 4};
  const auto draw = [](const char* stream, int64_t count) {
    return test::widen(test::random_normal(4, stream, count));
  };
  const Vec q = draw("q", 120), k = draw("k", 120), v = draw("v", 160), i = draw("i", 40),
            f = draw("f", 40);
  const Vec dh = draw("dh", 160);
  const MlstmInput in{.q_THK = q, .k_THK = k, .v_THV = v, .i_TH = i, .f_TH = f};
  const MlstmOut out = mlstm_recurrent(whole, in);
  const MlstmGrad grad = mlstm_backward(whole, in, 8, dh);
  const int64_t cut = 11;
  const auto part = [&](View x, int64_t first, int64_t tokens) {
    const size_t stride = x.size() / 20;
    return x.subspan(static_cast<size_t>(first) * stride, static_cast<size_t>(tokens) * stride);
  };
  MlstmSizes s1 = whole, s2 = whole;
  s1.tokens = cut;
  s2.tokens = 20 - cut;
  const MlstmInput in1{.q_THK = part(q, 0, cut),
                       .k_THK = part(k, 0, cut),
                       .v_THV = part(v, 0, cut),
                       .i_TH = part(i, 0, cut),
                       .f_TH = part(f, 0, cut)};
  const MlstmOut out1 = mlstm_chunkwise(s1, in1, 8);
  const MlstmInput in2{.q_THK = part(q, cut, 9),
                       .k_THK = part(k, cut, 9),
                       .v_THV = part(v, cut, 9),
                       .i_TH = part(i, cut, 9),
                       .f_TH = part(f, cut, 9),
                       .reset_T = {},
                       .initial = &out1.last};
  EXPECT_TRUE(
      test::tensor_near("h", mlstm_parallel(s2, in2).h_THV, part(out.h_THV, cut, 9), kEqualBound));
  const MlstmGrad g2 = mlstm_backward(s2, in2, 4, part(dh, cut, 9));
  const MlstmGrad g1 = mlstm_backward(s1, in1, 5, part(dh, 0, cut), &g2.d_initial);
  EXPECT_TRUE(
      test::tensor_near("df, second part", g2.df_TH, part(grad.df_TH, cut, 9), kEqualBound));
  EXPECT_TRUE(test::tensor_near("df, first part", g1.df_TH, part(grad.df_TH, 0, cut), kEqualBound));
  EXPECT_TRUE(
      test::tensor_near("dk, first part", g1.dk_THK, part(grad.dk_THK, 0, cut), kEqualBound));
  EXPECT_TRUE(test::tensor_near("di, first part", g1.di_TH, part(grad.di_TH, 0, cut), kEqualBound));
}

TEST(ReferenceMlstm, PackedStateReadsBack) {
  const MlstmSizes s{.tokens = 1, .heads = 2, .qk_dim = 2, .v_dim = 1};
  const MlstmState state{.c_HKV = {1, 2, 3, 4}, .n_HK = {5, 6, 7, 8}, .m_H = {9, 10}};
  const Vec packed = pack_state(s, state);
  EXPECT_EQ(packed, (Vec{1, 5, 2, 6, 3, 7, 4, 8}));
  const MlstmState back = unpack_state(s, packed, state.m_H);
  EXPECT_EQ(back.c_HKV, state.c_HKV);
  EXPECT_EQ(back.n_HK, state.n_HK);
  EXPECT_EQ(back.m_H, state.m_H);
}

TEST(ReferenceAttention, GroupedHeadsEqualRepeatedKeys) {
  const AttentionSizes grouped{.tokens = 7, .q_heads = 4, .kv_heads = 2, .dim = 3, .window = 4};
  AttentionSizes full = grouped;
  full.kv_heads = 4;
  const Vec q = test::widen(test::random_normal(6, "q", 84));
  const Vec k = test::widen(test::random_normal(6, "k", 42)),
            v = test::widen(test::random_normal(6, "v", 42));
  const auto repeat = [](const Vec& x) {
    Vec y;
    for (int64_t row = 0; row < 7 * 4; ++row) {  // (t, q head) -> (t, q head / 2)
      for (int64_t d = 0; d < 3; ++d) y.push_back(at(x, (row / 4 * 2 + row % 4 / 2) * 3 + d));
    }
    return y;
  };
  EXPECT_EQ(attention(grouped, q, k, v, {}).o_THK,
            attention(full, q, repeat(k), repeat(v), {}).o_THK);
}

TEST(ReferenceTypes, FirstTokensOfDocuments) {
  EXPECT_EQ(first_tokens(test::doc_starts(6, {2, 3})), (std::vector<int32_t>{0, 0, 2, 3, 3, 3}));
  EXPECT_TRUE(first_tokens({}).empty());
}

}  // namespace
}  // namespace swax::reference
