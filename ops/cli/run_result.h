// The last word of `swax run`: what became of the job, as text or as one JSON object.
// Threads: one.
#pragma once

#include <string>

#include "ops/cli/output.h"
#include "ops/cli/state_dir.h"

namespace swax {

constexpr int kExitJobFailed = 10, kExitJobCancelled = 11;

// 0 SUCCEEDED, 10 FAILED, 11 CANCELLED; -1: it has not ended.
int exit_code_of_run(const RunInfo& run);

std::string run_summary_text(const StateDir& state, const RunInfo& run);
// Keys: schema_version, job, name, state, reason, step, total_steps, loss, validation_bpb,
// tokens_per_s, digest, attempt, restarts, checkpoint {step, committed_at}, state_dir. null: not
// known. `state` is STOPPED for a run that goes on when it is typed again.
Json run_summary_json(const StateDir& state, const RunInfo& run);
void print_run_result(const StateDir& state, const RunInfo& run, const std::string& output);

}  // namespace swax
