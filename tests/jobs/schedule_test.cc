// Goal: learning rate, window and bias correction are the defined functions of the step, with
// golden bits.
#include "jobs/schedule.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/jobs/job_specs.h"

namespace swax {
namespace {

pb::JobSpec run_of(uint64_t steps, uint64_t warmup, uint64_t cooldown, double min_factor = 0.1) {
  pb::JobSpec spec;
  spec.mutable_training()->set_steps(steps);
  spec.mutable_optimizer()->set_lr(1e-3);
  spec.mutable_lr_scheduler()->set_warmup_steps(warmup);
  spec.mutable_lr_scheduler()->set_cooldown_steps(cooldown);
  spec.mutable_lr_scheduler()->set_min_factor(min_factor);
  return spec;
}

TEST(Schedule, TokensRoundUpToWholeSteps) {
  pb::JobSpec spec;
  spec.mutable_training()->set_seq_len(100);
  spec.mutable_training()->set_global_batch_size(3);
  spec.mutable_training()->set_tokens(300);
  EXPECT_EQ(total_steps(spec), 1);
  spec.mutable_training()->set_tokens(301);
  EXPECT_EQ(total_steps(spec), 2);
  spec.mutable_training()->set_tokens(1);
  EXPECT_EQ(total_steps(spec), 1);
  // The published run: 150e9 tokens at 2,097,152 a step.
  spec.mutable_training()->set_seq_len(16384);
  spec.mutable_training()->set_global_batch_size(128);
  spec.mutable_training()->set_tokens(150'000'000'000);
  EXPECT_EQ(total_steps(spec), 71'526);
}

TEST(Schedule, WarmupIsLinearFromTheFirstStep) {
  const pb::JobSpec spec = run_of(100, 10, 0);
  for (int64_t s = 0; s < 10; ++s)
    EXPECT_EQ(learning_rate(spec, s),
              static_cast<float>(1e-3 * (static_cast<double>(s + 1) / 10.0)));
  EXPECT_EQ(learning_rate(spec, 9), 1e-3F);
  EXPECT_EQ(learning_rate(spec, 10), 1e-3F);  // the cosine begins at its peak
}

// Against the cosine in long double: exp and sincos of the project are within 2 ulp of a double,
// far below half an ulp of a float, so the result is the rounded value or its neighbour.
TEST(Schedule, CosineThenLinear) {
  const pb::JobSpec spec = run_of(1000, 50, 100);
  for (int64_t s = 50; s < 900; ++s) {
    const long double progress = static_cast<long double>(s - 50) / 850.0L;
    const long double lr =
        1e-3L * (0.1L + 0.9L * 0.5L * (1.0L + cosl(3.14159265358979323846264L * progress)));
    const float want = static_cast<float>(lr);
    EXPECT_LE(std::fabs(learning_rate(spec, s) - want), std::nextafter(want, 1.0F) - want) << s;
  }
  EXPECT_NEAR(learning_rate(spec, 900), 1e-4F, 1e-11F);  // min_factor * peak
  EXPECT_NEAR(learning_rate(spec, 950), 5e-5F, 1e-11F);
  EXPECT_NEAR(learning_rate(spec, 999), 1e-6F, 1e-12F);
  EXPECT_EQ(learning_rate(spec, 1000), 0.0F);
  for (int64_t s = 51; s < 1000; ++s)
    EXPECT_LE(learning_rate(spec, s), learning_rate(spec, s - 1)) << s;
}

TEST(Schedule, EveryLengthIsValid) {
  for (uint64_t steps = 1; steps <= 40; ++steps) {
    for (const uint64_t warmup : {0, 1, 20, 1000}) {
      for (const uint64_t cooldown : {0, 1, 20, 1000}) {
        const pb::JobSpec spec = run_of(steps, warmup, cooldown);
        for (int64_t s = 0; s < static_cast<int64_t>(steps); ++s) {
          const float lr = learning_rate(spec, s);
          ASSERT_TRUE(std::isfinite(lr) && lr > 0.0F && lr <= 1e-3F)
              << steps << " " << warmup << " " << cooldown << " " << s;
          if (s <
              static_cast<int64_t>(warmup)) {  // a warm-up longer than the run stays in its branch
            ASSERT_EQ(lr, static_cast<float>(
                              1e-3 * (static_cast<double>(s + 1) / static_cast<double>(warmup))));
          }
        }
      }
    }
  }
}

TEST(Schedule, GoldenLearningRates) {
  const pb::JobSpec spec = test::preset("swax-1.4b");
  const std::vector<std::pair<int64_t, uint32_t>> golden = {
      {0, 0x357a8a2e},     {749, 0x3a378034},   {750, 0x3a378034},  {35000, 0x39cae455},
      {69525, 0x3892ccf7}, {69526, 0x3892ccf7}, {71525, 0x331652e8}};
  for (const auto& [step, bits] : golden)
    EXPECT_EQ(std::bit_cast<uint32_t>(learning_rate(spec, step)), bits)
        << step << std::hex << " 0x" << std::bit_cast<uint32_t>(learning_rate(spec, step));
}

TEST(Schedule, WindowsOfTheFirstSteps) {  // made by a second implementation of the generator
  pb::JobSpec spec;
  spec.mutable_job()->set_seed(42);
  spec.mutable_training()->set_steps(1000);
  spec.mutable_window()->set_short_(128);
  spec.mutable_window()->set_long_(2048);
  const auto draws = [&](double p) {
    spec.mutable_window()->set_p(p);
    std::string text;
    for (int64_t s = 0; s < 64; ++s) text += attention_window(spec, s) == 128 ? 's' : 'L';
    return text;
  };
  EXPECT_EQ(draws(0.5), "sLssLLssLLsLsLLsLsLsLLLssssssLsLLLssLLsssssssLssLsLLsssLsLLsLLLL");
  EXPECT_EQ(draws(0.75), "ssssLsssLssssLLsLssssLLssssssLssLsssLLsssssssLssLsLssssLsLssssss");
  EXPECT_EQ(draws(0.0), std::string(64, 'L'));
  EXPECT_EQ(draws(1.0), std::string(64, 's'));
}

// The share of short windows: N draws of chance p, five standard deviations.
TEST(Schedule, ShareOfShortWindows) {
  const pb::JobSpec spec = test::preset("swax-7b");
  const int64_t steps = total_steps(spec);
  int64_t count = 0;
  for (int64_t s = 0; s < steps; ++s) count += attention_window(spec, s) == 128;
  const double n = static_cast<double>(steps);
  const double share = expected_window_share(spec);
  EXPECT_NEAR(share, 0.75 * 32186.0 / 35763.0, 1e-12);
  EXPECT_NEAR(static_cast<double>(count) / n, share, 5 * std::sqrt(share * (1 - share) / n));
}

TEST(Schedule, ShortWindowsEndWhereTheAnnealingBegins) {
  const auto last_short = [](uint64_t steps, double anneal) {
    pb::JobSpec spec;
    spec.mutable_training()->set_steps(steps);
    spec.mutable_window()->set_short_(1);
    spec.mutable_window()->set_long_(2);
    spec.mutable_window()->set_p(1.0);
    spec.mutable_window()->set_anneal_frac(anneal);
    int64_t count = 0;
    while (count < static_cast<int64_t>(steps) && attention_window(spec, count) == 1) ++count;
    for (int64_t s = count; s < static_cast<int64_t>(steps); ++s)
      EXPECT_EQ(attention_window(spec, s), 2);
    return count;
  };
  EXPECT_EQ(last_short(71'526, 0.1), 64'373);
  EXPECT_EQ(last_short(35'763, 0.1), 32'186);
  EXPECT_EQ(last_short(10, 0.9), 1);  // 1 - 0.9 is a little less than 0.1 in binary
  EXPECT_EQ(last_short(10, 0.7), 3);
  EXPECT_EQ(last_short(10, 0.0), 10);
  EXPECT_EQ(last_short(10, 1.0), 0);
  EXPECT_EQ(last_short(1, 0.1), 0);
  for (uint64_t steps = 1; steps <= 500; ++steps)  // floor(9 steps / 10), exactly
    EXPECT_EQ(last_short(steps, 0.1), static_cast<int64_t>(steps * 9 / 10)) << steps;
}

TEST(Schedule, BiasCorrection) {
  pb::JobSpec spec;
  spec.mutable_optimizer()->set_beta1(0.9);
  spec.mutable_optimizer()->set_beta2(0.95);
  EXPECT_EQ(bias_correction(spec, 0).bias1, static_cast<float>(1.0 - 0.9));
  EXPECT_EQ(bias_correction(spec, 0).bias2, static_cast<float>(1.0 - 0.95));
  for (const int64_t step : {1, 7, 100, 10'000}) {
    const long double exact = 1.0L - powl(0.95L, static_cast<long double>(step + 1));
    EXPECT_NEAR(bias_correction(spec, step).bias2, static_cast<double>(exact), 0x1p-24);
  }
  EXPECT_EQ(bias_correction(spec, 1'000'000).bias1, 1.0F);
}

}  // namespace
}  // namespace swax
