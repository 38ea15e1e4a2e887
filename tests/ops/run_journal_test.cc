// Goal: what a run knows survives it: record, events without gaps, how far a record log was taken
// over, whether the newest attempt's end is known; and events of a log are taken over once. Method:
// journals opened again, and a record log that grows between two followers.
#include <gtest/gtest.h>

#include "ops/cli/run_follow.h"
#include "ops/cli/run_journal.h"
#include "storage/record_log.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

pb::RunRecord new_run(uint64_t steps = 100) {
  pb::RunRecord run;
  run.set_state("RUNNING");
  run.mutable_spec()->mutable_training()->set_steps(steps);
  return run;
}

pb::RankReport event_report(const std::string& kind, uint64_t step) {
  pb::RankReport report;
  report.mutable_event()->set_kind(kind);
  report.mutable_event()->set_step(step);
  return report;
}

pb::RankReport step_report(uint64_t step, uint64_t epoch) {
  pb::RankReport report;
  report.mutable_step()->set_step(step);
  report.mutable_step()->set_epoch(epoch);
  report.mutable_step()->set_step_ns(1'000'000);
  report.mutable_step()->set_tokens(512);
  report.mutable_step()->set_loss_bits(step);
  return report;
}

TEST(RunJournal, KeepsRunEventsAndTails) {
  const ScratchDir dir;
  const StateDir state(dir.path());
  SystemClock clock;
  {
    auto journal = RunJournal::open(state, clock);
    ASSERT_TRUE(journal.ok()) << journal.status().to_string();
    EXPECT_FALSE((*journal)->has_run());
    EXPECT_FALSE((*journal)->attempt_is_open());
    (*journal)->begin_run(new_run());
    (*journal)->run().set_epoch(1);
    (*journal)->add("attempt_started", 0, "one");
    (*journal)->set_tail(1, 77);
    ASSERT_TRUE((*journal)->write(true).ok());
  }
  {
    auto journal = RunJournal::open(state, clock);
    ASSERT_TRUE(journal.ok());
    ASSERT_TRUE((*journal)->has_run());
    EXPECT_TRUE((*journal)->attempt_is_open());
    EXPECT_EQ((*journal)->tail(1), 77U);
    EXPECT_EQ((*journal)->tail(2), 0U);
    const pb::EventRecord& event = (*journal)->add("attempt_ended", 3, "two");
    EXPECT_EQ(event.sequence(), 2U);
    EXPECT_EQ(event.epoch(), 1U);
    EXPECT_FALSE((*journal)->attempt_is_open());
    ASSERT_TRUE((*journal)->write(true).ok());
  }
  const auto view = load_run_view(state);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  ASSERT_EQ(view->events.size(), 2U);
  EXPECT_EQ(view->events[1].sequence(), 2U);
  EXPECT_FALSE(view->active);
  EXPECT_EQ(view->state, "STOPPED");
}

TEST(RunJournal, IsReadWhileTheRunHoldsIt) {
  const ScratchDir dir;
  const StateDir state(dir.path());
  SystemClock clock;
  auto lock = lock_file(state.lock_path());
  ASSERT_TRUE(lock.ok());
  auto journal = RunJournal::open(state, clock);
  ASSERT_TRUE(journal.ok());
  (*journal)->begin_run(new_run());
  (*journal)->add("run_created", 0, "");
  ASSERT_TRUE((*journal)->write(true).ok());
  const auto view = load_run_view(state);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_TRUE(view->active);
  EXPECT_EQ(view->state, "RUNNING");
  EXPECT_EQ(view->events.size(), 1U);
}

TEST(ReportFollower, TakesEachEventOverOnce) {
  const ScratchDir dir;
  const StateDir state(dir.path());
  SystemClock clock;
  ASSERT_TRUE(make_dirs(state.records_folder()).ok());
  auto writer = RecordLogWriter::create(state.records_path(1));
  ASSERT_TRUE(writer.ok());
  std::vector<std::string> seen;
  const auto follow = [&](const std::function<void(ReportFollower&)>& use) {
    auto journal = RunJournal::open(state, clock);
    ASSERT_TRUE(journal.ok());
    if (!(*journal)->has_run()) (*journal)->begin_run(new_run());
    (*journal)->run().set_epoch(1);
    StepBits bits(100);
    ReportFollower follower(state, 1, **journal, bits, clock,
                            [&seen](const pb::EventRecord& e) { seen.push_back(e.kind()); });
    use(follower);
  };
  follow([&](ReportFollower& follower) {
    ASSERT_TRUE(writer->append(event_report("checkpoint_committed", 10).SerializeAsString()).ok());
    follower.poll();
    ASSERT_TRUE(writer->append(step_report(11, 1).SerializeAsString()).ok());
    follower.poll();
    EXPECT_EQ(follower.progress().committed_step, 10U);
  });
  ASSERT_TRUE(writer->append(event_report("checkpoint_skipped", 20).SerializeAsString()).ok());
  follow([&](ReportFollower& follower) {
    follower.poll();
    follower.poll();
    ASSERT_TRUE(follower.progress().step);
    EXPECT_EQ(follower.progress().step->step(), 11U);
  });
  EXPECT_EQ(seen, (std::vector<std::string>{"checkpoint_committed", "checkpoint_skipped"}));
  const auto view = load_run_view(state);
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->events.size(), 2U);
  EXPECT_EQ(view->run.progress_step(), 11U);
}

TEST(ReportFollower, ACommitClearsTheBudgetAndAStepIsProgress) {
  const ScratchDir dir;
  const StateDir state(dir.path());
  SystemClock clock;
  ASSERT_TRUE(make_dirs(state.records_folder()).ok());
  auto writer = RecordLogWriter::create(state.records_path(3));
  ASSERT_TRUE(writer.ok());
  auto journal = RunJournal::open(state, clock);
  ASSERT_TRUE(journal.ok());
  (*journal)->begin_run(new_run());
  (*journal)->run().set_epoch(3);
  (*journal)->run().set_progress_step(10);
  (*journal)->run().set_restarts_since_commit(5);
  StepBits bits(100);
  ReportFollower follower(state, 3, **journal, bits, clock, [](const pb::EventRecord&) {});
  ASSERT_TRUE(writer->append(step_report(10, 3).SerializeAsString()).ok());
  follower.poll();
  EXPECT_FALSE(follower.progress().progressed);
  EXPECT_EQ((*journal)->run().restarts_since_commit(), 5U);
  ASSERT_TRUE(writer->append(event_report("checkpoint_committed", 10).SerializeAsString()).ok());
  follower.poll();
  EXPECT_TRUE(follower.progress().progressed);
  EXPECT_EQ((*journal)->run().restarts_since_commit(), 0U);
}

TEST(ReportFollower, SaysWhereAttemptsDisagree) {
  const ScratchDir dir;
  const StateDir state(dir.path());
  SystemClock clock;
  ASSERT_TRUE(make_dirs(state.records_folder()).ok());
  auto journal = RunJournal::open(state, clock);
  ASSERT_TRUE(journal.ok());
  (*journal)->begin_run(new_run());
  (*journal)->run().set_epoch(2);
  StepBits bits(100);
  bits.add(step_report(4, 1).step());
  auto writer = RecordLogWriter::create(state.records_path(2));
  ASSERT_TRUE(writer.ok());
  pb::RankReport other = step_report(4, 2);
  other.mutable_step()->set_loss_bits(123);
  ASSERT_TRUE(writer->append(other.SerializeAsString()).ok());
  std::vector<pb::EventRecord> seen;
  ReportFollower follower(state, 2, **journal, bits, clock,
                          [&seen](const pb::EventRecord& e) { seen.push_back(e); });
  follower.poll();
  ASSERT_EQ(seen.size(), 1U);
  EXPECT_EQ(seen[0].kind(), "diverged");
  EXPECT_EQ(seen[0].step(), 4U);
  EXPECT_EQ(seen[0].fields().at("earlier_attempt"), "1");
  EXPECT_EQ(seen[0].fields().at("later_attempt"), "2");
}

}  // namespace
}  // namespace swax
