// One seed from begin to end: two hours with faults, then without; everything must come to rest.
#pragma once

#include <string>

#include "tests/sim/world.h"

namespace swax::sim {

constexpr int64_t kSafetyMs = 2 * 3600 * 1000;  // with faults
constexpr int64_t kLivenessMs = 600 * 1000;     // then everything must end within

struct RunResult {
  uint64_t hash = 0;
  FaultCounts counts{};
  std::string checker, violation;  // empty: all held
  uint64_t events = 0, attempts = 0, commits = 0, growths = 0, jobs = 0;
  int64_t rest_ms = 0;  // faults off -> at rest
};
RunResult simulate(uint64_t seed, Canary canary, bool trace);

// The command that repeats a run.
std::string repeat_line(uint64_t seed, Canary canary);
const char* canary_name(Canary canary);

}  // namespace swax::sim
