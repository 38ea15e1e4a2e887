// A job as the coordinator tells of it, in the forms that the client's verbs print.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/cli/output.h"
#include "proto/control.pb.h"

namespace swax {

constexpr int kExitJobExpired = 12;
constexpr int kClientSchemaVersion = 1;

// The exit code of a job that has ended: 0 SUCCEEDED, 10 FAILED, 11 CANCELLED, 12 EXPIRED;
// -1: it has not.
int exit_code_of_job(const pb::JobStatus& job);

// "name         value" in lines of at most 80 columns; more of the value stands below its begin.
std::string text_row(const std::string& name, const std::string& value);

// What happens, why, and what to do. `last`: its newest event, or null.
std::string job_text(const pb::JobStatus& job, const pb::EventRecord* last);
// The keys of `swax run`'s object (run_result.h; state_dir is null: the state is the service's),
// then message, phase, window, priority, submitted_at, ranks, numeric_id, events, store_path.
Json job_json(const pb::JobStatus& job);

// At most 80 columns.
std::string job_table(const std::vector<pb::JobStatus>& jobs);
std::string job_line(const pb::JobStatus& job);  // one line: state, step, loss, what happens

}  // namespace swax
