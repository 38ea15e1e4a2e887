// Everything that changes with the step, as pure functions of (spec, step). Steps count from 0.
// Source: model-spec 1.4, 1.5, design.
#pragma once

#include <cstdint>

#include "proto/job.pb.h"

namespace swax {

int64_t total_steps(const pb::JobSpec& spec);  // training.steps, or ceil(tokens / (B * T))
// lr(s) = peak (s+1)/warmup below warm-up; cosine to min_factor * peak at steps - cooldown; then
// linear to 0 at steps. A warm-up longer than the run stays in the warm-up branch. On
// proto/base/math: the same bits everywhere.
float learning_rate(const pb::JobSpec& spec, int64_t step);
// w(step) = short if step < floor((1 - anneal_frac) N) and word(seed, step) < floor(p 2^32), else
// long.
int64_t attention_window(const pb::JobSpec& spec, int64_t step);
// First step of the last part, which has long windows only: floor((1 - anneal_frac) N).
int64_t anneal_begin(const pb::JobSpec& spec);
// Expected share of steps with the short window.
double expected_window_share(const pb::JobSpec& spec);
struct BiasCorrection {
  float bias1;
  float bias2;
};
BiasCorrection bias_correction(const pb::JobSpec& spec, int64_t step);  // 1 - beta^(step+1)

}  // namespace swax
