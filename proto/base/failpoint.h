// Named places where a test can end the process: SWAX_FAILPOINT("checkpoint.sst_finished").
// SWAX_FAILPOINTS="name:N[:rank=R]" kills the process with SIGKILL at the N-th passage (1-based) of `name` (in rank R only).
// Without the variable a passage costs one relaxed load. Allowed in shells and storage, never in pure cores.
#pragma once

#include <atomic>

namespace swax {

namespace internal {
extern std::atomic<bool> failpoints_armed;
void failpoint_hit(const char* name);
}  // namespace internal

// Reads SWAX_FAILPOINTS; called once at the start of main. rank < 0: not a rank.
void failpoints_init(int rank);

}  // namespace swax

#define SWAX_FAILPOINT(name)                                                             \
  do {                                                                                   \
    if (::swax::internal::failpoints_armed.load(std::memory_order_relaxed)) [[unlikely]] \
      ::swax::internal::failpoint_hit(name);                                             \
  } while (false)
