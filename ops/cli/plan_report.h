// What `swax plan` knows of a resolved spec: sizes, memory, work, schedule and data, as numbers;
// and their two forms. Threads: pure functions, but for the manifests of data sets that are read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/cli/output.h"
#include "proto/base/status.h"
#include "proto/job.pb.h"
#include "worker/model/plan.h"

namespace swax {

struct RankPlan {
  MemoryPlan memory;        // of one rank
  int64_t micro_steps = 0;  // slots of the fullest rank
  int64_t slots_min = 0;    // slots of the emptiest rank
  double busy = 0.0;        // share of rank and micro-step pairs that have a slot
};

struct WindowWork {
  std::string name;  // "short"
  int64_t window = 0;
  double share = 0.0;            // expected share of the steps
  double flops_per_token = 0.0;  // forward and backward
};

struct SchedulePoint {
  std::string what;  // "warm-up ends"
  int64_t step = 0;
  float lr = 0.0F;
  int64_t window = 0;
};

struct SourcePlan {
  std::string name;
  std::string place;  // path, or the text it is built from
  double share = 0.0;
  int64_t sequences = 0;
  int64_t tokens = 0;                   // that the run reads from it
  std::optional<int64_t> train_tokens;  // of its training split, when it can be read
  double epochs = 0.0;                  // when train_tokens is known
  std::string unknown;                  // why it is not
};

struct PlanReport {
  std::string job, pattern, backend, recompute;
  int64_t layers = 0, dim = 0, vocab = 0;
  int64_t parameters = 0, parameters_embedding = 0;
  int64_t seq_len = 0, batch = 0, lanes = 0, steps = 0;
  int64_t tokens_per_step = 0, tokens = 0;
  int64_t checkpoint_bytes = 0, checkpoints_kept = 0;
  double slot_flops = 0.0;   // one slot as the backend computes it, recompute included, long window
  double total_flops = 0.0;  // model FLOPs of the whole run
  int ranks = 0;             // that the spec starts with
  std::vector<RankPlan> by_ranks;
  std::vector<WindowWork> windows;
  std::vector<SchedulePoint> schedule;
  std::vector<SourcePlan> sources;
};

// data_folder: where the run builds its data sets, STATE/store/data; need not exist.
// kInvalidArgument: a shape that cannot be built, a data set that does not fit the spec.
Result<PlanReport> make_plan_report(const pb::JobSpec& spec, const std::string& data_folder);

std::string plan_text(const PlanReport& plan);
Json plan_json(const PlanReport& plan);

}  // namespace swax
