#include "tests/bench/step_times.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "proto/base/clock.h"
#include "tests/bench/step_ways.h"

namespace swax::test {
namespace {

constexpr int kSlots = static_cast<int>(Way::kSlots);

double seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

void StepTimes::step(int64_t number, int64_t window, int way, double loss) {
  const int64_t now_ns = SystemClock().monotonic_ns();
  if (last_ns_ > 0) {
    steps_.push_back({number, window, way, last_ns_, now_ns});
    std::printf("step %lld window %lld %s loss %.6f %.1f ms\n", static_cast<long long>(number),
                static_cast<long long>(window), kWayNames[way], loss,
                seconds(now_ns - last_ns_) * 1e3);
    std::fflush(stdout);
  }
  last_ns_ = now_ns;
}

void StepTimes::committed(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  committed_ns_[number] = SystemClock().monotonic_ns();
}

// The save of a step begins at the end of that step.
bool StepTimes::under_save(const Step& step) const {
  for (const auto& [number, end_ns] : committed_ns_)
    if (step.number > number && step.begin_ns < end_ns) return true;
  return false;
}

double StepTimes::median_s(int64_t settle, int64_t window, int way, size_t* count) const {
  std::vector<int64_t> times;
  for (const Step& s : steps_)
    if (s.number > settle && s.window == window && s.way == way && !under_save(s))
      times.push_back(s.end_ns - s.begin_ns);
  if (count != nullptr) *count = times.size();
  if (times.empty()) return 0.0;
  std::sort(times.begin(), times.end());
  return seconds(times[times.size() / 2]);
}

void StepTimes::print(int64_t settle, int ranks, int64_t tokens) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::set<int64_t> windows;
  for (const Step& s : steps_) windows.insert(s.window);
  for (const int64_t window : windows) {
    double by_way[3] = {};
    for (int way = 0; way < 3; ++way) {
      size_t count = 0;
      const double s = by_way[way] = median_s(settle, window, way, &count);
      if (count == 0) continue;
      const double rate = static_cast<double>(tokens) / s;
      std::printf("window %lld, %s: %.2f ms a step (median of %zu), %.0f tokens/s, %.0f a GPU\n",
                  static_cast<long long>(window), kWayNames[way], s * 1e3, count, rate,
                  rate / ranks);
    }
    const double slots = by_way[kSlots];
    const double nothing = by_way[static_cast<int>(Way::kNothing)];
    const double reduced = by_way[static_cast<int>(Way::kReduceScatter)];
    if (slots == 0.0 || nothing == 0.0 || reduced == 0.0) continue;
    std::printf(
        "window %lld: exposed communication %.2f %% of the step (%.2f ms); with reduce-scatter "
        "%.2f %%; step %.3f of that with reduce-scatter\n",
        static_cast<long long>(window), 100.0 * (slots - nothing) / slots, (slots - nothing) * 1e3,
        100.0 * (reduced - nothing) / reduced, slots / reduced);
  }
}

void StepTimes::print_saves(int64_t settle, int64_t tokens) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [number, end_ns] : committed_ns_) {
    int64_t begin_ns = 0, steps = 0;
    double longest = 0.0, taken = 0.0, undisturbed = 0.0, more = 0.0;
    for (const Step& s : steps_) {
      if (s.number == number) begin_ns = s.end_ns;
      if (s.number <= number || s.begin_ns >= end_ns) continue;
      const double usual = median_s(settle, s.window, s.way);
      const double time = seconds(s.end_ns - s.begin_ns);
      if (usual == 0.0) continue;
      ++steps;
      longest = std::max(longest, time - usual);
      taken += time;
      undisturbed += usual;
      more += std::max(0.0, time - usual);
    }
    std::printf("save of step %lld: committed after %.2f s", static_cast<long long>(number),
                seconds(end_ns - begin_ns));
    if (steps > 0) {
      std::printf(
          ", %lld steps meanwhile: the slowest %.1f ms above the median, all together %.1f ms; "
          "%.0f tokens/s, %.1f %% of the rate without a save",
          static_cast<long long>(steps), longest * 1e3, more * 1e3,
          static_cast<double>(tokens * steps) / taken, 100.0 * undisturbed / taken);
    }
    std::printf("\n");
  }
}

}  // namespace swax::test
