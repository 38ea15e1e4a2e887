// Between srun and a rank (`swax srun-rank FOLDER PROGRAM...`). All ranks of a step get one
// environment, that of the lead; what differs from node to node is taken from a file that the
// node's agent has put into the session folder, and then the program takes this one's place.
// Without that file no rank begins: the agent writes it once it expects ranks and removes it
// before it sweeps. Threads: blocks its thread; the other functions are on the file system.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "proto/base/status.h"

namespace swax {

struct RankSeat {
  std::string worker, state, socket_folder;  // SWAX_WORKER, SWAX_STATE, SWAX_AGENT_DIR
  size_t ranks = 0;                          // of this node
};
// For the ranks that Slurm starts on `host`; the seat is bound to the calling process's life.
Status write_rank_seat(const std::string& folder, const std::string& host, const RankSeat& seat);
Status remove_rank_seat(const std::string& folder, const std::string& host);

// Returns only when it fails, with 255: no file within two minutes, no such program, or the agent
// has gone. The program finds the seat in its environment, SWAX_RANKS_HERE, and in SWAX_AGENT_FD a
// descriptor that polls readable when the agent has ended.
int run_srun_rank(const std::string& folder, const std::vector<std::string>& command);

}  // namespace swax
