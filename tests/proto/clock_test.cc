// Goal: the monotonic clock never goes back between threads; UTC text is right at the edges of the
// calendar. Method: four threads share one maximum; fixed instants against `date -u`.
#include "proto/base/clock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace swax {
namespace {

TEST(SystemClock, NeverGoesBackBetweenThreads) {
  std::atomic<int64_t> newest{0};
  std::atomic<int> backward{0};
  const auto work = [&] {
    SystemClock clock;
    for (int i = 0; i < 20'000; ++i) {
      const int64_t seen = newest.load();
      const int64_t now = clock.monotonic_ns();
      if (now < seen) backward.fetch_add(1);
      int64_t old = seen;
      while (old < now && !newest.compare_exchange_weak(old, now)) {
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(backward.load(), 0);
}

TEST(SystemClock, UnitsAgree) {
  SystemClock clock;
  const int64_t before_ns = clock.monotonic_ns();
  const int64_t ms = clock.monotonic_ms();
  const int64_t after_ns = clock.monotonic_ns();
  EXPECT_GE(ms, before_ns / 1'000'000);
  EXPECT_LE(ms, after_ns / 1'000'000);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(clock.monotonic_ms() - ms, 19);
  using std::chrono::duration_cast;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  EXPECT_GE(clock.wall_ms(), duration_cast<std::chrono::milliseconds>(now).count());
}

TEST(UtcText, EdgesOfTheCalendar) {
  const auto text = [](int64_t ms) { return std::string(utc_text(ms).text); };
  EXPECT_EQ(text(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(text(-1), "1969-12-31T23:59:59.999Z");
  EXPECT_EQ(text(951'782'399'999), "2000-02-28T23:59:59.999Z");
  EXPECT_EQ(text(951'782'400'000), "2000-02-29T00:00:00.000Z");
  EXPECT_EQ(text(951'868'800'000), "2000-03-01T00:00:00.000Z");
  EXPECT_EQ(text(1'709'164'800'123), "2024-02-29T00:00:00.123Z");
  EXPECT_EQ(text(4'107'542'399'000), "2100-02-28T23:59:59.000Z");
  EXPECT_EQ(text(4'107'542'400'000), "2100-03-01T00:00:00.000Z");
  EXPECT_EQ(text(1'798'711'871'042), "2026-12-31T10:11:11.042Z");
  EXPECT_EQ(text(253'402'300'799'999), "9999-12-31T23:59:59.999Z");
  EXPECT_EQ(text(INT64_MAX), "9999-12-31T23:59:59.999Z");
  EXPECT_EQ(text(INT64_MIN), "0000-01-01T00:00:00.000Z");
}

// Every day of 800 years: the next text is larger, and ends on the same clock time.
TEST(UtcText, DaysAreOrdered) {
  std::string before;
  for (int64_t day = -146'097; day < 146'097; ++day) {
    const std::string now = utc_text(day * 86'400'000).text;
    ASSERT_LT(before, now);
    ASSERT_EQ(now.substr(10), "T00:00:00.000Z");
    before = now;
  }
  EXPECT_EQ(before, "2369-12-31T00:00:00.000Z");
}

}  // namespace
}  // namespace swax
