// Arguments of swax-train. It is started by programs, not typed: long options with values only,
// everything checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "worker/comm/collectives.h"

namespace swax {

// train --spec FILE --state DIR --epoch E --ranks W --data DIR [--data DIR ...] [--checkpoints DIR]
// [--records DIR] [--logs DIR]
struct TrainArguments {
  std::string spec, state, checkpoints, records, logs;
  int64_t epoch = 0;
  int ranks = 0;
  std::vector<std::string> data;
};

// generate --spec FILE --checkpoints DIR [--step N] [--prompt TEXT] [--tokens N] [--temperature X]
// [--top-k K] [--seed S]
struct GenerateArguments {
  std::string spec, checkpoints, prompt;
  int64_t step = -1;
  int64_t tokens = 200;
  double temperature = 0.8;
  int top_k = 40;
  uint64_t seed = 0;
};

struct Arguments {
  bool version = false;
  bool doctor = false;
  std::optional<TrainArguments> train;
  std::optional<GenerateArguments> generate;
};
Result<Arguments> parse_train_arguments(int argc, char** argv);

// kFailedPrecondition on every rank when the ranks' fingerprints differ, naming two of them.
Status agree_fingerprint(Collectives& group, const std::string& fingerprint);

}  // namespace swax
