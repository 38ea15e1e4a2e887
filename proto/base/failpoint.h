// Named places where a test can end the process: SWAX_FAILPOINT("checkpoint.sst_finished").
// SWAX_FAILPOINTS="name:N[:rank=R],..." kills with SIGKILL at the N-th passage (1-based) of `name` (in rank R only).
// With SWAX_FAILPOINT_ONCE_DIR=DIR only if it can create DIR/name.N. Unarmed: one relaxed load. Never in pure cores.
#pragma once

#include <atomic>

namespace swax {

namespace internal {
extern std::atomic<bool> failpoints_armed;
void failpoint_hit(const char* name);
}  // namespace internal

// Reads SWAX_FAILPOINTS; called at the start of main, before threads. rank < 0: not a rank. A bad list: exit 2.
void failpoints_init(int rank);

}  // namespace swax

#define SWAX_FAILPOINT(name)                                                             \
  do {                                                                                   \
    if (::swax::internal::failpoints_armed.load(std::memory_order_relaxed)) [[unlikely]] \
      ::swax::internal::failpoint_hit(name);                                             \
  } while (false)
