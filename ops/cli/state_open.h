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

// kNotFound whatever the reason: no folder, no run in it, or bytes that are no run. Works beside a
// `swax run` that holds the folder.
Result<OpenRun> open_run(const std::string& folder);

}  // namespace swax
