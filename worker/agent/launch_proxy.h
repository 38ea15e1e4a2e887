// mpirun's launch agent (`swax launch-proxy HOST COMMAND...`): runs nothing itself, but asks the
// agent that started mpirun to have the command run by HOST's agent, and ends as that command ends.
// Threads: blocks its thread.
#pragma once

#include <string>
#include <vector>

namespace swax {

// The exit code of the command; 255 when it could not be asked for. Reads SWAX_AGENT_DIR,
// SWAX_WORKER, SWAX_JOB and SWAX_EPOCH.
int run_launch_proxy(const std::string& host, const std::vector<std::string>& command);

}  // namespace swax
