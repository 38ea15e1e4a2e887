// A job spec from a file and the command line: reads it, applies --set and --ranks, prints every
// problem on stderr, one a line. Creates nothing. Threads: one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "jobs/spec.h"
#include "ops/cli/args.h"

namespace swax {

// The text of a regular file of at most kSpecBytesMax bytes. kInvalidArgument with the path for
// everything else: missing, unreadable, a folder, a pipe, a device, too large. Never waits and
// never reads more than the limit.
Result<std::string> read_spec_text(const std::string& path);

// The verb's --set in order, then --ranks. kInvalidArgument: "--set x: must be KEY=VALUE".
Result<std::vector<SpecOverride>> spec_overrides(const Args& args);

// A look at what is outside of a spec that has no other problem. Problems come with their field;
// where it stands is filled in.
using SpecCheck = std::function<std::vector<SpecProblem>(const pb::JobSpec& spec)>;

// The resolved spec, or nothing after the problems were printed: then the exit code is kExitUsage.
// Warnings are printed too. `check` may be empty.
std::optional<pb::JobSpec> load_spec_file(const std::string& path,
                                          const std::vector<SpecOverride>& overrides,
                                          const SpecCheck& check = {});

}  // namespace swax
