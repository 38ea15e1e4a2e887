// Opens the state folder that a verb was given. Threads: pure function on the file system.
#pragma once

#include <string>

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

}  // namespace swax
