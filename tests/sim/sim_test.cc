// The cores hold their invariants over many worlds, every fault strikes often, every world ends the
// same way twice, and bugs planted on purpose are found by the checker that is there for them.
// Short form: 40 seeds; SWAX_TEST_FULL=1: 200.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/sim/simulation.h"

namespace swax::sim {
namespace {

constexpr uint64_t kStrikesMin = 50, kGrowthsMin = 20, kCanarySeeds = 200;
constexpr double kSecondsOf200 = 180;  // printed beside what it took, never asserted

uint64_t seeds() {
  const char* full = std::getenv("SWAX_TEST_FULL");
  return full != nullptr && std::string(full) == "1" ? 200 : 40;
}

TEST(Simulation, HoldsEveryInvariantAndRepeatsItself) {
  const auto begin = std::chrono::steady_clock::now();
  FaultCounts counts{};
  uint64_t jobs = 0, attempts = 0, commits = 0, growths = 0;
  int64_t rest_ms = 0;
  for (uint64_t seed = 1; seed <= seeds(); ++seed) {
    const RunResult first = simulate(seed, Canary::kNone, false);
    ASSERT_EQ(first.checker, "") << first.violation
                                 << "\nrepeat: " << repeat_line(seed, Canary::kNone);
    const RunResult second = simulate(seed, Canary::kNone, false);
    ASSERT_EQ(first.hash, second.hash)
        << "two runs differ, repeat: " << repeat_line(seed, Canary::kNone);
    for (size_t f = 0; f < kFaults; ++f) counts[f] += first.counts[f];
    jobs += first.jobs;
    attempts += first.attempts;
    commits += first.commits;
    growths += first.growths;
    rest_ms = std::max(rest_ms, first.rest_ms);
  }
  for (size_t f = 0; f < kFaults; ++f) {
    std::printf("%-18s %llu\n", fault_name(static_cast<Fault>(f)),
                static_cast<unsigned long long>(counts[f]));
    EXPECT_GE(counts[f], kStrikesMin) << fault_name(static_cast<Fault>(f));
  }
  EXPECT_GE(growths, kGrowthsMin) << "attempts that left for more ranks";
  std::printf("%llu jobs, %llu attempts, %llu commits, %llu growths, at rest within %lld s\n",
              static_cast<unsigned long long>(jobs), static_cast<unsigned long long>(attempts),
              static_cast<unsigned long long>(commits), static_cast<unsigned long long>(growths),
              static_cast<long long>(rest_ms / 1000));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("%llu seeds x 2 in %.1f s; on an idle machine %.0f s are allowed for them\n",
              static_cast<unsigned long long>(seeds()), took.count(),
              kSecondsOf200 * static_cast<double>(seeds()) / 200.0);
}

TEST(Simulation, DifferentSeedsAreDifferentWorlds) {
  EXPECT_NE(simulate(1, Canary::kNone, false).hash, simulate(2, Canary::kNone, false).hash);
}

struct Planted {
  Canary canary;
  const char* checker;
};
void PrintTo(const Planted& planted, std::ostream* out) {
  *out << canary_name(planted.canary) << " by " << planted.checker;
}
class CanaryTest : public ::testing::TestWithParam<Planted> {};

// Another checker may see its traces first in some seed.
TEST_P(CanaryTest, IsFoundByItsChecker) {
  for (uint64_t seed = 1; seed <= kCanarySeeds; ++seed) {
    const RunResult r = simulate(seed, GetParam().canary, false);
    if (r.checker.empty()) continue;
    std::printf("seed %llu: %s: %s\n", static_cast<unsigned long long>(seed), r.checker.c_str(),
                r.violation.c_str());
    if (r.checker == GetParam().checker) return;
  }
  ADD_FAILURE() << "not found by " << GetParam().checker << " within " << kCanarySeeds << " seeds";
}

INSTANTIATE_TEST_SUITE_P(Planted, CanaryTest,
                         ::testing::Values(Planted{Canary::kSendBeforeSync, "submit_kept"},
                                           Planted{Canary::kOldEpochAccepted, "old_epoch_refused"},
                                           Planted{Canary::kCommitRankMissing, "commit_complete"},
                                           Planted{Canary::kCommandNotRepeated, "calm"},
                                           Planted{Canary::kRetentionBeforeCommit, "retention"},
                                           Planted{Canary::kBudgetResetByHello, "budget"},
                                           Planted{Canary::kAgentNotSynced, "old_epoch_refused"}),
                         [](const ::testing::TestParamInfo<Planted>& planted) {
                           return std::string(canary_name(planted.param.canary));
                         });

}  // namespace
}  // namespace swax::sim
