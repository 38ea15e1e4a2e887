// The srun command of one attempt ([resources] launcher = "srun"): one step of the Slurm job that
// the workers run in, beside their own. Slurm 22.05 or newer with its pmix plugin is meant.
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/base/status.h"
#include "proto/control.pb.h"

namespace swax {

bool starts_by_srun(const pb::StartAttempt& start);

// What Slurm tells a worker about its place; empty outside.
struct SlurmPlace {
  std::string job, node;  // SLURM_JOB_ID, SLURMD_NODENAME
  std::string nodes;      // of the job, as Slurm writes a list: n[1-3,07],m2
};
SlurmPlace slurm_place(const std::vector<std::string>& environment);

// The names of such a list, in order, at most 65,536; what is not understood stays as it is.
std::vector<std::string> slurm_hosts(std::string_view list);

// Slurm's names of the ranks' nodes, by rank. A worker is named after its node in lower case, with
// the mark of its Slurm job behind it, which all workers of one job share. kFailedPrecondition: not
// in a Slurm job, or a worker of another one: its nodes cannot be reached by a step of this one.
Result<std::vector<std::string>> srun_hosts(const pb::StartAttempt& start, const std::string& node,
                                            const SlurmPlace& place);

struct SrunPlan {
  std::string srun;                  // path of the program
  std::string job;                   // number of the Slurm job
  std::vector<std::string> command;  // of each rank
  std::vector<std::string> hosts;    // by rank, as srun_hosts gives them
  std::string session_folder;        // on each node
  bool share_cores = false;          // more ranks than cores: waiting ranks give way
};
std::vector<std::string> srun_arguments(const SrunPlan& plan);

// SWAX_STATE is the session folder until a rank has its seat (srun_rank.h): the one mark that all
// nodes know. `ranks`: as rank_environment (mpirun.h) makes it, without Slurm's variables, which
// would change what srun is asked for. Adds those that srun needs of the worker's own, and Open
// MPI's settings.
std::vector<std::string> srun_environment(const SrunPlan& plan, std::vector<std::string> ranks,
                                          const std::vector<std::string>& own);
// What the plan's hosts look like in the file that srun reads, and its path.
std::string srun_host_file(const SrunPlan& plan);
std::string srun_host_lines(const SrunPlan& plan);

}  // namespace swax
