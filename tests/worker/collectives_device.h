// What device calls of every implementation of Collectives must do, as one function that each rank
// runs with its own backend: LocalCollectives over a simulated device and over a GPU, and
// NcclCollectives. It asserts nothing itself: the answer is the first fact that does not hold.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "worker/comm/collectives.h"

namespace swax::test {

struct DeviceContractOptions {
  int rounds = 60;
  int64_t elements_max = 3000;  // of one piece, int64
  int64_t delay_bytes = 1024;   // filled now and then, so that a rank's work comes late
};

// Empty: all facts hold on this rank. Everything of all rounds is enqueued first and looked at
// last; a buffer is poisoned as soon as the event of a call allows it, so a peer that reads early,
// or a call that is complete early, shows in the numbers.
std::string device_contract(Collectives& c, Backend& backend, const DeviceContractOptions& options);

}  // namespace swax::test
