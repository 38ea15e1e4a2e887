// Opens the state folder that a verb was given. Threads: pure functions on the file system.
#pragma once

#include <string>

#include "ops/cli/args.h"
#include "ops/cli/state_dir.h"
#include "proto/base/status.h"

namespace swax {

struct OpenRun {
  StateDir state;
  RunView view;
};

// kNotFound: no folder, or no run in it; kDataLoss: bytes that are no run. Of a run that is held it
// says on stderr which record cannot be read. Works beside a `swax run` that holds the folder.
Result<OpenRun> open_run(const std::string& folder);

// The same for verbs that know jobs of a service too: --state is the folder of a run or of a
// coordinator, --job and --store as below. kInvalidArgument: which of several jobs is not said.
Result<OpenRun> open_job(const Args& args);
OptionSpec service_job_option();
OptionSpec service_store_option();

}  // namespace swax
