// Placement: priority, then age; whole gangs on few workers; fairness; fewer ranks when slots are
// gone.
#include <set>

#include "jobs/spec.h"
#include "tests/coordinator/core_rig.h"

namespace swax::coord::test {
namespace {

class Scheduler : public CoreRig {
 public:
  std::string places(const std::string& name) {
    std::string text;
    for (const pb::RankPlacement& rank : job(name).ranks)
      text += (text.empty() ? "" : " ") + rank.node();
    return text;
  }
  pb::Reply submit_with(const std::string& name, uint64_t bytes) {
    pb::Request request;
    *request.mutable_submit()->mutable_spec() = small_spec(name, 2);
    pb::PlanLine& line = *request.mutable_submit()->add_plan();
    line.set_ranks(2);
    line.set_bytes_per_rank(bytes);
    return ask(request);
  }
};

TEST_F(Scheduler, GangTakesTheSmallestWorkerThatHoldsIt) {
  join(0, 4);
  join(1, 2);
  join(2, 8);
  ASSERT_EQ(submit(small_spec("a", 2)).code(), 0);
  ASSERT_EQ(submit(small_spec("b", 3)).code(), 0);
  pass(200);
  EXPECT_EQ(places("a"), "node-1 node-1");
  EXPECT_EQ(places("b"), "node-0 node-0 node-0");
}

TEST_F(Scheduler, LargeGangTakesTheLargestWorkersFirst) {
  join(0, 2);
  join(1, 3);
  join(2, 1);
  ASSERT_EQ(submit(small_spec("a", 5)).code(), 0);
  pass(200);
  EXPECT_EQ(places("a"), "node-1 node-1 node-1 node-0 node-0");
  EXPECT_EQ(job("a").lead, "node-1");
  EXPECT_EQ(sent_to(2).size(), 1U) << "only its WELCOME";
  ASSERT_FALSE(starts("a").empty());
  EXPECT_EQ(starts("a")[0].ranks(4).host(), "host-0") << "workers of one machine are to be known";
}

TEST_F(Scheduler, GangIsPlacedWholeOrNotAtAll) {
  join(0, 2);
  ASSERT_EQ(submit(small_spec("a", 3)).code(), 0);
  live(1, 5000);
  EXPECT_FALSE(job("a").attempt_live);
  EXPECT_EQ(
      job_status(state_, config_, job("a"), {.now_ms = now_, .wall_ms = 0, .body = {}}).reason(),
      "WaitingForCapacity");
  join(1, 1);
  pass(200);
  EXPECT_TRUE(job("a").attempt_live);
}

TEST_F(Scheduler, ASpareTakesTheNumbersOfWhatItReplaces) {
  for (int i = 0; i < 3; ++i) join(i, 2);
  ASSERT_EQ(submit(small_spec("a", 6)).code(), 0);
  pass(200);
  ASSERT_EQ(places("a"), "node-0 node-0 node-1 node-1 node-2 node-2");
  live(3, 1'000);
  join(3, 2);
  pb::Envelope goodbye;
  goodbye.set_node(node(0));
  goodbye.set_incarnation(1);
  goodbye.mutable_goodbye();
  tell(1, goodbye);
  for (int i = 1; i < 3; ++i) report(i, {ended("a", "killed")});
  for (int i = 1; i < 4; ++i) beat(i);
  pass(200);
  EXPECT_EQ(job("a").epoch, 2U);
  EXPECT_EQ(places("a"), "node-3 node-3 node-1 node-1 node-2 node-2");
  EXPECT_EQ(job("a").lead, "node-3");
}

TEST_F(Scheduler, FewerRanksWaitUntilAllWorkersHaveComeOnce) {
  config_.shrink_after_ms = 1'000;
  config_.workers_expected = 3;
  config_.expected_until_ms = now_ + 60'000;
  join(0, 1);
  join(1, 1);
  pb::JobSpec spec = small_spec("a", 3);
  spec.mutable_parallelism()->add_allowed_ranks(2);
  ASSERT_EQ(submit(spec).code(), 0);
  live(2, 10'000);
  EXPECT_FALSE(job("a").attempt_live) << "the third is still coming up";
  join(2, 1);
  pass(200);
  ASSERT_TRUE(job("a").attempt_live);
  EXPECT_EQ(job("a").ranks.size(), 3U);
  live(2, 20'000);
  EXPECT_EQ(job("a").epoch, 2U) << "it is lost, and all have been there";
  EXPECT_EQ(job("a").ranks.size(), 2U);
}

TEST_F(Scheduler, NothingBeginsThatCouldNotSave) {
  config_.leave_at_ms = now_ + 60'000;
  config_.startup_ms = 5'000;
  join(0, 2);
  ASSERT_EQ(submit(small_spec("a", 2)).code(), 0);
  live(1, 20'000);
  ASSERT_TRUE(job("a").attempt_live);
  report(0, {step("a", 1)});
  ASSERT_EQ(job("a").state, JobState::kRunning);
  live(1, 10'000);
  report(0, {ended("a", "signal", 1)});
  beat(0);
  pass(200);
  EXPECT_EQ(job("a").epoch, 2U) << "30 s are left, and the first start took 20 s";
  report(0, {step("a", 2)});
  live(1, 10'000);
  report(0, {ended("a", "signal", 2)});
  beat(0);
  pass(200);
  EXPECT_EQ(job("a").epoch, 2U) << "with 20 s left a start like the first comes too late";
  EXPECT_EQ(
      job_status(state_, config_, job("a"), {.now_ms = now_, .wall_ms = 0, .body = {}}).reason(),
      "WaitingForTime");
}

TEST_F(Scheduler, PlannedMemoryMustFit) {
  join(0, 4);
  join(1, 4);
  state_.vol.workers.at("node-0").memory_bytes = 1000;
  state_.vol.workers.at("node-1").memory_bytes = 2500;
  submit_with("a", 600);
  EXPECT_EQ(places("a"), "node-1 node-1") << "node-0 has memory for one";
  submit_with("b", 400);
  EXPECT_EQ(places("b"), "node-0 node-0") << "where a's plan leaves room for three";
  submit_with("c", 700);
  EXPECT_FALSE(job("c").attempt_live);
  const pb::JobStatus large = submit_with("d", 2000).jobs(0);
  EXPECT_EQ(large.reason(), "WaitingForCapacity") << "no worker ever has that much";
  EXPECT_THAT(large.message(), ::testing::HasSubstr("1.95 KiB of memory each"));
  ASSERT_EQ(submit(small_spec("e", 2)).code(), 0);
  EXPECT_TRUE(job("e").attempt_live) << "nothing is known of its memory";
}

TEST_F(Scheduler, PlannedMemoryIsKnownAfterARestart) {
  submit_with("a", 600);
  restart();
  join(0, 4);
  state_.vol.workers.at("node-0").memory_bytes = 1000;
  pass(400);
  EXPECT_FALSE(job("a").attempt_live) << "there is memory for one of two ranks";
  pb::Request request;
  request.mutable_resume()->set_job("a");
  *request.mutable_resume()->mutable_spec() = small_spec("a", 2);
  request.mutable_resume()->mutable_spec()->mutable_checkpoint()->set_interval(7);
  ASSERT_EQ(ask(request).code(), 0);
  pass(400);
  EXPECT_TRUE(job("a").attempt_live) << "the plan was that of the spec before";
}

TEST_F(Scheduler, PriorityThenAge) {
  ASSERT_EQ(submit(small_spec("a", 2), "", 0).code(), 0);
  ASSERT_EQ(submit(small_spec("b", 2), "", 5).code(), 0);
  ASSERT_EQ(submit(small_spec("c", 2), "", 5).code(), 0);
  join(0, 2);
  pass(200);
  EXPECT_TRUE(job("b").attempt_live);
  join(1, 2);
  pass(200);
  EXPECT_TRUE(job("c").attempt_live);
  EXPECT_FALSE(job("a").attempt_live);
}

TEST_F(Scheduler, SlotsAreNeverGivenTwice) {
  join(0, 3);
  ASSERT_EQ(submit(small_spec("a", 2)).code(), 0);
  ASSERT_EQ(submit(small_spec("b", 2)).code(), 0);
  ASSERT_EQ(submit(small_spec("c", 1)).code(), 0);
  pass(200);
  EXPECT_TRUE(job("a").attempt_live);
  EXPECT_FALSE(job("b").attempt_live);
  EXPECT_TRUE(job("c").attempt_live);
}

TEST_F(Scheduler, SmallJobsDoNotStarveALargeOne) {
  join(0, 2);
  ASSERT_EQ(submit(small_spec("s0", 1)).code(), 0);
  pass(200);
  ASSERT_EQ(submit(small_spec("large", 2)).code(), 0);
  live(1, 1000);
  ASSERT_EQ(submit(small_spec("s1", 1)).code(), 0);
  live(1, 1000);
  EXPECT_TRUE(job("s1").attempt_live) << "overtakes while the large one has not waited long";
  live(1, config_.reserve_after_ms);
  report(0, {ended("s1", "config_error")});
  ASSERT_EQ(submit(small_spec("s2", 1)).code(), 0);
  beat(0, {running("s0")});
  pass(400);
  EXPECT_FALSE(job("s2").attempt_live) << "the slot is kept";
  EXPECT_EQ(
      job_status(state_, config_, job("s2"), {.now_ms = now_, .wall_ms = 0, .body = {}}).reason(),
      "HigherPriority");
  report(0, {ended("s0", "config_error")});
  beat(0);
  pass(400);
  EXPECT_TRUE(job("large").attempt_live);
}

TEST_F(Scheduler, FewerAllowedRanksWhenWorkersAreGone) {
  join(0, 2);
  pb::JobSpec spec = small_spec("a", 4);
  spec.mutable_parallelism()->clear_allowed_ranks();
  for (const uint32_t ranks : {1U, 2U, 4U}) spec.mutable_parallelism()->add_allowed_ranks(ranks);
  ASSERT_EQ(submit(spec).code(), 0);
  live(1, config_.shrink_after_ms - 1000);
  EXPECT_FALSE(job("a").attempt_live) << "another worker may come";
  live(1, 3000);
  EXPECT_EQ(places("a"), "node-0 node-0");
}

TEST_F(Scheduler, BuildsAreNotMixed) {
  join(0, 2);
  state_.vol.workers.at("node-0").build_id = "other";
  join(1, 2);
  ASSERT_EQ(submit(small_spec("a", 3)).code(), 0);
  live(2, 2000);
  EXPECT_FALSE(job("a").attempt_live);
  join(2, 2);
  pass(200);
  EXPECT_EQ(places("a"), "node-1 node-1 node-2");
}

TEST_F(Scheduler, BlamedWorkerIsTakenLast) {
  join(0, 2);
  join(1, 2);
  ASSERT_EQ(submit(small_spec("a", 1)).code(), 0);
  pass(200);
  ASSERT_EQ(places("a"), "node-0");
  report(0, {ended("a", "signal")});
  beat(0);
  beat(1);
  pass(200);
  EXPECT_EQ(places("a"), "node-1");
}

TEST_F(Scheduler, SameEventsSamePlacement) {
  std::set<std::string> seen;
  for (int run = 0; run < 3; ++run) {
    state_ = State();
    replayed_ = Durable();
    for (const int worker : {3, 1, 2, 0}) join(worker, 2, static_cast<uint64_t>(run) + 1);
    ASSERT_EQ(submit(small_spec("a", 3), std::string(32, 'a')).code(), 0);
    pass(200);
    seen.insert(places("a"));
  }
  EXPECT_EQ(seen, std::set<std::string>{"node-0 node-0 node-1"});
}

}  // namespace
}  // namespace swax::coord::test
