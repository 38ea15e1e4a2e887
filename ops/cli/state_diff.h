// Where two runs part: the first step whose record differs in a bit, the first tensor, the first
// element. Reads only. Threads: pure functions on the file system.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/cli/output.h"
#include "proto/base/status.h"

namespace swax {

// Steps are counted as in records: optimizer steps done, 1..N.
struct StepDifference {
  int64_t step = 0;
  std::vector<std::string> fields;  // "loss", "norm", "lr", "window", "targets", "tensors"
  uint64_t loss_bits[2] = {0, 0};   // of A and of B, double
  uint64_t norm_bits[2] = {0, 0};
};

struct TensorDifference {
  int64_t step = 0;       // of the records with tensor digests, or of the checkpoint
  std::string tensor;     // "model/layers.3.mlstm.wq"; the first in table order
  int64_t differing = 0;  // tensors that differ there
  int64_t compared = 0;
};

struct ElementDifference {
  int64_t step = 0;  // of the checkpoints
  std::string tensor;
  int64_t element = 0;         // flat index
  std::vector<int64_t> index;  // in the tensor's shape
  float value[2] = {0.0F, 0.0F};
};

struct RunDiff {
  bool equal = true;
  std::optional<StepDifference> step;
  std::optional<TensorDifference> tensor;
  std::optional<ElementDifference> element;
  int64_t steps_compared = 0, digests_compared = 0, checkpoints_compared = 0;
  std::vector<std::string> notes;  // fields of the specs that differ, damage, what is missing
};

// kNotFound: no run. kFailedPrecondition: the two have no step and no checkpoint in common.
// kDataLoss: a checkpoint that is needed cannot be read.
Result<RunDiff> diff_runs(const std::string& state_a, const std::string& state_b);

std::string diff_text(const RunDiff& diff);
Json diff_json(const RunDiff& diff);

}  // namespace swax
