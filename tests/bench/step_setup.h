// What benchmarks of a training step on GPUs begin with: data and spec.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jobs/spec.h"
#include "proto/base/status.h"

namespace swax::test {

// A data set with one document of uniform random tokens, so that no border shortens a window.
// Returns the folder.
Result<std::string> write_random_data(const std::string& folder, int64_t vocab, int64_t tokens);

// The spec of a file: one sequence a rank and step, no validation, windows by chance, then `more`.
Result<pb::JobSpec> bench_spec(const std::string& path, int64_t steps, int ranks,
                               const std::vector<SpecOverride>& more);

// Says so where the build poisons device memory that is released: it takes the time of a step.
void say_build();

// Sets the first form whose plan leaves 2 GiB of `device_bytes` free, for probes of products and
// code: weights kept and no recompute, or light in 1, 2, ... layers; then, with weights given back,
// none, light and block in 1, 2, ... layers.
Status fit_recompute(pb::JobSpec* spec, int ranks, int64_t device_bytes);

}  // namespace swax::test
