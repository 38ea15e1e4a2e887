// How an attempt ended: when its ranks left in order and mpirun says something else, when ranks
// fail before or without a word; and what is told of logs that were too long.
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

class Ends : public AgentRig {
 public:
  // Two ranks are launched, none has said hello.
  void launch() {
    hear(start_message("a", 1, 2));
    give(Prepared{.job = "a", .epoch = 1, .ok = true, .retry = false, .error = {}});
    clear();
  }
  pb::AttemptEnded end(std::vector<RankFailure> failures = {}) {
    give(Swept{.job = "a", .epoch = 1, .failures = std::move(failures)});
    const auto ends = sent_ends();
    return ends.size() == 1 ? ends[0] : pb::AttemptEnded();
  }
};

// mpirun would wait half a minute for the other ranks before it ends.
TEST_F(Ends, ARankKilledBeforeItSaidHelloEndsTheAttemptAtOnce) {
  launch();
  close("a", 1, 1, -1, 9);
  EXPECT_EQ(all<Kill>().size(), 1U);
  const pb::AttemptEnded ended = end();
  EXPECT_EQ(ended.result(), "signal");
  EXPECT_EQ(ended.first_rank(), 1);
  EXPECT_EQ(ended.signal(), 9);
  EXPECT_EQ(ended.phase(), "launching");
  EXPECT_FALSE(ended.has_behind()) << "no rank ran";
}

TEST_F(Ends, ARankThatEndsBeforeItSaidHelloIsALaunchFailure) {
  for (const int code : {0, 1, 78, -1}) {
    SCOPED_TRACE(code);
    state_.attempts.clear();
    state_.accepted.clear();
    state_.outbox.clear();
    launch();
    close("a", 1, 0, code);
    EXPECT_EQ(all<Kill>().size(), 1U);
    const pb::AttemptEnded ended = end();
    EXPECT_EQ(ended.result(), "launch_failed");
    EXPECT_EQ(ended.first_rank(), 0);
    EXPECT_EQ(ended.reason(), "rank 0 ended before it reached its agent" +
                                  (code < 0 ? "" : ", exit code " + std::to_string(code)));
  }
}

TEST_F(Ends, ReasonLeftInAFileIsTakenWhereTheLineCarriedNone) {
  run("a", 1, 2);
  clear();
  close("a", 1, 1, 93);
  const pb::AttemptEnded ended = end({{.rank = 0, .text = "other"}, {.rank = 1, .text = "step 7"}});
  EXPECT_EQ(ended.result(), "numeric");
  EXPECT_EQ(ended.first_rank(), 1);
  EXPECT_EQ(ended.reason(), "step 7");
}

TEST_F(Ends, ReasonOfTheLineCounts) {
  run("a", 1);
  pb::RankMessage m;
  m.set_failure("by line");
  say("a", 1, 0, m);
  clear();
  close("a", 1, 0, 1);
  EXPECT_EQ(end({{.rank = 0, .text = "by file"}}).reason(), "by line");
}

TEST_F(Ends, FirstRankThatLeftAReasonIsBlamedWhenNobodySawOneFail) {
  launch();
  launcher("a", 1, 78);
  const pb::AttemptEnded ended = end({{.rank = 1, .text = "no agent"}, {.rank = 0, .text = "x"}});
  EXPECT_EQ(ended.result(), "launch_failed");
  EXPECT_EQ(ended.first_rank(), 1);
  EXPECT_THAT(ended.reason(), ::testing::HasSubstr("mpirun ended with exit code 78"));
  EXPECT_THAT(ended.reason(), ::testing::EndsWith("rank 1 left word: no agent"));
}

TEST_F(Ends, AnEndOnRequestHasNoFailedRank) {
  run("a", 1);
  stop("a", 1, pb::STOP_KILL);
  clear();
  const pb::AttemptEnded ended = end({{.rank = 0, .text = "agent has gone"}});
  EXPECT_EQ(ended.result(), "killed");
  EXPECT_EQ(ended.first_rank(), -1);
}

// ... and at the end, so that the last word is all of it. An older look may be told late.
TEST_F(Ends, LogsThatAreTooLongAreToldWhenTheLossHasDoubled) {
  run("a", 1);
  clear();
  for (const int64_t dropped : {100, 150, 199, 200, 300, 400, 700, 650})
    give(LogCut{.job = "a", .epoch = 1, .rank = 0, .dropped = dropped});
  give(LogCut{.job = "a", .epoch = 1, .rank = -1, .dropped = 10});
  give(LogCut{.job = "b", .epoch = 1, .rank = 0, .dropped = 10});
  stop("a", 1, pb::STOP_KILL);
  sweep("a", 1);
  std::vector<std::string> texts;
  for (const auto& r : sent_reports()) {
    if (r.has_ended()) texts.emplace_back("end");
    const std::string& text = r.event().text();
    if (r.event().kind() == "log_dropped")
      texts.push_back(text.substr(0, 6) + text.substr(text.find(" (")).substr(0, 11));
  }
  EXPECT_EQ(texts,
            (std::vector<std::string>{"rank 0 (100 bytes", "rank 0 (200 bytes", "rank 0 (400 bytes",
                                      "mpirun (10 bytes)", "rank 0 (700 bytes", "end"}));
}

// ---- srun in the place of mpirun ----

TEST_F(Ends, AMemberExpectsTheRanksOfSrunAndEndsWithThem) {
  pb::Envelope e = start_message("a", 1, 1, "n1");
  e.mutable_start_attempt()->mutable_spec()->mutable_resources()->set_launcher("srun");
  hear(e);
  EXPECT_TRUE(all<Launch>().empty());
  give(Prepared{.job = "a", .epoch = 1, .ok = true, .retry = false, .error = {}});
  EXPECT_EQ(all<Launch>().size(), 1U) << "no daemon will be asked for";
  pb::RankMessage hello;
  hello.mutable_hello()->set_rank(0);
  say("a", 1, 0, hello);
  phase("a", 1, 0, "leaving");
  EXPECT_TRUE(all<Kill>().empty());
  close("a", 1, 0, 0);
  EXPECT_EQ(all<Kill>().size(), 1U) << "there is nothing else to wait for";
  sweep("a", 1);
  EXPECT_EQ(sent_ends().at(0).result(), "done");
}

TEST_F(Ends, TheLauncherThatBroughtNoRankIsNamed) {
  pb::Envelope e = start_message("a", 1);
  e.mutable_start_attempt()->mutable_spec()->mutable_resources()->set_launcher("srun");
  hear(e);
  give(Prepared{.job = "a", .epoch = 1, .ok = true, .retry = false, .error = {}});
  launcher("a", 1, 1);
  sweep("a", 1);
  EXPECT_EQ(sent_ends().at(0).result(), "launch_failed");
  EXPECT_EQ(sent_ends().at(0).reason(), "no rank came up: srun ended with exit code 1: x");
}

}  // namespace
}  // namespace swax::agent::test
