// The mpirun command of one attempt. Open MPI 4.1 is meant; its settings of the environment we run
// in are not taken over.
// Threads: pure functions, but for find_program and current_environment, which look at the system.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/base/status.h"

namespace swax {

struct MpirunHost {
  std::string name;
  int slots = 0;
};

struct MpirunPlan {
  std::string mpirun;                // path of the program
  std::vector<std::string> program;  // the rank's path and arguments
  int ranks = 1;
  std::string session_folder;  // session files and shared memory
  bool root = false;           // Open MPI refuses root without being told twice
  bool share_cores = false;    // more ranks than cores: waiting ranks give way
  // Several nodes, in the order of their ranks, this one first; empty: this machine only.
  std::vector<MpirunHost> hosts{};
  std::string launch_agent{};  // starts mpirun's daemon on another node: AGENT HOST COMMAND
  bool loopback = true;        // hosts only: all of them are this machine
  bool shared_host = false;    // hosts only: two of them or more are one machine
};
std::vector<std::string> mpirun_arguments(const MpirunPlan& plan);

// `inherited` without what an outer MPI or Slurm step set for itself, with `own` instead of
// variables of the same name.
std::vector<std::string> rank_environment(const std::vector<std::string>& inherited,
                                          const std::vector<std::string>& own, bool root);
std::vector<std::string> current_environment();

// Beside this program (a bundle brings its own Open MPI), then in PATH. kNotFound: nowhere.
Result<std::string> find_program(std::string_view name);

}  // namespace swax
