// N ranks as threads of one process, by shared memory and a barrier. For tests, and for several
// ranks on one device. Can inject delay and failure. A rank that leaves (destroys its handle) while
// others wait makes their calls fail with kUnavailable.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "worker/comm/collectives.h"

namespace swax {

struct LocalFaults {
  // Called before every collective with (rank, index of the call); may sleep; false makes the call
  // fail for everybody.
  std::function<bool(int rank, int64_t call)> before;
};
// One handle per rank; handle r is used by the thread of rank r. Handles share the group and may be
// destroyed in any order.
std::vector<std::unique_ptr<Collectives>> make_local_collectives(int ranks,
                                                                 LocalFaults faults = {});

}  // namespace swax
