// The same over Open MPI, for CPU ranks. MPI is initialised once per process (MPI_THREAD_FUNNELED)
// and used from that thread only. After MPI_Init the world size must equal `expected_ranks`
// (kFailedPrecondition otherwise, naming both). Errors of MPI end the job through MPI_Abort: Open
// MPI 4.1 cannot go on after a dead peer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "worker/comm/collectives.h"

namespace swax {

// Pieces above `piece_limit` bytes (an MPI count is an int) travel as one element of a derived
// type; tests lower it. `on_abort`: called with the reason by the rank that ends the group, before
// its process ends, in whatever thread that is.
Result<std::unique_ptr<Collectives>> init_mpi_collectives(
    int expected_ranks, int64_t piece_limit = INT32_MAX,
    std::function<void(std::string_view reason)> on_abort = {});
// "Open MPI v4.1.4", of the library that is loaded; MPI need not be initialised.
std::string mpi_version();
void finalize_mpi();  // after a clean end; a failed run leaves by _exit or abort() instead

}  // namespace swax
