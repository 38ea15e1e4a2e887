#include "jobs/schedule.h"

#include <algorithm>

#include "proto/base/math.h"
#include "proto/base/rng.h"

namespace swax {
namespace {

// p as a threshold for 32-bit words; the product is exact.
uint64_t short_threshold(const pb::JobSpec& spec) {
  return static_cast<uint64_t>(std::clamp(spec.window().p(), 0.0, 1.0) * 0x1p32);
}

double cosine_factor(double progress, double floor) {
  return floor + (1.0 - floor) * 0.5 * (1.0 + math::sincos(math::kPi * progress).cos);
}

}  // namespace

int64_t total_steps(const pb::JobSpec& spec) {
  const pb::Training& training = spec.training();
  if (training.steps() > 0) return static_cast<int64_t>(training.steps());
  const uint64_t step_tokens =
      static_cast<uint64_t>(training.seq_len()) * training.global_batch_size();
  if (step_tokens == 0) return 0;
  const uint64_t whole = training.tokens() / step_tokens;
  return static_cast<int64_t>(whole + (training.tokens() % step_tokens != 0 ? 1 : 0));
}

float learning_rate(const pb::JobSpec& spec, int64_t step) {
  const double peak = spec.optimizer().lr();
  const double floor = spec.lr_scheduler().min_factor();
  const int64_t steps = total_steps(spec);
  const int64_t warmup = static_cast<int64_t>(spec.lr_scheduler().warmup_steps());
  const int64_t cooldown = static_cast<int64_t>(spec.lr_scheduler().cooldown_steps());
  const int64_t decay_end = steps - cooldown;
  double factor = 0.0;
  if (step < warmup) {
    factor = static_cast<double>(step + 1) / static_cast<double>(warmup);
  } else if (step < decay_end) {
    factor = cosine_factor(
        static_cast<double>(step - warmup) / static_cast<double>(decay_end - warmup), floor);
  } else if (cooldown > 0) {
    const int64_t left = std::max<int64_t>(0, steps - step);
    factor = floor * static_cast<double>(left) / static_cast<double>(cooldown);
  } else {
    factor = floor;
  }
  return static_cast<float>(peak * factor);
}

// The share is taken in units of 1e-9, so that 0.1 means exactly one tenth and the rest is integer
// arithmetic (steps <= 1e9, the product fits).
int64_t anneal_begin(const pb::JobSpec& spec) {
  constexpr int64_t kUnit = 1'000'000'000;
  const double share = std::clamp(spec.window().anneal_frac(), 0.0, 1.0);
  const int64_t anneal = static_cast<int64_t>(share * static_cast<double>(kUnit) + 0.5);
  return total_steps(spec) * (kUnit - anneal) / kUnit;
}

int64_t attention_window(const pb::JobSpec& spec, int64_t step) {
  if (step >= anneal_begin(spec)) return spec.window().long_();
  const uint64_t word =
      random_block(spec.job().seed(), Purpose::kWindow, static_cast<uint64_t>(step))[0];
  return word < short_threshold(spec) ? spec.window().short_() : spec.window().long_();
}

double expected_window_share(const pb::JobSpec& spec) {
  const int64_t steps = total_steps(spec);
  if (steps == 0) return 0.0;
  const double chance = static_cast<double>(short_threshold(spec)) * 0x1p-32;
  return chance * static_cast<double>(anneal_begin(spec)) / static_cast<double>(steps);
}

BiasCorrection bias_correction(const pb::JobSpec& spec, int64_t step) {
  const auto of = [&](double beta) { return static_cast<float>(1.0 - math::ipow(beta, step + 1)); };
  return {of(spec.optimizer().beta1()), of(spec.optimizer().beta2())};
}

}  // namespace swax
