// N ranks as threads of one process, by shared memory and a barrier. For tests, and for several
// ranks on one device. Can inject delay and failure. A rank that leaves (destroys its handle) while
// others wait makes their calls fail with kUnavailable.
//
// On a device the calls only enqueue: a rank's stream first waits for what the others' streams have
// written, copies, then waits until all have copied, so what follows the event that is returned may
// overwrite what was sent. The host threads of the ranks meet in each call; none waits for the
// device.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "worker/comm/collectives.h"

namespace swax {

struct LocalFaults {
  // Called before every collective with (rank, index of the call); may sleep; false makes the call
  // fail for everybody.
  std::function<bool(int rank, int64_t call)> before;
};
// One handle per rank; handle r is used by the thread of rank r. Handles share the group and may be
// destroyed in any order. Device calls take host memory, as the CPU backend has.
std::vector<std::unique_ptr<Collectives>> make_local_collectives(int ranks,
                                                                 LocalFaults faults = {});
// The same for ranks with backends of any kind, one a rank, which outlive the handles' use: device
// calls take streams and memory of backends[rank]. While a rank is inside a device call, the others
// may record and wait through its backend. Not under stream capture.
std::vector<std::unique_ptr<Collectives>> make_local_collectives(std::span<Backend* const> backends,
                                                                 LocalFaults faults = {});

}  // namespace swax
