// How an attempt ended when its ranks left in order and mpirun says something else.
#include "tests/coordinator/agent_rig.h"

namespace swax::agent::test {
namespace {

struct LauncherCase {
  const char* name;
  const char* told;  // by rank 0
  bool stop;
  int rank_code, launcher_code;  // of both ranks; -1: unknown
  const char* result;
  const char* reason;
};
class LauncherEnds : public AgentRig, public ::testing::WithParamInterface<LauncherCase> {};

// Ranks that left in order say how it ended; only where they say nothing mpirun's code counts.
TEST_P(LauncherEnds, CountOnlyWhereTheRanksAreSilent) {
  const LauncherCase& c = GetParam();
  run("a", 1, 2);
  train_step("a", 1, 0, 10);
  if (c.stop) stop("a", 1, pb::STOP_CHECKPOINT);
  pb::RankMessage m;
  m.mutable_done()->set_outcome(c.told);
  if (std::string(c.told) != "") say("a", 1, 0, m);
  for (uint32_t rank = 0; rank < 2; ++rank) phase("a", 1, rank, "leaving");
  clear();
  for (uint32_t rank = 0; rank < 2; ++rank) close("a", 1, rank, c.rank_code);
  launcher("a", 1, c.launcher_code);
  sweep("a", 1);
  ASSERT_EQ(sent_ends().size(), 1U);
  EXPECT_EQ(sent_ends()[0].result(), c.result);
  EXPECT_EQ(sent_ends()[0].reason(), c.reason);
  EXPECT_EQ(sent_ends()[0].first_rank(), -1);
  EXPECT_EQ(sent_ends()[0].signal(), std::string(c.result) == "signal" ? 9 : 0);
}

INSTANTIATE_TEST_SUITE_P(
    Table, LauncherEnds,
    ::testing::Values(
        LauncherCase{"DoneThenOddCode", "done", false, -1, 205, "done", ""},
        LauncherCase{"DoneThenSignal", "done", false, -1, 137, "done", ""},
        LauncherCase{"DoneWithCodes", "done", false, 0, 205, "done", ""},
        LauncherCase{"LeftThenOddCode", "", true, -1, 205, "stopped", "left on request"},
        LauncherCase{"LeftForAnotherNode", "stopped", false, -1, 205, "stopped", "left on request"},
        LauncherCase{"NotFinite", "", true, -1, 93, "numeric", "loss or gradient is not finite"},
        LauncherCase{"NothingSaid", "", false, -1, 205, "launch_failed",
                     "mpirun ended with exit code 205"},
        LauncherCase{"SignalOfARank", "", false, -1, 137, "signal",
                     "a rank was killed by signal 9"}),
    [](const auto& parameters) { return std::string(parameters.param.name); });

}  // namespace
}  // namespace swax::agent::test
