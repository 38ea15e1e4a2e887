// Goal: the budget of restarts. Method: the pure rule on counters, one end of an attempt after the
// other.
#include <gtest/gtest.h>

#include "ops/cli/run_budget.h"

namespace swax {
namespace {

pb::RunRecord run_with(uint32_t max_restarts, uint32_t max_no_progress) {
  pb::RunRecord run;
  run.mutable_spec()->mutable_fault_tolerance()->set_max_restarts(max_restarts);
  run.mutable_spec()->mutable_fault_tolerance()->set_max_no_progress(max_no_progress);
  return run;
}

TEST(RunBudget, RestartsAtOnceAfterASignal) {
  pb::RunRecord run = run_with(20, 1);
  for (int i = 0; i < 20; ++i) {
    const BudgetVerdict verdict = count_attempt({.kind = GangEnd::Kind::kSignal}, &run);
    EXPECT_TRUE(verdict.again) << i;
    EXPECT_EQ(verdict.wait_ms, 0);
  }
  EXPECT_EQ(run.no_progress(), 0U);
  EXPECT_EQ(run.restarts_since_commit(), 20U);
}

TEST(RunBudget, EndsAfterMaxRestartsSinceTheLastCommit) {
  pb::RunRecord run = run_with(2, 3);
  const AttemptFacts killed{.kind = GangEnd::Kind::kSignal, .progressed = true};
  EXPECT_TRUE(count_attempt(killed, &run).again);
  EXPECT_TRUE(count_attempt(killed, &run).again);
  const BudgetVerdict verdict = count_attempt(killed, &run);
  EXPECT_FALSE(verdict.again);
  EXPECT_NE(verdict.exhausted.find("max_restarts=2"), std::string::npos) << verdict.exhausted;
  run.set_restarts_since_commit(0);  // what a commit does
  EXPECT_TRUE(count_attempt(killed, &run).again);
}

TEST(RunBudget, NeverRestartsWithAMaximumOfZero) {
  pb::RunRecord run = run_with(0, 3);
  EXPECT_FALSE(count_attempt({.kind = GangEnd::Kind::kSignal}, &run).again);
}

TEST(RunBudget, EndsAfterAttemptsWithoutProgressOfTheirOwn) {
  pb::RunRecord run = run_with(20, 3);
  const AttemptFacts own{.kind = GangEnd::Kind::kExit};
  EXPECT_EQ(count_attempt(own, &run).wait_ms, 1000);
  EXPECT_EQ(count_attempt(own, &run).wait_ms, 2000);
  const BudgetVerdict verdict = count_attempt(own, &run);
  EXPECT_FALSE(verdict.again);
  EXPECT_NE(verdict.exhausted.find("max_no_progress=3"), std::string::npos) << verdict.exhausted;
}

TEST(RunBudget, ProgressClearsTheCountAndShortensTheWait) {
  pb::RunRecord run = run_with(20, 3);
  count_attempt({.kind = GangEnd::Kind::kExit}, &run);
  count_attempt({.kind = GangEnd::Kind::kExit}, &run);
  const BudgetVerdict verdict =
      count_attempt({.kind = GangEnd::Kind::kExit, .progressed = true}, &run);
  EXPECT_TRUE(verdict.again);
  EXPECT_EQ(verdict.wait_ms, 1000);
  EXPECT_EQ(run.no_progress(), 0U);
}

TEST(RunBudget, CountsAHangWhateverEndedIt) {
  pb::RunRecord run = run_with(20, 1);
  EXPECT_FALSE(count_attempt({.kind = GangEnd::Kind::kStopped, .hang = true}, &run).again);
  run = run_with(20, 1);
  EXPECT_FALSE(count_attempt({.kind = GangEnd::Kind::kLaunch}, &run).again);
}

TEST(RunBudget, WaitsAtMostAMinute) {
  pb::RunRecord run = run_with(1000, 1000);
  BudgetVerdict verdict;
  for (int i = 0; i < 100; ++i) verdict = count_attempt({.kind = GangEnd::Kind::kExit}, &run);
  EXPECT_EQ(verdict.wait_ms, 60'000);
}

}  // namespace
}  // namespace swax
