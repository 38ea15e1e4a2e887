// A job on fewer ranks than it asked for is told to save and leave when there is room again, and
// when it had better stay.
#include "tests/coordinator/growth_rig.h"

namespace swax::coord::test {
namespace {

using ::testing::HasSubstr;

TEST_F(GrowBack, SavesAndLeavesForAllRanksWhenThereIsRoomAgain) {
  run_on_one();
  EXPECT_THAT(message("a"), HasSubstr("1 of 2 ranks on 1 workers"));
  join(1, 1);
  live(2, 9'000);
  EXPECT_TRUE(stops("a").empty()) << "the worker may be gone again in a moment";
  live(2, 2'000);
  ASSERT_FALSE(stops("a").empty());
  EXPECT_EQ(stops("a").front().mode(), pb::STOP_CHECKPOINT);
  EXPECT_EQ(stops("a").front().epoch(), 1U);
  EXPECT_EQ(history_event(records_of("a").back()).kind(), "growing");
  EXPECT_EQ(history_event(records_of("a").back()).text(), "1 of 2 ranks: room for 2");
  EXPECT_THAT(message("a"), HasSubstr("saves and leaves, to go on with 2 ranks"));
  clear();
  live(2, 3'000);
  EXPECT_EQ(stops("a").size(), 3U) << "said again, it may have been lost";
  EXPECT_EQ(growths("a"), 1U);
  end("a", "stopped", 2);
  EXPECT_EQ(job("a").epoch, 2U);
  EXPECT_EQ(job("a").ranks.size(), 2U);
  EXPECT_EQ(job("a").restarts_since_commit, 0U);
  EXPECT_EQ(job("a").no_progress, 0U);
  EXPECT_EQ(kinds_of("a"),
            "submitted attempt_started attempt_running growing attempt_ended attempt_started");
  clear();
  train("a", 11);
  live(2, 60'000);
  EXPECT_TRUE(stops("a").empty()) << "it has what it asked for";
}

TEST_F(GrowBack, RoomMustLastAndTheAttemptMustTrain) {
  join(0, 1);
  ASSERT_EQ(submit(spec_of("a", 2)).code(), 0);
  live(1, 2'000);
  join(1, 1);
  live(2, 30'000);
  EXPECT_TRUE(stops("a").empty()) << "no step yet";
  train("a", 1);
  config_.startup_ms = state_.vol.startup_ms = 1'000;
  live(2, 8'000);
  live(1, 3'000);  // node-1 is silent: SUSPECT
  live(2, 9'000);
  EXPECT_TRUE(stops("a").empty()) << "not in a row";
  live(2, 3'000);
  EXPECT_FALSE(stops("a").empty());
}

TEST_F(GrowBack, NotWhileOthersWaitForSlots) {
  run_on_one();
  join(1, 1);
  ASSERT_EQ(submit(small_spec("huge", 8)).code(), 0);
  ASSERT_EQ(submit(small_spec("b", 2)).code(), 0);
  live(2, 30'000);
  EXPECT_TRUE(stops("a").empty()) << "b waits for both slots";
  ASSERT_EQ(cancel("b", false).code(), 0);
  live(2, 12'000);
  EXPECT_FALSE(stops("a").empty()) << "huge waits for other workers";
}

TEST_F(GrowBack, TheLargestAllowedNumberThatFits) {
  run_on_one(4);
  join(1, 2);
  live(2, 12'000);
  ASSERT_TRUE(leaving("a"));
  EXPECT_EQ(history_event(records_of("a").back()).text(), "1 of 4 ranks: room for 2");
  end("a", "stopped", 2);
  ASSERT_EQ(job("a").epoch, 2U) << "at once: it does not wait for four";
  EXPECT_EQ(job("a").ranks.size(), 2U);
  train("a", 11);
  join(2, 1);
  live(3, 11'000);
  EXPECT_FALSE(leaving("a")) << "the second growth in a row waits twice as long";
  live(3, 11'000);
  ASSERT_TRUE(leaving("a"));
  end("a", "stopped", 3);
  EXPECT_EQ(job("a").ranks.size(), 4U);
}

TEST_F(GrowBack, MoreRoomThatComesLaterMustLastToo) {
  run_on_one(4);
  join(1, 1);
  live(2, 6'000);
  join(2, 2);
  live(3, 6'000);
  EXPECT_FALSE(leaving("a")) << "room for two would do, but now there is room for four";
  live(3, 6'000);
  EXPECT_EQ(state_.vol.live.at("a").grow_to, 4U);
}

TEST_F(GrowBack, NotWhenTooLittleIsLeft) {
  run_on_one();
  join(1, 1);
  state_.vol.startup_ms = 5'000;
  train("a", 1'000'000 - 199);  // 19.9 s alone, 9.95 s together: a save and a start take as long
  live(2, 30'000);
  EXPECT_FALSE(leaving("a"));
  train("a", 1'000'000 - 199, 110);
  live(2, 1'000);
  EXPECT_TRUE(leaving("a"));
}

TEST_F(GrowBack, NotShortlyBeforeTheWorkersAreTakenAway) {
  config_.leave_at_ms = 60'000;
  config_.startup_ms = 12'000;
  run_on_one();
  join(1, 1);
  live(2, 20'000);
  EXPECT_FALSE(leaving("a")) << "less than 48 s are left";
  config_.leave_at_ms = now_ + 50'000;
  pass(200);
  EXPECT_TRUE(leaving("a"));
}

TEST_F(GrowBack, NotWhatIsNotSaved) {
  join(0, 1);
  pb::JobSpec spec = spec_of("a", 2);
  spec.mutable_checkpoint()->set_enable(false);
  ASSERT_EQ(submit(spec).code(), 0);
  live(1, 2'000);
  train("a", 10);
  join(1, 1);
  live(2, 30'000);
  EXPECT_FALSE(leaving("a"));
  pb::Request request;
  request.mutable_resume()->set_job("a");
  *request.mutable_resume()->mutable_spec() = spec_of("a", 2);
  ASSERT_EQ(ask(request).code(), 0);
  live(2, 30'000);
  EXPECT_FALSE(leaving("a")) << "the next attempt would save, this one does not know";
}

TEST_F(GrowBack, AChangedSpecIsNoObstacleOnceTheAttemptHasSaved) {
  run_on_one();
  pb::Request request;
  request.mutable_resume()->set_job("a");
  *request.mutable_resume()->mutable_spec() = spec_of("a", 2);
  request.mutable_resume()->mutable_spec()->mutable_checkpoint()->set_interval(7);
  ASSERT_EQ(ask(request).code(), 0);
  join(1, 1);
  live(2, 30'000);
  EXPECT_FALSE(leaving("a"));
  report(0, {durable("a", 20, 0)});
  committed("a", 20);
  live(2, 1'000);
  EXPECT_TRUE(leaving("a"));
}

TEST_F(GrowBack, NotWhileSavesFail) {
  run_on_one();
  join(1, 1);
  report(0, {durable("a", 20, 0)});
  committed("a", 20, false);
  live(2, 30'000);
  EXPECT_FALSE(leaving("a")) << "the commit is tried again";
  for (int i = 1; i < config_.commit_tries_max; ++i) {
    live(2, 2'000);
    committed("a", 20, false);
  }
  live(2, 30'000);
  EXPECT_FALSE(leaving("a")) << "it was given up";
  report(0, {durable("a", 40, 0)});
  committed("a", 40);
  live(2, 12'000);
  EXPECT_TRUE(leaving("a"));
  end("a", "stopped", 2);
  lose_node_1();
  train("a", 50);
  pb::AttemptReport failed = about("a");
  failed.mutable_event()->set_kind("checkpoint_failed");
  report(0, {failed});
  join(1, 1);
  live(2, 60'000);
  EXPECT_FALSE(leaving("a")) << "the ranks could not write it";
}

TEST_F(GrowBack, RoomIsOfOneBuildAndHasItsMemory) {
  join(0, 1);
  state_.vol.workers.at("node-0").memory_bytes = 1'000;
  pb::Request request;
  *request.mutable_submit()->mutable_spec() = spec_of("a", 2);
  for (const uint32_t ranks : {1, 2}) {
    pb::PlanLine& line = *request.mutable_submit()->add_plan();
    line.set_ranks(ranks);
    line.set_bytes_per_rank(1'000 / ranks);
  }
  ASSERT_EQ(ask(request).code(), 0);
  live(1, 2'000);
  train("a", 10);
  join(1, 1);
  state_.vol.workers.at("node-1").memory_bytes = 400;
  join(2, 1);
  state_.vol.workers.at("node-2").build_id = "other";
  live(3, 30'000);
  EXPECT_FALSE(leaving("a"));
  state_.vol.workers.at("node-1").memory_bytes = 500;
  live(3, 12'000);
  EXPECT_TRUE(leaving("a"));
}

}  // namespace
}  // namespace swax::coord::test
