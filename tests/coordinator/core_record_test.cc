// apply_record: the only writer of durable state takes what fits and changes nothing otherwise.
#include <functional>

#include "tests/coordinator/core_rig.h"

namespace swax::coord::test {
namespace {

using Fill = std::function<void(pb::JobRecord&)>;

pb::JobRecord make(uint64_t number, const Fill& fill) {
  pb::JobRecord r;
  r.set_job("a");
  r.set_number(number);
  fill(r);
  return r;
}

void fill_created(pb::JobRecord& r) { r.mutable_created()->set_order(1); }
void fill_placed(pb::JobRecord& r) {
  r.mutable_placed()->set_epoch(1);
  r.mutable_placed()->add_ranks()->set_node("node-0");
}
void fill_finished(pb::JobRecord& r) { r.mutable_finished()->set_epoch(1); }
void fill_committed(pb::JobRecord& r) {
  r.mutable_committed()->set_step(10);
  r.mutable_committed()->set_epoch(1);
}
void fill_end(pb::JobRecord& r) { r.mutable_job_finished()->set_state("FAILED"); }
void fill_success(pb::JobRecord& r) { r.mutable_job_finished()->set_state("SUCCEEDED"); }
void fill_stop(pb::JobRecord& r) { r.mutable_stop_asked()->set_outcome("CANCELLED"); }
void fill_resumed(pb::JobRecord& r) { r.mutable_resumed(); }

struct Case {
  const char* name;
  std::vector<Fill> before;  // records 1..n, all taken
  Fill record;
  const char* problem;  // part of the text; "": taken
};

class ApplyRecord : public ::testing::TestWithParam<Case> {};

TEST_P(ApplyRecord, TakesWhatFitsAndNothingElse) {
  Durable durable;
  for (const Fill& fill : GetParam().before)
    ASSERT_EQ(
        apply_record(durable, make(durable.jobs.empty() ? 1 : durable.jobs["a"].records + 1, fill)),
        std::nullopt);
  const uint64_t number = durable.jobs.contains("a") ? durable.jobs["a"].records + 1 : 1;
  const auto state = durable.jobs.contains("a") ? durable.jobs["a"].state : JobState::kHeld;
  const auto problem = apply_record(durable, make(number, GetParam().record));
  if (std::string(GetParam().problem).empty()) {
    EXPECT_EQ(problem, std::nullopt);
    EXPECT_EQ(durable.jobs["a"].records, number);
    return;
  }
  ASSERT_TRUE(problem.has_value());
  EXPECT_THAT(*problem, ::testing::HasSubstr(GetParam().problem));
  if (!durable.jobs.contains("a")) return;
  EXPECT_EQ(durable.jobs["a"].records, number - 1);
  EXPECT_EQ(durable.jobs["a"].state, state);
}

const std::vector<Case> kCases = {
    {"Created", {}, fill_created, ""},
    {"CreatedTwice", {fill_created}, fill_created, "exists already"},
    {"NeverCreated", {}, fill_placed, "never created"},
    {"Placed", {fill_created}, fill_placed, ""},
    {"PlacedWhileLive", {fill_created, fill_placed}, fill_placed, "while another one is live"},
    {"PlacedSkipsAnEpoch",
     {fill_created},
     [](pb::JobRecord& r) {
       fill_placed(r);
       r.mutable_placed()->set_epoch(2);
     },
     "not consecutive"},
    {"PlacedWithoutRanks",
     {fill_created},
     [](pb::JobRecord& r) { r.mutable_placed()->set_epoch(1); },
     "without ranks"},
    {"PlacedAfterStop", {fill_created, fill_stop}, fill_placed, "after a stop"},
    {"FinishedTwice", {fill_created, fill_placed, fill_finished}, fill_finished, "ends twice"},
    {"Committed", {fill_created, fill_placed}, fill_committed, ""},
    {"CommittedTwice",
     {fill_created, fill_placed, fill_committed},
     fill_committed,
     "commits twice"},
    {"CommittedAfterTheAttempt", {fill_created, fill_placed, fill_finished}, fill_committed, ""},
    {"CommittedOfNoAttempt", {fill_created}, fill_committed, "never was"},
    {"UnknownCheckpointRetires",
     {fill_created},
     [](pb::JobRecord& r) { r.mutable_retired()->set_step(3); },
     "unknown checkpoint"},
    {"EndWhileLive", {fill_created, fill_placed}, fill_end, "while an attempt is live"},
    {"EndTwice", {fill_created, fill_end}, fill_success, "after the end FAILED"},
    {"StopAfterTheEnd", {fill_created, fill_end}, fill_stop, "after the end FAILED"},
    {"PlacedAfterTheEnd", {fill_created, fill_end}, fill_placed, "after the end FAILED"},
    {"NotedAfterTheEnd",
     {fill_created, fill_end},
     [](pb::JobRecord& r) { r.mutable_noted()->set_kind("x"); },
     ""},
    {"ResumedAfterFailure", {fill_created, fill_end}, fill_resumed, ""},
    {"ResumedAfterSuccess", {fill_created, fill_success}, fill_resumed, "only a failed"},
    {"ResumedWhileActive", {fill_created}, fill_resumed, "only a failed"},
    {"UnknownKind", {fill_created}, [](pb::JobRecord&) {}, "does not know"},
    {"ResultOfNoAttempt",
     {fill_created},
     [](pb::JobRecord& r) { r.mutable_result()->set_epoch(1); },
     "old attempt"},
};

INSTANTIATE_TEST_SUITE_P(Table, ApplyRecord, ::testing::ValuesIn(kCases),
                         [](const auto& parameters) { return std::string(parameters.param.name); });

TEST(ApplyRecordOfAnOlderBuild, KeysThatItLacksHaveTheirDefaults) {
  Durable durable;
  ASSERT_EQ(apply_record(durable, make(1, fill_created)), std::nullopt);
  EXPECT_EQ(durable.jobs["a"].spec.resources().launcher(), "mpirun");
  const Fill changed = [](pb::JobRecord& r) { r.mutable_spec_changed()->mutable_spec(); };
  ASSERT_EQ(apply_record(durable, make(2, changed)), std::nullopt);
  EXPECT_EQ(durable.jobs["a"].spec.resources().launcher(), "mpirun");
}

TEST(ApplyRecordGap, HoldsOneJobOnly) {
  Durable durable;
  ASSERT_EQ(apply_record(durable, make(1, fill_created)), std::nullopt);
  const auto problem = apply_record(durable, make(3, fill_stop));
  ASSERT_TRUE(problem.has_value());
  EXPECT_THAT(*problem, ::testing::HasSubstr("record 2 should stand here"));
  pb::JobRecord other = make(1, fill_created);
  other.set_job("b");
  ASSERT_EQ(apply_record(durable, other), std::nullopt);
  hold_job(durable, "a", *problem);
  EXPECT_EQ(durable.active, std::set<std::string>{"b"});
}

TEST(ApplyRecordBudget, CommitGivesTheRestartsBack) {
  Durable durable;
  ASSERT_EQ(apply_record(durable, make(1, fill_created)), std::nullopt);
  durable.jobs["a"].restarts_since_commit = 5;
  durable.jobs["a"].no_progress = 2;
  ASSERT_EQ(apply_record(durable, make(2, fill_placed)), std::nullopt);
  ASSERT_EQ(apply_record(durable, make(3, fill_committed)), std::nullopt);
  EXPECT_EQ(durable.jobs["a"].restarts_since_commit, 0U);
  EXPECT_EQ(durable.jobs["a"].no_progress, 0U);
  EXPECT_EQ(durable.jobs["a"].progress_step, 10U);
}

}  // namespace
}  // namespace swax::coord::test
