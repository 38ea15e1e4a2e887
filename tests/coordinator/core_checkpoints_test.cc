// Commits: all ranks of one epoch, then COMMITTED, then the record, then retention.
#include <algorithm>

#include "tests/coordinator/core_rig.h"

namespace swax::coord::test {
namespace {

class Checkpoints : public CoreRig {
 public:
  void SetUp() override {
    join(0);
    join(1);
    ASSERT_EQ(submit(small_spec("a", 3)).code(), 0);
    pass(200);
    live(2, 1000);
    ASSERT_TRUE(job("a").attempt_live);  // ranks 0, 1 on node-0, rank 2 on node-1
  }
  void save(uint64_t step) {
    report(0, {durable("a", step, 0), durable("a", step, 1)});
    report(1, {durable("a", step, 2)});
    committed("a", step);
  }
};

TEST_F(Checkpoints, CommitNeedsEveryRank) {
  report(0, {durable("a", 5, 0), durable("a", 5, 1), durable("a", 5, 0)});
  EXPECT_TRUE(commands<WriteCommitted>().empty());
  report(1, {durable("a", 5, 2)});
  const auto writes = commands<WriteCommitted>();
  ASSERT_EQ(writes.size(), 1U);
  EXPECT_EQ(writes[0].step, 5U);
  EXPECT_EQ(writes[0].epoch, 1U);
  ASSERT_EQ(writes[0].ranks.size(), 3U);
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(writes[0].ranks[rank].shard().rank(), rank);
  EXPECT_TRUE(job("a").checkpoints.empty()) << "the record is the commit point";
  committed("a", 5);
  EXPECT_EQ(job("a").checkpoints.at({5, 1}).state, "COMMITTED");
}

TEST_F(Checkpoints, RanksOfOtherNodesSizesAndEpochsDoNotCount) {
  report(0, {durable("a", 5, 0), durable("a", 5, 1), durable("a", 5, 2)});  // 2 is not there
  EXPECT_TRUE(commands<WriteCommitted>().empty());
  auto other = durable("a", 5, 2);
  other.mutable_durable()->set_world_size(4);
  report(1, {other});
  EXPECT_TRUE(commands<WriteCommitted>().empty());
  auto old = durable("a", 5, 2);
  old.set_epoch(0);
  report(1, {old});
  EXPECT_TRUE(commands<WriteCommitted>().empty());
  report(1, {durable("a", 6, 2)});
  EXPECT_TRUE(commands<WriteCommitted>().empty()) << "another step";
}

TEST_F(Checkpoints, SavesOfTwoAttemptsNeverMix) {
  report(0, {durable("a", 5, 0), durable("a", 5, 1)});
  report(1, {ended("a", "signal")});
  live(2, 2000);
  beat(0);
  beat(1);
  pass(400);
  ASSERT_EQ(job("a").epoch, 2U);
  for (const pb::RankPlacement& rank : job("a").ranks)
    if (rank.rank() == 2) report(rank.node() == "node-0" ? 0 : 1, {durable("a", 5, 2)});
  EXPECT_TRUE(commands<WriteCommitted>().empty());
}

TEST_F(Checkpoints, DuplicatesAreIdempotent) {
  save(5);
  const size_t records = records_of("a").size();
  report(1, {durable("a", 5, 2)});
  report(0, {durable("a", 5, 0), durable("a", 5, 1)});
  EXPECT_TRUE(commands<WriteCommitted>().empty());
  committed("a", 5);
  EXPECT_EQ(records_of("a").size(), records);
}

TEST_F(Checkpoints, NoNewAttemptWhileACommitIsUnderWay) {
  report(0, {durable("a", 5, 0), durable("a", 5, 1)});
  report(1, {durable("a", 5, 2), ended("a", "signal")});
  report(0, {ended("a", "killed")});
  for (int i = 0; i < 10; ++i) {
    beat(0);
    beat(1);
    pass(1000);
  }
  EXPECT_TRUE(job("a").attempt_live);
  EXPECT_EQ(job("a").epoch, 1U);
  committed("a", 5);
  EXPECT_FALSE(job("a").attempt_live);
  EXPECT_EQ(job("a").restarts_since_commit, 1U);
  pass(200);
  EXPECT_EQ(job("a").epoch, 2U);
}

TEST_F(Checkpoints, RetentionRunsAfterTheRecordOnly) {
  save(5);
  save(10);
  EXPECT_TRUE(commands<Retire>().empty()) << "keep_latest_k is 2";
  report(0, {durable("a", 15, 0), durable("a", 15, 1)});
  report(1, {durable("a", 15, 2)});
  EXPECT_TRUE(commands<Retire>().empty());
  committed("a", 15);
  const auto retires = commands<Retire>();
  ASSERT_EQ(retires.size(), 1U);
  EXPECT_EQ(retires[0].keep, 2);
  live(2, 3000);
  EXPECT_TRUE(commands<Retire>().empty()) << "one at a time";
  give(Retired{.job = "a", .removed = {{5, 1}}});
  EXPECT_EQ(job("a").checkpoints.at({5, 1}).state, "RETIRED");
  EXPECT_EQ(job("a").checkpoints.at({10, 1}).state, "COMMITTED");
}

TEST_F(Checkpoints, FailedWriteIsTriedAgainThenGivenUp) {
  report(0, {durable("a", 5, 0), durable("a", 5, 1)});
  report(1, {durable("a", 5, 2)});
  for (int tries = 1; tries < config_.commit_tries_max; ++tries) {
    committed("a", 5, false);
    size_t again = 0;
    for (int i = 0; i < 6; ++i) {
      beat(0, {running("a")});
      beat(1, {running("a")});
      pass(200);
      again += commands<WriteCommitted>().size();
    }
    EXPECT_EQ(again, 1U);
  }
  committed("a", 5, false);
  EXPECT_THAT(kinds_of("a"), ::testing::EndsWith("checkpoint_failed"));
  report(0, {done("a", 5), ended("a", "done", 5)});
  report(1, {ended("a", "done", 5)});
  EXPECT_EQ(job("a").state, JobState::kBackoff) << "the final state is lost, its steps are not";
  EXPECT_EQ(job("a").restarts_since_commit, 1U);
}

TEST_F(Checkpoints, ACommitWhoseRecordWasLostIsFoundAfterARestart) {
  save(5);
  report(0, {durable("a", 10, 0), durable("a", 10, 1)});
  report(1, {durable("a", 10, 2)});
  restart();  // COMMITTED of step 10 was written, its record was not
  ASSERT_EQ(commands<FindCommitted>().size(), 1U);
  CommittedWritten found;
  found.job = "a";
  found.epoch = 1;
  found.found = true;
  for (const uint64_t step : {5, 10, 10}) {
    found.step = step;
    give(found);
  }
  EXPECT_EQ(job("a").checkpoints.size(), 2U);
  EXPECT_EQ(job("a").checkpoints.at({10, 1}).state, "COMMITTED");
  found.step = 15;
  found.epoch = 2;
  give(found);
  EXPECT_EQ(job("a").checkpoints.size(), 2U) << "of an attempt that was never placed";
}

TEST_F(Checkpoints, WithoutSavesARunSucceedsWithoutACommit) {
  pb::JobSpec spec = small_spec("b", 1);
  spec.mutable_checkpoint()->set_enable(false);
  ASSERT_EQ(submit(spec).code(), 0);
  pass(200);
  ASSERT_TRUE(job("b").attempt_live);
  report(1, {done("b", 5), ended("b", "done", 5)});
  EXPECT_EQ(job("b").state, JobState::kSucceeded);
}

TEST_F(Checkpoints, DurableReportsAreHeardAgainAfterARestart) {
  auto first = durable("a", 5, 0);
  first.set_index(1);
  auto second = durable("a", 5, 1);
  second.set_index(2);
  auto note = about("a");
  note.mutable_event()->set_kind("x");
  note.set_index(3);
  EXPECT_EQ(report_from(0, 0, {first, second, note}), 3U);
  restart();
  join(0);
  join(1);
  EXPECT_EQ(report_from(0, 0, {first, second, note}), 3U);
  EXPECT_TRUE(out().records.empty());
  report(1, {durable("a", 5, 2)});
  EXPECT_EQ(commands<WriteCommitted>().size(), 1U);
}

TEST_F(Checkpoints, OneAtATimeAndOnlyForward) {
  report(0, {durable("a", 5, 0), durable("a", 5, 1), durable("a", 10, 0), durable("a", 10, 1)});
  report(1, {durable("a", 5, 2)});
  EXPECT_EQ(commands<WriteCommitted>().size(), 1U);
  report(1, {durable("a", 10, 2)});
  EXPECT_TRUE(commands<WriteCommitted>().empty()) << "one is under way";
  committed("a", 5);
  ASSERT_EQ(commands<WriteCommitted>().size(), 1U);
  EXPECT_EQ(commands<WriteCommitted>()[0].step, 10U);
  committed("a", 10);
  report(0, {durable("a", 7, 0), durable("a", 7, 1)});
  report(1, {durable("a", 7, 2)});
  EXPECT_TRUE(commands<WriteCommitted>().empty()) << "told again after a restart: too late";
}

TEST_F(Checkpoints, BadOnesAreMarked) {
  save(5);
  auto bad = about("a");
  bad.mutable_event()->set_kind("checkpoint_bad");
  bad.mutable_event()->set_step(5);
  bad.mutable_event()->set_text("chunk 3");
  report(0, {bad});
  EXPECT_EQ(job("a").checkpoints.at({5, 1}).state, "BAD");
}

// A rank that tells without end fills no journal, and a run of weeks goes on to tell.
TEST_F(Checkpoints, EventsOfAnAttemptAreLimitedBetweenCommits) {
  config_.noted_max = 3;
  const auto told = [this] {
    const auto records = records_of("a");
    return std::count_if(records.begin(), records.end(),
                         [](const pb::JobRecord& r) { return r.noted().kind() == "noise"; });
  };
  auto noise = about("a");
  noise.mutable_event()->set_kind("noise");
  for (int i = 0; i < 10; ++i) report(0, {noise});
  EXPECT_EQ(told(), 3);
  save(5);
  for (int i = 0; i < 10; ++i) report(0, {noise});
  EXPECT_EQ(told(), 6);
}

}  // namespace
}  // namespace swax::coord::test
