// Goal: the tensor table, the counts, the initial values and the costs are those of the model
// definition.
#include "jobs/model_shape.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>

#include "proto/base/hash.h"
#include "proto/base/rng.h"
#include "tests/jobs/job_specs.h"

namespace swax {
namespace {

ModelShape preset_shape(const std::string& name) {
  auto shape = model_shape(test::preset(name).model());
  EXPECT_TRUE(shape.ok()) << shape.status().to_string();
  return *shape;
}

TEST(ModelShape, PresetsHaveTheirParameterCounts) {
  EXPECT_EQ(preset_shape("micro").parameters(), 168'450);
  EXPECT_EQ(preset_shape("nano").parameters(), 3'674'888);
  EXPECT_EQ(preset_shape("125m").parameters(), 162'253'092);
  EXPECT_EQ(preset_shape("swax-1.4b").parameters(), 1'439'492'192);
  EXPECT_EQ(preset_shape("swax-7b").parameters(), 6'889'476'352);
  EXPECT_GE(preset_shape("quickstart").parameters(), 900'000);  // its shape may be tuned
  EXPECT_LE(preset_shape("quickstart").parameters(), 1'300'000);
}

TEST(ModelShape, TableOfMicro) {
  struct Row {
    const char* name;
    std::vector<int64_t> shape;
    InitRule init;
    bool decay;
    int unit;
  };
  using enum InitRule;
  const std::vector<Row> rows = {{"embed.weight", {288, 64}, kNormalSmall, false, 0},
                                 {"layers.0.norm_mix.weight", {64}, kOne, false, 1},
                                 {"layers.0.attn.wq", {64, 64}, kNormalSmall, true, 1},
                                 {"layers.0.attn.wk", {64, 64}, kNormalSmall, true, 1},
                                 {"layers.0.attn.wv", {64, 64}, kNormalSmall, true, 1},
                                 {"layers.0.attn.wo", {64, 64}, kNormalOut, true, 1},
                                 {"layers.0.norm_mlp.weight", {64}, kOne, false, 1},
                                 {"layers.0.mlp.w_gate", {256, 64}, kNormalSmall, true, 1},
                                 {"layers.0.mlp.w_up", {256, 64}, kNormalSmall, true, 1},
                                 {"layers.0.mlp.w_down", {64, 256}, kNormalOut, true, 1},
                                 {"layers.1.norm_mix.weight", {64}, kOne, false, 2},
                                 {"layers.1.mlstm.wq", {32, 64}, kNormalSmall, true, 2},
                                 {"layers.1.mlstm.wk", {32, 64}, kNormalSmall, true, 2},
                                 {"layers.1.mlstm.wv", {64, 64}, kNormalSmall, true, 2},
                                 {"layers.1.mlstm.wo_gate", {64, 64}, kZero, true, 2},
                                 {"layers.1.mlstm.wi", {1, 64}, kZero, true, 2},
                                 {"layers.1.mlstm.wf", {1, 64}, kZero, true, 2},
                                 {"layers.1.mlstm.bi", {1}, kInputGateBias, false, 2},
                                 {"layers.1.mlstm.bf", {1}, kForgetGateBias, false, 2},
                                 {"layers.1.mlstm.mhnorm.weight", {64}, kOne, false, 2},
                                 {"layers.1.mlstm.w_out", {64, 64}, kNormalOut, true, 2},
                                 {"layers.1.norm_mlp.weight", {64}, kOne, false, 2},
                                 {"layers.1.mlp.w_gate", {256, 64}, kNormalSmall, true, 2},
                                 {"layers.1.mlp.w_up", {256, 64}, kNormalSmall, true, 2},
                                 {"layers.1.mlp.w_down", {64, 256}, kNormalOut, true, 2},
                                 {"norm_out.weight", {64}, kOne, false, 3},
                                 {"head.weight", {288, 64}, kNormalSmall, true, 3}};
  const ModelShape m = preset_shape("micro");
  ASSERT_EQ(m.tensors.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const TensorInfo& t = m.tensors[i];
    EXPECT_EQ(t.name, rows[i].name);
    EXPECT_EQ(t.shape, rows[i].shape) << t.name;
    EXPECT_EQ(t.init, rows[i].init) << t.name;
    EXPECT_EQ(t.decay, rows[i].decay) << t.name;
    EXPECT_EQ(t.unit, rows[i].unit) << t.name;
    EXPECT_EQ(m.find(t.name), static_cast<int>(i));
  }
  EXPECT_EQ(m.find("layers.2.attn.wq"), -1);
}

// Grouped heads, a pattern that the layers cut off, and mLSTM heads whose widths do not add up to
// dim.
TEST(ModelShape, OddShapes) {
  pb::Model model = test::preset("micro").model();
  model.set_pattern("SSM");
  model.set_layers(4);
  model.set_heads(6);
  model.set_kv_heads(2);
  model.set_head_dim(10);
  const auto m = model_shape(model);
  ASSERT_TRUE(m.ok());
  using enum LayerKind;
  EXPECT_EQ(m->kinds, (std::vector<LayerKind>{kAttention, kAttention, kMlstm, kAttention}));
  const auto shape = [&](const char* name) {
    return m->tensors[static_cast<size_t>(m->find(name))].shape;
  };
  EXPECT_EQ(shape("layers.0.attn.wq"), (std::vector<int64_t>{60, 64}));
  EXPECT_EQ(shape("layers.0.attn.wk"), (std::vector<int64_t>{20, 64}));
  EXPECT_EQ(shape("layers.3.attn.wo"), (std::vector<int64_t>{64, 60}));
  EXPECT_EQ(m->units(), 6);
}

TEST(ModelShape, RefusesWhatCannotBe) {
  const pb::Model good = test::preset("micro").model();
  const auto refused = [&](auto change, const char* field) {
    pb::Model model = good;
    change(model);
    const auto shape = model_shape(model);
    ASSERT_FALSE(shape.ok()) << field;
    EXPECT_EQ(shape.status().code(), Code::kInvalidArgument);
    EXPECT_NE(shape.status().message().find(field), std::string::npos) << shape.status().message();
  };
  refused([](pb::Model& m) { m.set_head_dim(31); }, "head_dim");
  refused([](pb::Model& m) { m.set_heads(3), m.set_kv_heads(2); }, "heads");
  refused([](pb::Model& m) { m.set_pattern(""); }, "pattern");
  refused([](pb::Model& m) { m.set_pattern("SX"); }, "pattern");
  refused([](pb::Model& m) { m.set_mlstm_heads(0); }, "mlstm_heads");
  refused([](pb::Model& m) { m.set_layers(0); }, "layers");
  refused([](pb::Model& m) { m.set_dim(0); }, "dim");
}

TEST(ModelShape, ConstantInitialValues) {
  const ModelShape m = preset_shape("swax-7b");
  const auto value = [&](const char* name, int64_t element) {
    return init_value(m.tensors[static_cast<size_t>(m.find(name))], m, 1, element);
  };
  EXPECT_EQ(value("layers.1.mlstm.wo_gate", 5), 0.0F);
  EXPECT_EQ(value("layers.1.mlstm.mhnorm.weight", 5), 1.0F);
  EXPECT_EQ(value("layers.1.mlstm.bi", 7), -10.0F);
  EXPECT_EQ(value("layers.1.mlstm.bf", 0), 3.0F);
  EXPECT_EQ(value("layers.1.mlstm.bf", 7), 6.0F);
  EXPECT_EQ(value("layers.1.mlstm.bf", 1), static_cast<float>(3.0 + 3.0 / 7.0));
  const ModelShape micro = preset_shape("micro");  // one head: linspace has no second end
  EXPECT_EQ(
      init_value(micro.tensors[static_cast<size_t>(micro.find("layers.1.mlstm.bf"))], micro, 1, 0),
      3.0F);
}

// Mean and deviation of n normal values: |mean| < 5 sigma / sqrt(n), relative error of the
// deviation < 5 / sqrt(2n).
TEST(ModelShape, NormalInitialValuesHaveTheirSigma) {
  const ModelShape m = preset_shape("nano");
  const double small = std::sqrt(2.0 / (5.0 * 256.0));
  const double out = 2.0 / (4.0 * std::sqrt(256.0));
  for (const auto& [name, sigma] :
       std::vector<std::pair<const char*, double>>{{"embed.weight", small},
                                                   {"layers.3.mlstm.wq", small},
                                                   {"layers.0.attn.wo", out},
                                                   {"layers.2.mlp.w_down", out}}) {
    const TensorInfo& t = m.tensors[static_cast<size_t>(m.find(name))];
    constexpr int64_t kCount = 20'000;
    double sum = 0;
    double squares = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const double v = init_value(t, m, 3, i);
      sum += v;
      squares += v * v;
    }
    EXPECT_LT(std::fabs(sum / kCount), 5 * sigma / std::sqrt(kCount)) << name;
    EXPECT_NEAR(std::sqrt(squares / kCount) / sigma, 1.0, 5 / std::sqrt(2.0 * kCount)) << name;
  }
}

TEST(ModelShape, InitialValueIsOneRoundingOfTheStream) {
  const ModelShape m = preset_shape("nano");
  const TensorInfo& t = m.tensors[static_cast<size_t>(m.find("layers.1.mlstm.w_out"))];
  for (int64_t i = 0; i < 100; ++i) {
    const double sigma = 2.0 / (4.0 * 16.0);
    EXPECT_EQ(init_value(t, m, 9, i),
              static_cast<float>(
                  sigma * normal_at(9, xxh3_64("layers.1.mlstm.w_out"), static_cast<uint64_t>(i))));
  }
  EXPECT_NE(init_value(t, m, 9, 0), init_value(t, m, 10, 0));
}

// Golden bits: a change would give every run other initial weights.
TEST(ModelShape, GoldenInitialValues) {
  const ModelShape m = preset_shape("micro");
  const std::vector<std::pair<const char*, std::vector<uint32_t>>> golden = {
      {"embed.weight", {0xbc870cf7, 0x3de351a8, 0x3dd65ec7, 0x3c204a81}},
      {"layers.0.attn.wo", {0xbe1f4ebb, 0x3b522695, 0x3e1eb6ad, 0x3e89c0f5}},
      {"head.weight", {0x3d98e7fc, 0x3da859cf, 0xbdc6ae2a, 0xbcfb91b5}}};
  for (const auto& [name, bits] : golden) {
    const TensorInfo& t = m.tensors[static_cast<size_t>(m.find(name))];
    for (size_t i = 0; i < bits.size(); ++i)
      EXPECT_EQ(std::bit_cast<uint32_t>(init_value(t, m, 1, static_cast<int64_t>(i))), bits[i])
          << name << " " << i << std::hex << " 0x"
          << std::bit_cast<uint32_t>(init_value(t, m, 1, static_cast<int64_t>(i)));
  }
}

// The cost table of the model definition (T = 16,384, mLSTM chunk 128; MFLOP per token, 4 digits).
TEST(ModelShape, ForwardFlopsMatchTheTable) {
  const auto expect = [](const char* name, int64_t window, double mflop) {
    ModelShape m = preset_shape(name);
    m.mlstm_chunk = 128;
    EXPECT_NEAR(forward_flops_per_token(m, window, 16384) / 1e6 / mflop, 1.0, 0.005)
        << name << " w=" << window;
  };
  expect("swax-1.4b", 128, 2715);
  expect("swax-1.4b", 512, 2752);
  expect("swax-1.4b", 2048, 2892);
  expect("swax-7b", 128, 13480);
  expect("swax-7b", 512, 13580);
  expect("swax-7b", 2048, 13950);
}

TEST(ModelShape, WindowsBeyondTheSequenceCostTheSame) {
  const ModelShape m = preset_shape("micro");
  EXPECT_EQ(forward_flops_per_token(m, 256, 256), forward_flops_per_token(m, 100'000, 256));
  EXPECT_LT(forward_flops_per_token(m, 16, 256), forward_flops_per_token(m, 64, 256));
}

}  // namespace
}  // namespace swax
