// The ranks that mpirun, its daemon or srun has started and that have not said hello yet. The end
// of such a rank shows nowhere but at its process, and the launcher, which sees it, first waits for
// the others to leave: until its kill timeout (mpirun's is 30 s, srun's Slurm's KillWait), as ranks
// in MPI_Init do not hear it. Threads: one.
#pragma once

#include <poll.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "worker/agent/process.h"

namespace swax {

class LaunchWatch {
 public:
  struct Dead {
    uint32_t rank = 0;
    std::optional<int> status;  // as of wait(2); none: unknown
  };
  void look(pid_t launcher, int64_t now_ms);  // finds ranks among its children, as it numbers them
  // The same for the ranks' processes; `starting`: there are some that are not yet what they will
  // be.
  void look(const std::vector<ProcessStat>& ranks, bool starting, int64_t now_ms);
  // One of `ranks` that was never seen, for 2 s and 20 looks after the newest one was: it was gone
  // before a look, or will not come.
  std::optional<uint32_t> lost(const std::set<uint32_t>& ranks, int64_t now_ms) const;
  void came(uint32_t rank);       // it has said hello: its socket tells its end
  std::vector<Dead> take_dead();  // each once
  void add_poll(std::vector<pollfd>* fds) const;

 private:
  struct Rank {
    ProcessId id;
    Fd process;
  };
  std::map<uint32_t, Rank> ranks_;
  std::set<uint32_t> known_;  // came or dead
  int64_t newest_ms_ = 0;     // when a rank was first seen; 0: none
  int looks_ = 0;             // since then
  bool starting_ = false;     // a child is not yet what it will be
};

}  // namespace swax
