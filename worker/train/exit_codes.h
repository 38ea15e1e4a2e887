// How a rank ends: what the node agent reads from its exit status.
#pragma once

namespace swax {

constexpr int kExitInternal = 1;
constexpr int kExitRetry = 75;    // storage or peers: another attempt may do better
constexpr int kExitConfig = 78;   // spec or data: none does
constexpr int kExitNumeric = 93;  // non-finite loss
constexpr int kExitStopped = 99;  // saved and left on request

}  // namespace swax
