// What `swax status` knows of a run, and its two forms. Reads only: the run's own records, its
// checkpoints' commit files. Threads: pure functions on the file system.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops/cli/output.h"
#include "ops/cli/state_dir.h"
#include "proto/base/status.h"
#include "storage/checkpoint_store.h"

namespace swax {

struct RunReport {
  std::string root;  // state folder
  RunView view;
  std::optional<pb::StepRecord> last_step;
  std::optional<pb::ValidationRecord> last_validation;
  std::optional<CheckpointEntry> last_checkpoint;  // committed and without a problem
  int64_t checkpoints = 0;                         // committed and without a problem
  std::vector<std::string> problems;               // damaged records, bad checkpoints
  double tokens_per_s = 0.0;                       // of the newest steps; 0: unknown
  std::string next;                                // what to do
};

// Fails as open_run.
Result<RunReport> make_run_report(const std::string& state_folder);

std::string run_text(const RunReport& report, int64_t now_ms);
Json run_json(const RunReport& report);
// A double that may be NaN, for JSON: the value (null when not finite) and its bits as hex.
Json& set_with_bits(Json* object, const std::string& key, double value);

}  // namespace swax
