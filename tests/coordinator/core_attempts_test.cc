// The life of attempts: reports in order and once, blame, budgets, ends, cancel.
#include "coordinator/core/internal.h"
#include "tests/coordinator/core_rig.h"

namespace swax::coord::test {
namespace {

class Attempts : public CoreRig {
 public:
  void place(const pb::JobSpec& spec, int workers) {
    for (int i = 0; i < workers; ++i) join(i);
    ASSERT_EQ(submit(spec).code(), 0);
    pass(200);
    live(workers, 1000);
    ASSERT_TRUE(job(spec.job().name()).attempt_live);
  }
};

TEST_F(Attempts, OneRankFromSubmitToSuccess) {
  place(small_spec("a"), 1);
  EXPECT_EQ(job("a").state, JobState::kStarting);
  ASSERT_FALSE(starts("a").empty()) << "said again until the worker reports it";
  report(0, {step("a", 1)});
  EXPECT_EQ(job("a").state, JobState::kRunning);
  ASSERT_EQ(commands<StoreStep>().size(), 1U);
  report(0, {durable("a", 10, 0), done("a", 10), ended("a", "done", 10)});
  EXPECT_FALSE(job_ended(job("a").state)) << "its last checkpoint is not committed yet";
  committed("a", 10);
  EXPECT_EQ(job("a").state, JobState::kSucceeded);
  EXPECT_EQ(kinds_of("a"),
            "submitted attempt_started attempt_running result checkpoint_committed attempt_ended "
            "job_ended");
  const pb::JobStatus status = job_status(state_, config_, job("a"), {});
  EXPECT_EQ(status.state(), "SUCCEEDED");
  EXPECT_EQ(status.digest(), "d1");
  EXPECT_EQ(status.restarts(), 0U);
}

TEST_F(Attempts, BadEndAfterResultAndCommitIsSuccess) {
  place(small_spec("a"), 1);
  report(0, {step("a", 10), durable("a", 10, 0), done("a", 10)});
  committed("a", 10);
  report(0, {ended("a", "signal", 10)});
  EXPECT_EQ(job("a").state, JobState::kSucceeded);
  EXPECT_EQ(job("a").epoch, 1U);
  EXPECT_EQ(kinds_of("a"),
            "submitted attempt_started attempt_running result checkpoint_committed attempt_ended "
            "job_ended");
  EXPECT_EQ(records_of("a")[5].finished().result(), "signal") << "the history says how it ended";
}

TEST_F(Attempts, BadEndAfterAResultWithoutItsCommitIsNone) {
  place(small_spec("a"), 1);
  report(0, {step("a", 10), durable("a", 5, 0)});
  committed("a", 5);
  report(0, {done("a", 10), ended("a", "signal", 10)});
  EXPECT_EQ(job("a").state, JobState::kQueued);
}

TEST_F(Attempts, SuccessNeedsEveryNode) {
  place(small_spec("a", 4), 2);
  report(0, {step("a", 10), durable("a", 10, 0), durable("a", 10, 1)});
  report(1, {durable("a", 10, 2), durable("a", 10, 3)});
  committed("a", 10);
  report(0, {done("a", 10), ended("a", "done", 10)});
  pass(4000);
  EXPECT_TRUE(job("a").attempt_live);
  live(2, 30000);
  EXPECT_TRUE(job("a").attempt_live) << "node-1 has not ended";
  report(1, {ended("a", "done", 10)});
  EXPECT_EQ(job("a").state, JobState::kSucceeded);
}

TEST_F(Attempts, DoneWithoutAResultIsNoSuccess) {
  place(small_spec("a"), 1);
  report(0, {ended("a", "done", 10)});
  EXPECT_EQ(job("a").state, JobState::kBackoff);
  EXPECT_THAT(job("a").reason, ::testing::HasSubstr("no result"));
}

TEST_F(Attempts, DoneWithoutTheCommitOfItsStateIsNoSuccess) {
  place(small_spec("a"), 1);
  report(0, {step("a", 10), durable("a", 5, 0)});
  committed("a", 5);
  report(0, {done("a", 10), ended("a", "done", 10)});
  EXPECT_EQ(job("a").state, JobState::kBackoff);
  EXPECT_THAT(job("a").reason, ::testing::HasSubstr("step 10, was not committed"));
}

TEST_F(Attempts, ReportsAreTakenOnceAndInOrder) {
  place(small_spec("a"), 1);
  auto validation = about("a");
  validation.mutable_validation()->set_step(5);
  validation.set_index(1);
  EXPECT_EQ(report_from(0, 0, {validation}), 1U);
  EXPECT_EQ(out().records.size(), 1U);
  ASSERT_EQ(out().taken.size(), 1U);
  EXPECT_EQ(out().taken[0].index, 1U);
  EXPECT_EQ(report_from(0, 0, {validation}), 1U) << "again: acknowledged";
  EXPECT_TRUE(out().records.empty()) << "but it changes nothing";
  auto late = validation;
  late.set_index(5);
  EXPECT_EQ(report_from(0, 4, {late}), 1U) << "2..4 are not here yet";
  EXPECT_TRUE(out().records.empty());
  auto second = validation;
  second.set_index(2);
  EXPECT_EQ(report_from(0, 1, {second, late}), 5U) << "3 and 4 were dropped by their sender";
  EXPECT_EQ(out().records.size(), 2U);
}

TEST_F(Attempts, ReportSentAgainAfterARestartMakesNoSecondRecord) {
  place(small_spec("a"), 1);
  auto validation = about("a");
  validation.mutable_validation()->set_step(5);
  validation.set_index(7);
  EXPECT_EQ(report_from(0, 0, {validation}), 7U);
  const size_t records = records_of("a").size();
  restart();
  join(0);
  EXPECT_EQ(report_from(0, 0, {validation}), 7U);
  EXPECT_EQ(records_of("a").size(), records);
}

TEST_F(Attempts, OlderEpochsAndOtherNodesChangeNothing) {
  place(small_spec("a"), 2);
  ASSERT_EQ(job("a").lead, "node-0");
  const auto old = ended("a", "signal");
  report(1, {ended("a", "signal")});  // has no part in it
  EXPECT_TRUE(job("a").attempt_live);
  report(0, {old});
  beat(0);
  pass(200);
  ASSERT_EQ(job("a").epoch, 2U);
  const size_t records = records_of("a").size();
  EXPECT_EQ(report(0, {old}), 2U) << "acknowledged, so that its sender forgets it";
  EXPECT_EQ(records_of("a").size(), records);
  EXPECT_TRUE(job("a").attempt_live);
}

TEST_F(Attempts, FirstFailingRankIsBlamedAndTheOthersAreStopped) {
  place(small_spec("a", 4), 2);
  clear();
  auto cause = ended("a", "user_error");
  cause.mutable_ended()->set_first_rank(3);
  cause.mutable_ended()->set_exit_code(1);
  report(1, {cause});
  pass(400);
  live(2, 400);
  EXPECT_TRUE(job("a").attempt_live) << "the last call";
  auto follows = ended("a", "signal");
  follows.mutable_ended()->set_signal(15);
  report(0, {follows});
  EXPECT_FALSE(job("a").attempt_live);
  const auto records = records_of("a");
  const pb::AttemptFinished& finished = records.back().finished();
  EXPECT_EQ(finished.result(), "user_error");
  EXPECT_EQ(finished.node(), "node-1");
  EXPECT_EQ(finished.first_rank(), 3);
}

TEST_F(Attempts, WhatFollowsIsNotTheCauseEvenWhenItComesFirst) {
  place(small_spec("a", 4), 2);
  auto follows = ended("a", "signal");
  follows.mutable_ended()->set_signal(15);
  report(0, {follows});
  live(2, 2000);
  EXPECT_TRUE(job("a").attempt_live);
  report(1, {ended("a", "hang")});
  EXPECT_THAT(job("a").reason, ::testing::HasSubstr("hang"));
}

pb::AttemptReport with_evidence(pb::AttemptReport ended, uint32_t rank, uint64_t step,
                                int64_t silent_ms, bool halted = false) {
  pb::RankEvidence& behind = *ended.mutable_ended()->mutable_behind();
  behind.set_rank(rank);
  behind.set_step(step);
  behind.set_phase("train");
  behind.set_silent_ms(silent_ms);
  behind.set_halted(halted);
  return ended;
}

TEST_F(Attempts, HangOfAGangIsTheRanksThatAllWaitFor) {
  struct Case {
    uint64_t step;
    int64_t silent_ms;
    bool halted;
    bool other;  // the rank of the other node is blamed
  };
  for (const Case& c :
       {Case{9, 50000, false, true}, Case{11, 90000, false, false}, Case{10, 70000, false, true},
        Case{10, 50000, false, false}, Case{12, 1000, true, true}}) {
    SCOPED_TRACE(c.step * 1000 + static_cast<uint64_t>(c.silent_ms));
    const std::string name = "a" + std::to_string(now_);
    place(small_spec(name, 4), 2);
    report(0, {with_evidence(ended(name, "hang"), 1, 10, 60000)});
    live(2, 1400);
    EXPECT_TRUE(job(name).attempt_live) << "the other node is to be heard";
    auto other = with_evidence(ended(name, "killed"), 3, c.step, c.silent_ms, c.halted);
    other.mutable_ended()->mutable_behind()->set_silent_ms(c.silent_ms + 1400);
    report(1, {other});
    ASSERT_EQ(job(name).state, JobState::kBackoff);
    const pb::AttemptFinished finished = records_of(name).back().finished();
    EXPECT_EQ(finished.result(), "hang");
    EXPECT_EQ(finished.node(), c.other ? "node-1" : "node-0");
    EXPECT_EQ(finished.first_rank(), c.other ? 3 : 0);
    EXPECT_EQ(state_.vol.blamed.at(name), finished.node());
    EXPECT_EQ(cancel(name, true).code(), 0);
    live(2, 1000);
  }
}

TEST_F(Attempts, HangWaitsNotForEverForTheOtherNodes) {
  place(small_spec("a", 4), 2);
  report(0, {with_evidence(ended("a", "hang"), 1, 10, 60000)});
  live(2, config_.weak_call_ms + 400);
  EXPECT_FALSE(job("a").attempt_live);
  EXPECT_EQ(records_of("a").back().finished().node(), "node-0");
}

TEST_F(Attempts, LastCallEnds) {
  place(small_spec("a", 4), 2);
  clear();
  report(1, {ended("a", "signal")});
  live(2, 1400);
  EXPECT_THAT(kinds_of("a"), ::testing::HasSubstr("attempt_ended"));
  ASSERT_FALSE(stops("a").empty()) << "node-0 still runs it";
  EXPECT_EQ(stops("a")[0].mode(), pb::STOP_KILL);
}

TEST_F(Attempts, LostCommandsAreSentAgain) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  pass(200);
  clear();
  for (int i = 0; i < 3; ++i) {
    beat(0);  // it has never heard of it
    pass(1000);
  }
  EXPECT_EQ(starts("a").size(), 3U);
  live(1, 3000);
  clear();
  live(1, 3000);
  EXPECT_TRUE(starts("a").empty()) << "it reports the attempt";
}

TEST_F(Attempts, WorkerThatNeverTakesItFailsTheLaunch) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  pass(200);
  for (int i = 0; i < 122 && job("a").attempt_live; ++i) {
    beat(0);
    pass(1000);
  }
  EXPECT_EQ(job("a").state, JobState::kBackoff);
  EXPECT_THAT(job("a").reason, ::testing::HasSubstr("launch_failed"));
}

TEST_F(Attempts, StoppedWithoutBeingAskedIsQueuedAgainFree) {
  place(small_spec("a"), 1);
  report(0, {step("a", 3), ended("a", "stopped", 3)});
  EXPECT_EQ(job("a").state, JobState::kQueued);
  EXPECT_EQ(job("a").restarts_since_commit, 0U);
}

TEST_F(Attempts, CancelIsStoredFirstAndWinsOverTheEnd) {
  place(small_spec("a"), 1);
  report(0, {step("a", 9)});
  clear();
  EXPECT_EQ(cancel("a", false).code(), 0);
  EXPECT_EQ(job("a").state, JobState::kStopping);
  ASSERT_EQ(stops("a").size(), 1U);
  EXPECT_EQ(stops("a")[0].mode(), pb::STOP_CHECKPOINT);
  report(0, {done("a", 10), ended("a", "done", 10)});
  EXPECT_EQ(job("a").state, JobState::kCancelled);
  EXPECT_EQ(cancel("a", false).code(), 0) << "twice is fine";
}

TEST_F(Attempts, CancelNowKillsAndMayFollowAGentleOne) {
  place(small_spec("a"), 1);
  EXPECT_EQ(cancel("a", false).code(), 0);
  clear();
  EXPECT_EQ(cancel("a", true).code(), 0);
  ASSERT_FALSE(stops("a").empty());
  EXPECT_EQ(stops("a")[0].mode(), pb::STOP_KILL);
  beat(0, {running("a")});
  EXPECT_EQ(wanted_counts(), std::vector<int>{0});
  report(0, {ended("a", "killed")});
  EXPECT_EQ(job("a").state, JobState::kCancelled);
}

TEST_F(Attempts, CancelOfWaitingAndEndedJobs) {
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  EXPECT_EQ(cancel("a", false).code(), 0);
  EXPECT_EQ(job("a").state, JobState::kCancelled);
  EXPECT_EQ(cancel("b", false).code(), 3);
  join(0);
  pass(2000);
  EXPECT_EQ(job("a").epoch, 0U) << "it is not placed";
}

TEST_F(Attempts, ResumeGivesNewBudgets) {
  place(small_spec("a"), 1);
  report(0, {ended("a", "config_error")});
  ASSERT_EQ(job("a").state, JobState::kFailed);
  pb::Request request;
  request.mutable_resume()->set_job("a");
  EXPECT_EQ(ask(request).code(), 0);
  beat(0);
  pass(200);
  EXPECT_EQ(job("a").state, JobState::kStarting);
  EXPECT_EQ(job("a").epoch, 2U);
  EXPECT_EQ(ask(request).code(), 4) << "it runs";
}

struct BudgetCase {
  const char* name;
  const char* result;
  uint64_t restarts, no_progress;  // before
  bool progressed;
  const char* job_end;
  uint64_t restarts_after, no_progress_after;
  int64_t delay_ms;
  uint64_t launch_failures = 0;  // before, in a row
};

class Budget : public ::testing::TestWithParam<BudgetCase> {};

TEST_P(Budget, Table) {
  const BudgetCase& c = GetParam();
  Job job;
  job.spec.mutable_fault_tolerance()->set_max_restarts(20);
  job.spec.mutable_fault_tolerance()->set_max_no_progress(3);
  job.restarts_since_commit = c.restarts;
  job.no_progress = c.no_progress;
  job.launch_failures = c.launch_failures;
  const Verdict verdict = judge_end(job, c.result, "why", c.progressed);
  EXPECT_EQ(verdict.job_end, c.job_end);
  EXPECT_EQ(verdict.restarts_since_commit, c.restarts_after);
  EXPECT_EQ(verdict.no_progress, c.no_progress_after);
  EXPECT_EQ(verdict.delay_ms, c.delay_ms);
}

INSTANTIATE_TEST_SUITE_P(
    Ends, Budget,
    ::testing::Values(BudgetCase{"Signal", "signal", 0, 0, false, "", 1, 0, 0},
                      BudgetCase{"SignalKeepsNoProgress", "signal", 3, 2, false, "", 4, 2, 0},
                      BudgetCase{"NodeLost", "node_lost", 19, 0, false, "", 20, 0, 0},
                      BudgetCase{"NodeLostTooOften", "node_lost", 20, 0, true, "FAILED", 20, 0, 0},
                      BudgetCase{"FirstExit", "user_error", 0, 0, false, "", 1, 1, 1000},
                      BudgetCase{"SecondExit", "user_error", 1, 1, false, "", 2, 2, 2000},
                      BudgetCase{"ThirdExit", "user_error", 2, 2, false, "FAILED", 2, 3, 0},
                      BudgetCase{"ExitWithProgress", "user_error", 2, 2, true, "", 3, 0, 1000},
                      BudgetCase{"Hang", "hang", 0, 0, false, "", 1, 1, 1000},
                      BudgetCase{"ThirdHang", "hang", 2, 2, false, "FAILED", 2, 3, 0},
                      BudgetCase{"Numeric", "numeric", 0, 0, true, "FAILED", 0, 0, 0},
                      BudgetCase{"Config", "config_error", 0, 0, false, "FAILED", 0, 0, 0},
                      BudgetCase{"Stopped", "stopped", 5, 1, false, "", 5, 1, 0},
                      BudgetCase{"Launch", "launch_failed", 0, 0, false, "", 1, 0, 1000},
                      BudgetCase{"LaunchAfterKills", "launch_failed", 5, 0, false, "", 6, 0, 1000},
                      BudgetCase{"LaunchAgain", "launch_failed", 3, 0, false, "", 4, 0, 8000, 3},
                      BudgetCase{"LaunchLongest", "launch_failed", 12, 0, false, "", 13, 0, 60000,
                                 12},
                      BudgetCase{"Unknown", "?", 0, 0, false, "", 1, 1, 1000}),
    [](const auto& parameters) { return std::string(parameters.param.name); });

TEST_F(Attempts, LaunchFailuresWaitByHowManyThereWereInARow) {
  place(small_spec("a"), 1);
  const auto end = [this](const std::string& result) {
    report(0, {ended("a", result)});
    const int64_t delay_ms = job("a").retry_delay_ms;
    live(1, delay_ms + 1000);
    EXPECT_TRUE(job("a").attempt_live);
    return delay_ms;
  };
  for (int kill = 0; kill < 5; ++kill) EXPECT_EQ(end("signal"), 0);
  EXPECT_EQ(end("launch_failed"), 1000);
  EXPECT_EQ(end("launch_failed"), 2000);
  restart();
  join(0);
  EXPECT_EQ(end("launch_failed"), 4000) << "counted from the records";
  EXPECT_EQ(end("signal"), 0);
  EXPECT_EQ(end("launch_failed"), 1000);
}

TEST_F(Attempts, BackoffWaitsAlsoOverARestart) {
  place(small_spec("a"), 1);
  report(0, {ended("a", "user_error")});
  ASSERT_EQ(job("a").state, JobState::kBackoff);
  restart();
  join(0);
  pass(600);
  EXPECT_FALSE(job("a").attempt_live);
  pass(800);
  EXPECT_TRUE(job("a").attempt_live);
  EXPECT_EQ(job("a").no_progress, 1U);
}

}  // namespace
}  // namespace swax::coord::test
