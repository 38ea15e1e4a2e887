// Making the communicator of a group: one GPU a rank is checked, a unique id spread over the host
// calls, NCCL started without blocking, within a time limit. Internal to worker/comm. Threads: the
// rank's.
#pragma once

#include <nccl.h>

#include <memory>

#include "worker/comm/nccl_collectives.h"
#include "worker/comm/progress_board.h"

namespace swax {

// The start counts as the first call on the board.
constexpr int64_t kNcclStartCalls = 1;

struct NcclStart {
  int device = 0;
  std::unique_ptr<ProgressBoard> board;
  ncclComm_t comm = nullptr;  // the caller's
  bool copy_engines = false;  // asked for, and all ranks are on this host
};
Result<NcclStart> nccl_start(Backend& backend, Collectives& host, const NcclOptions& options);

}  // namespace swax
