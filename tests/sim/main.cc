// swax_sim --seed N --runs K [--trace] [--canary NAME]: seeds N .. N+K-1, each run twice with equal
// hashes. Exit 1 at the first violation, with the line that repeats it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "proto/base/text.h"
#include "tests/sim/simulation.h"

namespace swax::sim {
namespace {

struct Arguments {
  uint64_t seed = 1, runs = 1;
  bool trace = false;
  Canary canary = Canary::kNone;
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--trace") {
      a.trace = true;
      continue;
    }
    if (name == "--seed") a.seed = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "--runs") a.runs = std::strtoull(value.c_str(), nullptr, 10);
    for (size_t c = 0; name == "--canary" && c < kCanaries; ++c)
      if (value == canary_name(static_cast<Canary>(c))) a.canary = static_cast<Canary>(c);
    ++i;
  }
  return a;
}

int run(const Arguments& a) {
  const auto begin = std::chrono::steady_clock::now();
  FaultCounts counts{};
  uint64_t events = 0, attempts = 0, commits = 0, growths = 0, jobs = 0;
  int64_t rest_ms = 0;
  for (uint64_t seed = a.seed; seed < a.seed + a.runs; ++seed) {
    const RunResult r = simulate(seed, a.canary, a.trace);
    if (!r.violation.empty()) {
      std::printf("seed %llu: %s: %s\nrepeat: %s\n", static_cast<unsigned long long>(seed),
                  r.checker.c_str(), r.violation.c_str(), repeat_line(seed, a.canary).c_str());
      return 1;
    }
    if (!a.trace && simulate(seed, a.canary, false).hash != r.hash) {
      std::printf("seed %llu: two runs differ\nrepeat: %s\n", static_cast<unsigned long long>(seed),
                  repeat_line(seed, a.canary).c_str());
      return 1;
    }
    for (size_t f = 0; f < kFaults; ++f) counts[f] += r.counts[f];
    events += r.events;
    attempts += r.attempts;
    commits += r.commits;
    growths += r.growths;
    jobs += r.jobs;
    rest_ms = std::max(rest_ms, r.rest_ms);
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  for (size_t f = 0; f < kFaults; ++f)
    std::printf("%-18s %llu\n", fault_name(static_cast<Fault>(f)),
                static_cast<unsigned long long>(counts[f]));
  std::printf(
      "%llu seeds x 2, %llu events, %llu jobs, %llu attempts, %llu commits, %llu growths, at rest "
      "within %.0f s, %.1f s\n",
      static_cast<unsigned long long>(a.runs), static_cast<unsigned long long>(events),
      static_cast<unsigned long long>(jobs), static_cast<unsigned long long>(attempts),
      static_cast<unsigned long long>(commits), static_cast<unsigned long long>(growths),
      static_cast<double>(rest_ms) / 1000.0, std::chrono::duration<double>(took).count());
  return 0;
}

}  // namespace
}  // namespace swax::sim

int main(int argc, char** argv) { return swax::sim::run(swax::sim::parse(argc, argv)); }
