// Time as an interface, so that tests and the simulator own it. SystemClock never goes back (it aborts on regression).
// Threads: SystemClock may be called from any thread.
#pragma once

#include <cstdint>

namespace swax {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t monotonic_ms() = 0;
  virtual int64_t monotonic_ns() = 0;
  virtual int64_t wall_ms() = 0;  // since 1970-01-01 UTC
};

class SystemClock final : public Clock {
 public:
  int64_t monotonic_ms() override;
  int64_t monotonic_ns() override;
  int64_t wall_ms() override;
};

// "2026-01-31T12:00:00.000Z"
struct TimeText {
  char text[32];
};
TimeText utc_text(int64_t wall_ms);

}  // namespace swax
