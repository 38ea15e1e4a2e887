#include "proto/base/clock.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "proto/base/check.h"

namespace swax {
namespace {

int64_t read_ns(clockid_t id) {
  timespec t{};
  SWAX_CHECK(clock_gettime(id, &t) == 0);
  return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

void put_digits(char* at, int64_t value, int digits) {
  for (int i = digits - 1; i >= 0; --i, value /= 10) at[i] = static_cast<char>('0' + value % 10);
}

}  // namespace

// The newest reading of any thread is loaded before the clock is read, so a smaller reading is a
// regression of the kernel's clock and not a race of two threads.
int64_t SystemClock::monotonic_ns() {
  static std::atomic<int64_t> newest{0};
  int64_t seen = newest.load(std::memory_order_acquire);
  const int64_t now = read_ns(CLOCK_MONOTONIC);
  SWAX_CHECK(now >= seen);
  while (seen < now && !newest.compare_exchange_weak(seen, now, std::memory_order_acq_rel)) {
  }
  return now;
}

int64_t SystemClock::monotonic_ms() { return monotonic_ns() / 1'000'000; }

// The operator may set the wall clock back; it is for people, never for durations.
int64_t SystemClock::wall_ms() { return read_ns(CLOCK_REALTIME) / 1'000'000; }

TimeText utc_text(int64_t wall_ms) {
  constexpr int64_t kDayMs = 86'400'000;
  // Years 0000 to 9999: the text has four digits for them.
  wall_ms = std::clamp(wall_ms, int64_t{-62'167'219'200'000}, int64_t{253'402'300'799'999});
  // Day count from 0000-03-01, which puts the leap day at the end of a year; eras have 400 years.
  const int64_t shifted = wall_ms + 719'468 * kDayMs;
  const int64_t days = (shifted >= 0 ? shifted : shifted - (kDayMs - 1)) / kDayMs;
  const int64_t ms = shifted - days * kDayMs;
  const int64_t era = (days >= 0 ? days : days - 146'096) / 146'097;
  const int64_t day_of_era = days - era * 146'097;
  const int64_t year_of_era =
      (day_of_era - day_of_era / 1'460 + day_of_era / 36'524 - day_of_era / 146'096) / 365;
  const int64_t day_of_year =
      day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t march_month = (5 * day_of_year + 2) / 153;
  const int64_t month = march_month < 10 ? march_month + 3 : march_month - 9;
  TimeText out{"0000-00-00T00:00:00.000Z"};
  put_digits(out.text, year_of_era + era * 400 + (month <= 2 ? 1 : 0), 4);
  put_digits(out.text + 5, month, 2);
  put_digits(out.text + 8, day_of_year - (153 * march_month + 2) / 5 + 1, 2);
  put_digits(out.text + 11, ms / 3'600'000, 2);
  put_digits(out.text + 14, ms / 60'000 % 60, 2);
  put_digits(out.text + 17, ms / 1'000 % 60, 2);
  put_digits(out.text + 20, ms % 1'000, 3);
  return out;
}

}  // namespace swax
