// The norm with its gates in f32: the two ops, one after the other, bit for bit. What reads a row
// once in bf16 is compared with float64 in cuda_norm_gates_test.cc.
#include <gtest/gtest.h>

#include "tests/kernels/op_check.h"

namespace swax::test {
namespace {

constexpr float kEps = 1e-6F;
constexpr float kCap = 15.0F;

struct Case {
  int64_t tokens, dim, heads;
};

// Every output of forward and backward, by the joint ops or by the single ones.
Outputs run_case(const Case& c, Rig& rig, bool joint) {
  const auto [t, d, n] = c;
  const auto random = [](const char* name, int64_t count) { return random_normal(3, name, count); };
  const std::vector<float> x = random("x", t * d), w = random("w", d);
  const std::vector<float> wi = random("wi", n * d), wf = random("wf", n * d);
  const std::vector<float> bi = random("bi", n), bf = random("bf", n);
  const std::vector<float> di0 = random("di", t * n), df0 = random("df", t * n);
  const std::vector<float> dy0 = random("dy", t * d), dx0 = random("dx", t * d);
  GuardedBuffer<float> y("y", t * d), rstd("rstd", t), i("i", t * n), f("f", t * n);
  const RmsNormArgs norm{f32(x, {t, d}), f32(w, {d}), f32(y, {t, d}), f32(rstd, {t}), kEps};
  const MlstmGatesArgs gates{norm.y_TD,    f32(wi, {n, d}), f32(wf, {n, d}), f32(bi, {n}),
                             f32(bf, {n}), f32(i, {t, n}),  f32(f, {t, n}),  kCap};
  Backend& b = *rig.backend;
  if (joint) {
    EXPECT_TRUE(b.rms_norm_gates(*rig.stream, {norm, gates}).ok());
  } else {
    EXPECT_TRUE(b.rms_norm(*rig.stream, norm).ok());
    EXPECT_TRUE(b.mlstm_gates(*rig.stream, gates).ok());
  }
  GuardedBuffer<float> di("di", std::span<const float>(di0)), df("df", std::span<const float>(df0));
  GuardedBuffer<float> dy("dy", std::span<const float>(dy0)), dx("dx", std::span<const float>(dx0));
  GuardedBuffer<float> dw("dw", d), dwi("dwi", n * d), dwf("dwf", n * d), dbi("dbi", n),
      dbf("dbf", n), scratch("scratch", rms_norm_backward_scratch(t, d));
  const MlstmGatesBackwardArgs dgates{gates.x_TD,
                                      gates.wi_ND,
                                      gates.wf_ND,
                                      gates.i_TN,
                                      gates.f_TN,
                                      f32(di, {t, n}),
                                      f32(df, {t, n}),
                                      f32(dy, {t, d}),
                                      f32(dwi, {n, d}),
                                      f32(dwf, {n, d}),
                                      f32(dbi, {n}),
                                      f32(dbf, {n}),
                                      kCap};
  const RmsNormBackwardArgs dnorm{norm.x_TD,
                                  norm.w_D,
                                  norm.rstd_T,
                                  dgates.dx_TD,
                                  f32(dx, {t, d}),
                                  f32(dw, {d}),
                                  f32(scratch, {rms_norm_backward_scratch(t, d)}),
                                  true};
  if (joint) {
    EXPECT_TRUE(b.rms_norm_gates_backward(*rig.stream, {dgates, dnorm}).ok());
  } else {
    EXPECT_TRUE(b.mlstm_gates_backward(*rig.stream, dgates).ok());
    EXPECT_TRUE(b.rms_norm_backward(*rig.stream, dnorm).ok());
  }
  return {{"y", y.values()},     {"rstd", rstd.values()}, {"i", i.values()},
          {"f", f.values()},     {"di", di.values()},     {"df", df.values()},
          {"dx", dx.values()},   {"dw", dw.values()},     {"dwi", dwi.values()},
          {"dwf", dwf.values()}, {"dbi", dbi.values()},   {"dbf", dbf.values()}};
}

TEST(NormGates, HasTheBitsOfTheTwoOps) {
  for (const Case& c : {Case{70, 64, 2}, {33, 13, 1}, {5, 200, 3}}) {
    Rig rig = open_rig();
    const Outputs joint = run_case(c, rig, true);
    const Outputs single = run_case(c, rig, false);
    ASSERT_EQ(joint.size(), single.size());
    for (size_t k = 0; k < joint.size(); ++k) {
      EXPECT_TRUE(same_bits(joint[k].name, joint[k].values, single[k].values));
    }
  }
}

TEST(NormGates, RefusesGatesOfAnotherTensor) {
  Rig rig = open_rig();
  const std::vector<float> rows(8, 1.0F), w(4, 1.0F), bias(1, 0.0F);
  GuardedBuffer<float> y("y", 8), other("other", 8), rstd("rstd", 2), i("i", 2), f("f", 2);
  RmsNormGatesArgs a;
  a.norm = {f32(rows, {2, 4}), f32(w, {4}), f32(y, {2, 4}), f32(rstd, {2}), kEps};
  a.gates = {f32(other, {2, 4}), f32(w, {1, 4}), f32(w, {1, 4}), f32(bias, {1}),
             f32(bias, {1}),     f32(i, {2, 1}), f32(f, {2, 1}), kCap};
  const Status status = rig.backend->rms_norm_gates(*rig.stream, a);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("y_TD of the norm"), std::string::npos) << status.to_string();
  a.gates.x_TD = a.norm.y_TD;
  EXPECT_TRUE(rig.backend->rms_norm_gates(*rig.stream, a).ok());
}

}  // namespace
}  // namespace swax::test
