// The data sets of a job's sources as a worker needs them: folders that stand in the store, texts
// that are built into it once.
// Threads: may be called from any thread.
#pragma once

#include <string>
#include <vector>

#include "proto/base/status.h"
#include "proto/job.pb.h"
#include "worker/agent/attempt_files.h"

namespace swax {

// Folders, one per source, in order; the digests are written into `spec`. A text that was built
// for the job before (known by a file in its folder) is the same data set ever after.
// kInvalidArgument, kNotFound, kDataLoss, kFailedPrecondition (another digest than the spec's) name
// the source.
Result<std::vector<std::string>> worker_data_folders(pb::JobSpec* spec, const AttemptPaths& paths);

}  // namespace swax
