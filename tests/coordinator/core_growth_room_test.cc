// A job that leaves for more ranks: for whom its room is kept, what may come between, and what
// comes of it.
#include "tests/coordinator/growth_rig.h"

namespace swax::coord::test {
namespace {

using ::testing::HasSubstr;

TEST_F(GrowBack, ItsRoomIsKeptFromYoungerJobs) {
  run_on_one();
  join(1, 1);
  live(2, 12'000);
  ASSERT_TRUE(leaving("a"));
  ASSERT_EQ(submit(small_spec("young", 1)).code(), 0);
  live(2, 2'000);
  EXPECT_FALSE(job("young").attempt_live) << "while it leaves";
  report(0, {ended("a", "stopped", 10)});
  pass(200);
  EXPECT_FALSE(job("a").attempt_live) << "node-0 has not said yet that its slot is free";
  EXPECT_FALSE(job("young").attempt_live) << "nor now";
  beat(0);
  beat(1);
  pass(200);
  EXPECT_EQ(job("a").ranks.size(), 2U);
  EXPECT_FALSE(job("young").attempt_live);
  join(2, 1);
  pass(200);
  EXPECT_TRUE(job("young").attempt_live) << "nothing more is kept";
}

TEST_F(GrowBack, AJobThatComesFirstTakesTheRoomAndFewerRanksDo) {
  run_on_one();
  join(1, 1);
  live(2, 12'000);
  ASSERT_TRUE(leaving("a"));
  ASSERT_EQ(submit(small_spec("urgent", 1), "", 5).code(), 0);
  pass(200);
  EXPECT_TRUE(job("urgent").attempt_live);
  end("a", "stopped", 1);
  beat(1, {running("urgent")});
  live(2, 500);
  EXPECT_FALSE(job("a").attempt_live) << "for a moment, the room may be free again";
  live(2, 2'000);
  EXPECT_EQ(job("a").epoch, 2U);
  EXPECT_EQ(job("a").ranks.size(), 1U) << "though the live workers have slots enough";
}

TEST_F(GrowBack, EachGrowthDoublesTheNextPause) {
  run_on_one();
  for (const int64_t pause : {10'000, 20'000, 40'000}) {
    join(1, 1);
    live(2, pause - 1'000);
    EXPECT_FALSE(leaving("a")) << pause;
    grow_after(2'000);
    train_on();
    live(2, 3'000);
    lose_node_1();
    train_on();
  }
  join(1, 1);
  grow_after(82'000);
  ASSERT_EQ(growths("a"), 4U);
  train_on();
  live(2, 161'000);
  lose_node_1();
  train_on();
  join(1, 1);
  live(2, 12'000);
  EXPECT_TRUE(leaving("a")) << "the last one ran for as long as the next would have waited";
}

TEST_F(GrowBack, RanksThatComeToNothingAreGivenBack) {
  run_on_one();
  join(1, 1);
  grow_after(12'000);
  report(1, {ended("a", "user_error")});
  report(0, {ended("a", "killed")});
  live(2, 3'000);
  ASSERT_EQ(job("a").epoch, 3U);
  ASSERT_EQ(job("a").ranks.size(), 1U) << "there is room for two";
  EXPECT_EQ(job("a").lead, "node-0");
  EXPECT_EQ(job("a").no_progress, 1U);
  train("a", 20);
  report(0, {ended("a", "signal", 20)});
  beat(0);
  beat(1);
  pass(200);
  EXPECT_EQ(job("a").ranks.size(), 2U) << "it had made progress: the ordinary rule";
}

TEST_F(GrowBack, CancelWins) {
  run_on_one();
  join(1, 1);
  live(2, 12'000);
  ASSERT_TRUE(leaving("a"));
  clear();
  ASSERT_EQ(cancel("a", false).code(), 0);
  ASSERT_FALSE(stops("a").empty());
  EXPECT_EQ(stops("a").back().mode(), pb::STOP_CHECKPOINT);
  EXPECT_THAT(message("a"), HasSubstr("because it was cancelled"));
  ASSERT_EQ(cancel("a", true).code(), 0);
  EXPECT_EQ(stops("a").back().mode(), pb::STOP_KILL);
  ASSERT_EQ(submit(small_spec("young", 1)).code(), 0);
  EXPECT_TRUE(job("young").attempt_live) << "nothing is kept for it any more";
  report(0, {ended("a", "stopped", 10)});
  EXPECT_EQ(job("a").state, JobState::kCancelled);
}

TEST_F(GrowBack, AFailureWhileItLeavesIsAnOrdinaryOne) {
  run_on_one();
  join(1, 1);
  live(2, 12'000);
  ASSERT_TRUE(leaving("a"));
  end("a", "signal", 2);
  EXPECT_EQ(job("a").restarts_since_commit, 1U);
  EXPECT_EQ(job("a").epoch, 2U);
  EXPECT_EQ(job("a").ranks.size(), 2U);
}

TEST_F(GrowBack, AnAgentThatLostItIsToldToo) {
  run_on_one();
  join(1, 1);
  live(2, 12'000);
  ASSERT_TRUE(leaving("a"));
  clear();
  join(0, 1, 2);  // started anew, runs nothing
  ASSERT_EQ(stops("a").size(), 1U);
  EXPECT_EQ(stops("a").back().mode(), pb::STOP_CHECKPOINT);
  EXPECT_TRUE(starts("a").empty());
}

TEST_F(GrowBack, IsFoundAgainAfterARestart) {
  run_on_one();
  join(1, 1);
  live(2, 12'000);
  ASSERT_TRUE(leaving("a"));
  restart();
  join(0, 1);
  join(1, 1);
  live(2, 12'000);
  EXPECT_FALSE(leaving("a")) << "how long its steps take is not known yet";
  train("a", 11);
  live(2, 1'000);
  EXPECT_TRUE(leaving("a"));
}

TEST_F(GrowBack, OfTwoTheOneThatComesFirstGrows) {
  join(0, 2);
  ASSERT_EQ(submit(spec_of("a", 4)).code(), 0);
  ASSERT_EQ(submit(spec_of("b", 4), "", 1).code(), 0);
  live(1, 1'200);
  ASSERT_EQ(job("b").ranks.size(), 2U);
  join(1, 1);
  live(2, 2'000);
  ASSERT_EQ(job("a").ranks.size(), 1U);
  train("a", 10);
  train("b", 10);
  join(2, 2);
  live(3, 12'000);
  EXPECT_TRUE(leaving("b"));
  EXPECT_FALSE(leaving("a")) << "two slots are free: b needs them";
}

}  // namespace
}  // namespace swax::coord::test
