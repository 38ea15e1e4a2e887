// `swax run`: trains one job on this machine. It is the service in one process: a coordinator and a
// worker that talk over loopback, with one job and all their state in one folder. Typed again it
// goes on; it ends with the job's exit code.
//   0 SUCCEEDED · 2 the spec or an input is wrong, or it does not fit into memory · 4 the state
//   folder belongs to another spec or to a `swax run` that works right now · 10 FAILED · 1 internal
//   · 130, 143 stopped by SIGINT, SIGTERM: checkpointed and left; typed again it goes on.
// The first signal asks the ranks to checkpoint and leave, the second one kills them.
// stdout carries the result only (text, or with output "json" one object as the last line); stderr
// carries progress and events.
// Threads: call from the main thread, before other threads exist: it sets the signal mask.
#pragma once

#include <string>
#include <vector>

#include "jobs/spec.h"

namespace swax {

struct RunArgs {
  std::string spec_path;                // "job.toml"
  std::vector<SpecOverride> overrides;  // --set and --ranks, in order
  std::string state_dir;                // empty: ./runs/NAME
  std::string output = "text";          // "text" or "json"
  bool terminal = false;                // stderr is a terminal: progress is one redrawn line
};

// The exit code of the process.
int verb_run(const RunArgs& args);

}  // namespace swax
