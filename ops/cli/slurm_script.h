// The batch scripts of ops/slurm with the numbers of a job spec: what `swax slurm render` prints
// and `swax slurm submit` hands over. Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "proto/base/status.h"
#include "proto/job.pb.h"

namespace swax {

// The texts of ops/slurm/*.sbatch as they were built in.
extern const char* const kTrainScript;
extern const char* const kPoolScript;

struct SlurmScript {
  bool pool = false;
  std::string swax;         // path of the program on the nodes
  std::string spec_path;    // train only: absolute
  std::string state;        // train only: absolute folder that all nodes see
  std::string coordinator;  // pool only: tcp://IP:PORT
  std::string request_id;   // in the comment, by which a lost answer is found; empty: none
};

// nodes, ranks, GPUs as [resources] and [parallelism] say. Zeros are filled in.
struct SlurmShape {
  int64_t nodes = 1;  // with the spare ones
  int64_t ranks_per_node = 1, cpus_per_task = 1;
};
SlurmShape slurm_shape(const pb::JobSpec& spec);

// kInvalidArgument names the field: a value that no header line can hold, or too few nodes for the
// ranks.
Result<std::string> render_script(const SlurmScript& script, const pb::JobSpec& spec);

std::string slurm_comment(const std::string& request_id);  // "swax:ID"

}  // namespace swax
