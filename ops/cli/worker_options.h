// What an agent of this machine needs beside its name and place: programs, build, data sets.
// Threads: may be called from any thread; reads the environment.
#pragma once

#include <cstdint>
#include <string>

#include "proto/base/status.h"
#include "worker/agent/agent.h"

namespace swax {

struct WorkerPlace {
  std::string node, state, coordinator;
  uint32_t slots = 1;
};

// swax-train is the one beside this program. SWAX_TEST_AGENT_TIMES ("train_floor_ms=500,...") gives
// tests shorter patience. kNotFound: no swax-train or mpirun; kInvalidArgument: the variable.
Result<AgentOptions> worker_options(const WorkerPlace& place);

}  // namespace swax
