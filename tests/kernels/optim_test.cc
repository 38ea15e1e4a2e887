// Goal: row sums and the norm tree have the stated order to the bit, whatever the shards are; AdamW
// equals the float64 reference and leaves padding, skipped and non-finite steps alone.
#include <cmath>

#include "tests/kernels/op_check.h"
#include "tests/reference/adamw.h"

namespace swax::test {
namespace {

// The order of kernels/spec/optim.h, spelled out.
double row_sum(const float* x, int64_t n) {
  double p[8] = {};
  for (int64_t i = 0; i < n; ++i) p[i % 8] += double(x[i]) * double(x[i]);
  return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
}

TEST(RowSumsq, HasTheStatedOrder) {
  const std::vector<float> x = random_normal(11, "x", 5000);
  // Two tensors with padding between them; the second one has rows of one element.
  const std::vector<RowSegment> segments = {
      {.begin = 3, .rows = 37, .row_elements = 101, .first_row = 2},
      {.begin = 4000, .rows = 900, .row_elements = 1, .first_row = 50}};
  std::vector<double> first;
  for (const int threads : {1, 2, 3}) {
    Rig rig = open_rig(threads);
    GuardedBuffer<double> sums("sums", 960);
    EXPECT_TRUE(
        rig.backend->row_sumsq(*rig.stream, {f32(x, {5000}), segments, f64(sums, {960})}).ok());
    for (int64_t r = 0; r < 37; ++r) {
      ASSERT_EQ(sums.data()[2 + r], row_sum(x.data() + 3 + r * 101, 101));
    }
    for (int64_t r = 0; r < 900; ++r) {
      ASSERT_EQ(sums.data()[50 + r], row_sum(x.data() + 4000 + r, 1));
    }
    EXPECT_TRUE(std::isnan(sums.data()[0]));  // rows of no segment are not written
    EXPECT_TRUE(std::isnan(sums.data()[49]));
  }
}

TEST(RowSumsq, AShardOfPaddingHasNoRows) {
  const std::vector<float> x(8);
  Rig rig = open_rig();
  EXPECT_TRUE(rig.backend->row_sumsq(*rig.stream, {f32(x, {8}), {}, {}}).ok());
}

double tree(std::vector<double> v) {
  while (v.size() > 1) {
    std::vector<double> next;
    for (size_t i = 0; i + 1 < v.size(); i += 2) next.push_back(v[i] + v[i + 1]);
    if (v.size() % 2 != 0) next.push_back(v.back());
    v = next;
  }
  return v[0];
}

StepScalars norm_of(const std::vector<double>& rows, float max_norm) {
  // The gathered rows lie in another order than the table.
  const int64_t count = static_cast<int64_t>(rows.size());
  std::vector<double> gathered(rows.rbegin(), rows.rend());
  std::vector<int64_t> order;
  for (int64_t i = 0; i < count; ++i) order.push_back(count - 1 - i);
  GuardedBuffer<double> scratch("scratch", count);
  StepScalars s;
  s.max_norm = max_norm;
  Rig rig = open_rig();
  NormTreeArgs a{Tensor::of(gathered.data(), DType::kF64, {count}),
                 Tensor::of(order.data(), DType::kI64, {count}), f64(scratch, {count}), &s};
  EXPECT_TRUE(rig.backend->norm_tree(*rig.stream, a).ok());
  return s;
}

TEST(NormTree, IsTheBinaryTreeInTableOrder) {
  for (const int64_t count : {1, 2, 3, 5, 8, 13, 1000}) {
    std::vector<double> rows;
    for (const float x : random_uniform(11, "rows", count, 0.0, 1.0)) {
      rows.push_back(std::exp(double(x) * 9.0));
    }
    const StepScalars s = norm_of(rows, 0.5F);
    EXPECT_EQ(s.grad_norm, std::sqrt(tree(rows))) << count;
    EXPECT_EQ(s.clip, static_cast<float>(0.5 / (s.grad_norm + 1e-6)));
    EXPECT_EQ(s.nonfinite, 0);
  }
}

TEST(NormTree, ClipsOnlyAboveTheLimitAndFlagsNonFinite) {
  EXPECT_EQ(norm_of({0.01}, 0.5F).clip, 1.0F);
  EXPECT_EQ(norm_of({100.0}, 0.0F).clip, 1.0F);  // no limit
  for (const double bad : {std::nan(""), double{INFINITY}}) {
    const StepScalars s = norm_of({1.0, bad, 2.0}, 0.5F);
    EXPECT_EQ(s.nonfinite, 1);
    EXPECT_EQ(s.clip, 1.0F);
  }
}

struct Adam {
  std::vector<float> master, m, v, grad;
};
Adam adam_inputs(int64_t n) {
  Adam a{random_normal(12, "p", n), random_normal(12, "m", n, {.std = 0.1}),
         random_normal(12, "v", n, {.std = 0.1}), random_normal(12, "g", n)};
  for (float& v : a.v) v = v * v;
  return a;
}
StepScalars adam_scalars() {
  StepScalars s;
  s.lr = 1e-2F;
  s.weight_decay = 0.1F;
  s.clip = 0.37F;
  s.bias1 = static_cast<float>(1.0 - std::pow(0.9, 3));
  s.bias2 = static_cast<float>(1.0 - std::pow(0.95, 3));
  return s;
}

Outputs run_adamw(const Adam& in, const StepScalars& s, const std::vector<DecaySegment>& segments,
                  Rig& rig) {
  const int64_t n = static_cast<int64_t>(in.master.size());
  GuardedBuffer<float> master("master", std::span<const float>(in.master)),
      m("m", std::span<const float>(in.m)), v("v", std::span<const float>(in.v));
  AdamWArgs a;
  a.master_S = f32(master, {n});
  a.m_S = f32(m, {n});
  a.v_S = f32(v, {n});
  a.grad_S = f32(in.grad, {n});
  a.segments = segments;
  a.scalars = &s;
  a.beta1 = 0.9F;
  a.beta2 = 0.95F;
  a.eps = 1e-8F;
  EXPECT_TRUE(rig.backend->adamw(*rig.stream, a).ok());
  return {{"master", master.values()}, {"m", m.values()}, {"v", v.values()}};
}

TEST(AdamW, EqualsReferenceWithAndWithoutDecay) {
  const int64_t n = (1 << 15) + 100;
  const Adam in = adam_inputs(n);
  const StepScalars s = adam_scalars();
  for (const bool decay : {false, true}) {
    reference::AdamWState state{widen(in.master), widen(in.m), widen(in.v)};
    reference::AdamWOptions o;
    o.lr = static_cast<double>(s.lr);
    o.beta1 = static_cast<double>(0.9F);
    o.beta2 = static_cast<double>(0.95F);
    o.eps = static_cast<double>(1e-8F);
    o.weight_decay = decay ? static_cast<double>(s.weight_decay) : 0.0;
    reference::adamw_step(o, 3, static_cast<double>(s.clip), widen(in.grad), state);
    const std::vector<DecaySegment> segments = {{0, n, decay}};
    check_op([&](Rig& rig) { return run_adamw(in, s, segments, rig); },
             {{"master", state.p, rounding_bound(1, 2)},
              {"m", state.m, rounding_bound(1, 3)},
              {"v", state.v, rounding_bound(1, 3)}});
  }
}

// The bits of a bf16 tensor, as numbers.
std::vector<float> bf16_bits(const std::vector<uint16_t>& x) { return {x.begin(), x.end()}; }

struct WithValues {
  std::vector<float> master;
  std::vector<uint16_t> values, cast;  // of AdamW; of master, by the op
};
WithValues run_with_values(const Adam& in, const StepScalars& s,
                           const std::vector<DecaySegment>& segments, Rig& rig) {
  const int64_t n = static_cast<int64_t>(in.master.size());
  const auto bf16 = [n](std::vector<uint16_t>& x) {
    return Tensor::of(x.data(), DType::kBF16, {n});
  };
  WithValues out{in.master, std::vector<uint16_t>(in.master.size(), 0x7fff),
                 std::vector<uint16_t>(in.master.size())};
  std::vector<float> m = in.m, v = in.v;
  AdamWArgs a;
  a.master_S = f32(out.master, {n});
  a.m_S = f32(m, {n});
  a.v_S = f32(v, {n});
  a.grad_S = f32(in.grad, {n});
  a.values_S = bf16(out.values);
  a.segments = segments;
  a.scalars = &s;
  a.beta1 = 0.9F;
  a.beta2 = 0.95F;
  a.eps = 1e-8F;
  EXPECT_TRUE(rig.backend->adamw(*rig.stream, a).ok());
  EXPECT_TRUE(
      rig.backend->cast(*rig.stream, {.from = f32(out.master, {n}), .to = bf16(out.cast)}).ok());
  return out;
}

TEST(AdamW, WritesValuesWithTheBitsOfACast) {
  const int64_t n = (1 << 15) + 103;
  const Adam in = adam_inputs(n);
  Rig rig = open_rig(2);
  const Outputs want = run_adamw(in, adam_scalars(), {{0, 4001, true}, {4005, n, false}}, rig);
  const WithValues got =
      run_with_values(in, adam_scalars(), {{0, 4001, true}, {4005, n, false}}, rig);
  EXPECT_TRUE(same_bits("master", got.master, want[0].values));
  std::vector<uint16_t> expected = got.cast;
  for (size_t i = 4001; i < 4005; ++i) expected[i] = 0x7fff;  // padding
  EXPECT_TRUE(same_bits("values", bf16_bits(got.values), bf16_bits(expected)));
  StepScalars skip = adam_scalars();
  skip.skip = 1;
  const WithValues refused = run_with_values(in, skip, {{0, n, true}}, rig);
  EXPECT_EQ(refused.values, std::vector<uint16_t>(in.master.size(), 0x7fff));
}

TEST(AdamW, IsElementwise) {
  // The same elements in other segments at other places give the same bits.
  const Adam in = adam_inputs(1000);
  Rig rig = open_rig(2);
  const Outputs whole = run_adamw(in, adam_scalars(), {{0, 1000, true}}, rig);
  const Outputs cut =
      run_adamw(in, adam_scalars(), {{0, 1, true}, {1, 500, true}, {500, 1000, true}}, rig);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(same_bits(whole[i].name, cut[i].values, whole[i].values));
  }
}

TEST(AdamW, LeavesPaddingAndRefusedStepsAlone) {
  Adam in = adam_inputs(100);
  for (size_t i = 40; i < 50; ++i) in.master[i] = in.grad[i] = std::nanf("");
  Rig rig = open_rig();
  const Outputs got = run_adamw(in, adam_scalars(), {{0, 40, true}, {50, 100, false}}, rig);
  EXPECT_NE(got[0].values[39], in.master[39]);
  EXPECT_TRUE(std::isnan(got[0].values[40]));
  EXPECT_EQ(got[1].values[45], in.m[45]);
  EXPECT_NE(got[0].values[50], in.master[50]);
  StepScalars skip = adam_scalars();
  skip.skip = 1;
  StepScalars broken = adam_scalars();
  broken.nonfinite = 1;
  for (const StepScalars& s : {skip, broken}) {
    const Outputs same = run_adamw(in, s, {{0, 100, true}}, rig);
    EXPECT_TRUE(same_bits("master", same[0].values, in.master));
    EXPECT_TRUE(same_bits("m", same[1].values, in.m));
    EXPECT_TRUE(same_bits("v", same[2].values, in.v));
  }
}

}  // namespace
}  // namespace swax::test
