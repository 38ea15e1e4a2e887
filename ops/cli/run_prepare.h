// What must be known before ranks start: the data sets of the spec's sources, and whether the ranks
// fit into memory.
// Threads: one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/cli/state_dir.h"
#include "proto/base/status.h"
#include "proto/job.pb.h"

namespace swax {

// Builds what a source's text asks for (once; `recorded` says what the state's run built before),
// reads manifests, makes paths absolute and writes the digests into `spec`. Says on stderr when no
// held-out text is long enough for validation. kInvalidArgument, kNotFound, kDataLoss name the
// field; all are the user's to mend (exit code 2). progress: bytes of text read so far.
Status prepare_data(const StateDir& state, const pb::JobSpec* recorded, pb::JobSpec* spec,
                    const std::function<void(const std::string& source, int64_t bytes)>& progress);

// Memory that processes may still take: MemAvailable, less where the control group allows less.
// kNotFound: the system does not say.
Result<int64_t> available_memory();

// kResourceExhausted with the numbers and the nearest setting that fits. available_bytes: what all
// ranks together may take.
Status check_memory(const pb::JobSpec& spec, int64_t available_bytes);

// check_memory with what the system has; ok where it does not say.
Status check_fit(const pb::JobSpec& spec);
// Says on stderr what is wrong with an input; the exit code.
int fail_input(const Status& status);

}  // namespace swax
