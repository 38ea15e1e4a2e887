// Collectives over NCCL: one rank, one GPU. Device calls go over NCCL on the caller's stream, host
// calls go to `host`, the group that started the ranks (MPI; threads in tests). NVLink multicast
// (NVLS) is switched off. Threads: as Collectives; a watchdog thread of its own looks after the
// device calls.
//
// What ends the group: an error of NCCL, abort() here or in another rank of this host, a call that
// this rank's stream has reached and that is not complete after call_ms_max, a host call that is
// not complete after call_ms_max (the first device call starts that: what comes before may take its
// time; `host` is aborted, too). The communicator is aborted then, so streams run empty, with
// results that mean nothing: every later call, also of the host, answers kUnavailable with the
// reason, which names the late ranks where they are on this host. A stream that waits for a copy
// engine's call cannot be called back: with copy engines the log gets the reason and `host` is
// aborted, which ends the process. Calls must not be captured into graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "worker/comm/collectives.h"

namespace swax {

struct NcclOptions {
  int64_t init_ms_max = 120'000;
  int64_t call_ms_max = 120'000;
  int max_ctas = 0;  // thread blocks that a call may take from the model; 0: NCCL's choice
  // Ranks that are all on one host move data by copy engines where they can, which takes no thread
  // blocks; ranks of several hosts as without. Needs ranks that are processes, whose host group
  // ends them in abort().
  bool copy_engines = false;
};

// Every rank calls it. The communicator is made on the device of `backend`; backend and host
// outlive the result. kFailedPrecondition: two ranks share a GPU, or NCCL cannot start here;
// kDeadlineExceeded: not all ranks came within init_ms_max.
Result<std::unique_ptr<Collectives>> make_nccl_collectives(Backend& backend, Collectives& host,
                                                           const NcclOptions& options = {});

// "2.28.9", of the library that is loaded.
std::string nccl_version();

}  // namespace swax
