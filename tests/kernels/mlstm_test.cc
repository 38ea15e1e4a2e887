// Goal: the chunkwise mLSTM, forward and backward, equals the float64 recurrence inside the bound
// of kernels/spec/mlstm.h: chunks that do and do not divide T, borders everywhere, gates at their
// caps.
#include <cmath>
#include <limits>

#include "tests/kernels/mlstm_case.h"
#include "tests/kernels/op_check.h"
#include "tests/reference/mlstm.h"

namespace swax::test {
namespace {

using reference::Vec;

// Where the condition leaves less than two digits, any value is right: only finiteness is asked.
std::vector<Want> meaningful(const std::vector<Want>& wants) {
  std::vector<Want> out = wants;
  for (Want& w : out) {
    if (w.bound > 1e-2) w.bound = std::numeric_limits<double>::max();
  }
  return out;
}

void check(const MlstmCase& c) {
  SCOPED_TRACE(testing::Message() << "T " << c.tokens << " N " << c.heads << " K " << c.qk << " U "
                                  << c.v << " chunk " << c.chunk);
  const MlstmInputs in = mlstm_inputs(c);
  const MlstmWants want = mlstm_wants(c, in);
  check_op([&](Rig& rig) { return run_mlstm(c, in, rig).forward; }, meaningful(want.forward));
  check_op([&](Rig& rig) { return run_mlstm(c, in, rig).backward; }, meaningful(want.backward));
}

const MlstmCase kBase{.tokens = 70, .heads = 2, .qk = 16, .v = 24, .chunk = 16};

TEST(Mlstm, EqualsReferenceForEveryChunk) {
  for (const int64_t chunk : {1, 7, 8, 16, 32, 35, 64, 69, 70, 100}) {
    MlstmCase c = kBase;
    c.chunk = chunk;
    check(c);
  }
}

TEST(Mlstm, EqualsReferenceForOddSizes) {
  check({.tokens = 1, .heads = 1, .qk = 8, .v = 8, .chunk = 32});
  check({.tokens = 33, .heads = 3, .qk = 5, .v = 3, .chunk = 8});
  check({.tokens = 65, .heads = 1, .qk = 32, .v = 64, .chunk = 32});
  check({.tokens = 64, .heads = 1, .qk = 16, .v = 130, .chunk = 32});  // two blocks of columns
}

TEST(Mlstm, ForgetsAtBorders) {
  const std::vector<std::vector<int32_t>> borders = {
      doc_starts(70, {0}),
      doc_starts(70, {15, 16, 17}),               // around a chunk edge
      doc_starts(70, {0, 16, 32, 48, 64}),        // every chunk edge
      doc_starts(70, {5, 6, 7, 20, 40, 41, 69}),  // several in a chunk, the last token
      std::vector<int32_t>(70, 1),
  };
  for (const auto& reset : borders) {
    MlstmCase c = kBase;
    c.reset = reset;
    check(c);
    c.chunk = 32;
    check(c);
  }
}

TEST(Mlstm, HoldsAtTheGateCaps) {
  for (const float i_gate : {-15.0F, 15.0F}) {
    for (const float f_gate : {-15.0F, 0.0F, 15.0F}) {
      SCOPED_TRACE(testing::Message() << "gates " << i_gate << " " << f_gate);
      MlstmCase c = kBase;
      c.i_mean = i_gate;
      c.f_mean = f_gate;
      c.gate_spread = 0.0;
      c.conditioned = true;
      check(c);
    }
  }
  MlstmCase c = kBase;  // both extremes side by side
  c.alternate_gates = true;
  c.conditioned = true;
  check(c);
  c.reset = doc_starts(70, {11, 32});
  check(c);
}

TEST(Mlstm, HoldsAtInitialValuesOfTheModel) {
  MlstmCase c = kBase;
  c.i_mean = -10.0F;
  c.f_mean = 4.5F;
  check(c);
}

TEST(Mlstm, ChecksNoticePlantedBugs) {
  MlstmCase c = kBase;
  c.reset = doc_starts(70, {20});
  const MlstmInputs in = mlstm_inputs(c);
  Rig rig = open_rig();
  const MlstmResults got = run_mlstm(c, in, rig);
  EXPECT_GT(worst_ratio(got.forward, mlstm_wants(c, in, reference::Canary::kNoResetMask).forward),
            10.0);
  for (const auto canary : {reference::Canary::kNoNormaliser, reference::Canary::kNoCarry,
                            reference::Canary::kNoResetMask}) {
    EXPECT_GT(worst_ratio(got.backward, mlstm_wants(c, in, canary).backward), 10.0);
  }
}

TEST(Mlstm, PassesNaNOn) {
  Rig rig = open_rig();
  for (int which = 0; which < 5; ++which) {
    MlstmInputs in = mlstm_inputs(kBase);
    std::vector<float>* x[] = {&in.q, &in.k, &in.v, &in.i, &in.f};
    (*x[which])[x[which]->size() / 2] = std::nanf("");
    const MlstmResults got = run_mlstm(kBase, in, rig);
    EXPECT_FALSE(all_finite("h", got.forward[0].values)) << which;
    EXPECT_FALSE(all_finite("dq", got.backward[0].values)) << which;
  }
}

TEST(Mlstm, StateGoesOnWhereAPrefixStopped) {
  // First 32 tokens, then the rest from the saved state: equal bits, because chunks agree.
  const MlstmInputs in = mlstm_inputs(kBase);
  Rig rig = open_rig();
  const MlstmResults whole = run_mlstm(kBase, in, rig);
  MlstmCase head = kBase;
  head.tokens = 32;
  const MlstmResults first = run_mlstm(head, mlstm_slice(kBase, in, 0, 32), rig);
  MlstmCase tail = kBase;
  tail.tokens = 38;
  const MlstmResults second =
      run_mlstm(tail, mlstm_slice(kBase, in, 32, 38), rig, &first.final_state);
  std::vector<float> joined = first.forward[0].values;
  joined.insert(joined.end(), second.forward[0].values.begin(), second.forward[0].values.end());
  EXPECT_TRUE(same_bits("h", joined, whole.forward[0].values));
}

TEST(MlstmStep, ChainEqualsTheReference) {
  MlstmCase c = kBase;
  c.reset = {};
  const MlstmInputs in = mlstm_inputs(c);
  const MlstmWants want = mlstm_wants(c, in);
  Rig rig = open_rig(2);
  const int64_t state_size = c.heads * c.qk * (c.v + 1);
  GuardedBuffer<float> state("state", state_size), m("m", c.heads), h("h", c.heads * c.v);
  std::fill_n(state.data(), state_size, 0.0F);
  std::fill_n(m.data(), c.heads, kMlstmNoPast);
  std::vector<float> rows;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const MlstmInputs now = mlstm_slice(c, in, t, 1);
    MlstmStepArgs a;
    a.q_NK = f32(now.q, {c.heads, c.qk});
    a.k_NK = f32(now.k, {c.heads, c.qk});
    a.v_NU = f32(now.v, {c.heads, c.v});
    a.i_N = f32(now.i, {c.heads});
    a.f_N = f32(now.f, {c.heads});
    a.h_NU = f32(h, {c.heads, c.v});
    a.state_NKU1 = f32(state, {c.heads, c.qk, c.v + 1});
    a.m_N = f32(m, {c.heads});
    ASSERT_TRUE(rig.backend->mlstm_step(*rig.stream, a).ok());
    const std::vector<float> row = h.values();
    rows.insert(rows.end(), row.begin(), row.end());
  }
  // The recurrence rounds the state once per token, the chunkwise form once per chunk, so the
  // longest sum here is T + K.
  const Want& want_h = want.forward[0];
  EXPECT_TRUE(tensor_near("h", rows, want_h.values, rounding_bound(c.tokens + c.qk, 8)));
  // The 2x rule: the tuned (chunkwise) form against the simple one.
  const double simple = rel_error(std::span<const float>(rows), want_h.values);
  const std::vector<float> chunkwise = run_mlstm(c, in, rig).forward[0].values;
  EXPECT_TRUE(tensor_near("chunkwise h", chunkwise, want_h.values, tuned_bound(simple)));
}

}  // namespace
}  // namespace swax::test
