// What a rank learns from whoever started it: mpirun (OMPI_COMM_WORLD_*), or srun with its pmix
// plugin and the agent's `srun-rank` (PMIX_RANK, SLURM_LOCALID, SWAX_RANKS_HERE, SWAX_AGENT_FD).
// Its number and the size of the world are MPI's; nothing here replaces them.
// Threads: call from the main thread, before others read the environment.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "proto/base/status.h"

namespace swax {

struct LocalRank {  // among the ranks of this node
  int64_t rank = 0, size = 1;
};
LocalRank local_rank();

// kFailedPrecondition: the launcher gave this process another number than MPI did; names both.
Status check_rank_number(int rank);

// The launcher's death must take this rank along; a parent that died before the call counts as
// dead: false.
bool die_with_parent(pid_t parent_at_start);

// Below srun the agent is no ancestor: from now on its end ends this process (exit 75), also while
// it waits in MPI_Init. Does nothing below mpirun.
void die_with_agent();

}  // namespace swax
