// Invariants of our own code. On in every build; never for user input, peers or disk (those are Status).
#pragma once

#include <cstdio>
#include <cstdlib>

namespace swax {
[[noreturn]] inline void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}
}  // namespace swax

// One condition per check.
#define SWAX_CHECK(cond) \
  do {                   \
    if (!(cond)) [[unlikely]] ::swax::check_failed(__FILE__, __LINE__, #cond); \
  } while (false)

// Only inside hot loops: off in Release.
#ifdef NDEBUG
#define SWAX_DCHECK(cond) \
  do {                    \
  } while (false)
#else
#define SWAX_DCHECK(cond) SWAX_CHECK(cond)
#endif
