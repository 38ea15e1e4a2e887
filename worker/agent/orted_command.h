// What mpirun asks its launch agent to run on another node: the command line of its daemon, orted.
// It is taken apart here and started without a shell, so that nothing else can be asked for.
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/base/status.h"

namespace swax {

// The words behind `orted`. What mpirun writes around it (PATH=...; export PATH; ..., a subshell)
// is left out: the daemon runs in the environment of this node's agent. Quotes and backslashes are
// read as a shell would. kInvalidArgument: no orted, or anything that a shell would do more with.
Result<std::vector<std::string>> orted_arguments(std::string_view command);

}  // namespace swax
