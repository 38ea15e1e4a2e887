// Finds and ends what an earlier run left behind. Each process of an attempt carries SWAX_JOB and
// SWAX_STATE (the real path of the state folder) in its environment; whatever carries both is ours.
// Threads: pure functions on the system.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "worker/agent/process.h"

namespace swax {

struct JobMark {
  std::string job;    // SWAX_JOB; empty: any
  std::string state;  // SWAX_STATE
};

// Running processes with the mark; zombies, the caller and its ancestors are not among them.
std::vector<ProcessStat> marked_processes(const JobMark& mark);

// Waits until there are none; false: some are left after limit_ms.
bool wait_processes(const JobMark& mark, int64_t limit_ms);

// Kills them with SIGKILL and waits until they have ended, files closed. How many there were.
// kDeadlineExceeded names what is left after limit_ms. A process that is ending shows no mark any
// more: those of our names are waited for as well, but for strangers_ms only, as they may be
// another worker's.
Result<int> sweep_processes(const JobMark& mark, int64_t limit_ms, int64_t strangers_ms);

}  // namespace swax
