// Which Collectives move a rank's device memory. Threads: the rank's.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"
#include "worker/comm/collectives.h"

namespace swax {

// Every rank calls it, after its backend is open; both outlive the result. Null where `host` itself
// reads the backend's memory (CPU). On a GPU: NCCL between the ranks of `host`, or the backend's
// own copies for a single rank; host calls go to `host` as before. kFailedPrecondition without NCCL
// in this build, or as make_nccl_collectives. In the environment: SWAX_COMM_LIMIT_MS is the limit
// of one call (1000..3600000; default 120000); SWAX_COMM_COPY_ENGINES=0 moves data
// by thread blocks also between ranks of one host (NcclOptions; default 1).
Result<std::unique_ptr<Collectives>> make_device_collectives(Backend& backend, Collectives& host);

// "NCCL 2.28.9", or that this build has none.
std::string device_collectives_text();

}  // namespace swax
