// Requests: durable answers, conflicts, refusals, views.
#include <bit>

#include "tests/coordinator/core_rig.h"

namespace swax::coord::test {
namespace {

class Requests : public CoreRig {};
const std::string kId = "0123456789abcdef0123456789abcdef";

TEST_F(Requests, SubmitIsAnsweredInItsBatchAndOnce) {
  const pb::Reply first = submit(small_spec("a"), kId);
  EXPECT_EQ(first.code(), 0);
  EXPECT_FALSE(first.existing());
  ASSERT_EQ(out().records.size(), 1U);
  ASSERT_EQ(out().answers.size(), 1U);
  EXPECT_EQ(out().answers[0].request_id, kId);
  const pb::Reply again = submit(small_spec("a"), kId);
  EXPECT_EQ(again.code(), 0);
  EXPECT_TRUE(again.existing());
  EXPECT_EQ(again.jobs(0).job(), "a");
  EXPECT_TRUE(out().records.empty());
  restart();
  EXPECT_TRUE(submit(small_spec("a"), kId).existing());
  EXPECT_EQ(state_.durable.jobs.size(), 1U);
}

TEST_F(Requests, AnswerSaysWhatIsDoneAtOnce) {
  EXPECT_EQ(submit(small_spec("none")).jobs(0).reason(), "WaitingForCapacity");
  ASSERT_EQ(cancel("none", true).code(), 0);
  join(0, 2);
  const pb::Reply placed = submit(small_spec("a", 2));
  EXPECT_EQ(placed.jobs(0).state(), "STARTING");
  EXPECT_EQ(placed.jobs(0).reason(), "");
  EXPECT_EQ(starts("a").size(), 1U);
  const pb::Reply waits = submit(small_spec("b", 2));
  EXPECT_EQ(waits.jobs(0).state(), "QUEUED");
  EXPECT_EQ(waits.jobs(0).reason(), "WaitingForSlots");
  join(1, 2);
  pb::Request request;
  request.mutable_resume()->set_job("none");
  EXPECT_EQ(ask(request).jobs(0).state(), "STARTING") << "it is older than b";
  EXPECT_FALSE(job("b").attempt_live);
}

TEST_F(Requests, SameIdWithAnotherBodyIsAConflict) {
  ASSERT_EQ(submit(small_spec("a"), kId).code(), 0);
  const pb::Reply reply = submit(small_spec("b"), kId);
  EXPECT_EQ(reply.code(), 4);
  EXPECT_THAT(reply.error(), ::testing::HasSubstr("another request"));
  EXPECT_EQ(state_.durable.jobs.size(), 1U);
}

TEST_F(Requests, NamesAreUniqueAndTheAnswerSaysWhatToDo) {
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  const pb::Reply live = submit(small_spec("a"));
  EXPECT_EQ(live.code(), 4);
  EXPECT_THAT(live.error(), ::testing::HasSubstr("swax cancel a"));
  ASSERT_EQ(cancel("a", true).code(), 0);
  const pb::Reply ended = submit(small_spec("a"));
  EXPECT_EQ(ended.code(), 4);
  EXPECT_THAT(ended.error(), ::testing::HasSubstr("swax resume a"));
}

TEST_F(Requests, BadSpecsAreRefusedWithTheField) {
  pb::JobSpec spec = small_spec("a");
  spec.mutable_optimizer()->set_lr(-1);
  spec.mutable_training()->set_seq_len(0);
  const pb::Reply reply = submit(spec);
  EXPECT_EQ(reply.code(), 2);
  EXPECT_THAT(reply.error(), ::testing::HasSubstr("optimizer.lr"));
  EXPECT_THAT(reply.error(), ::testing::HasSubstr("training.seq_len"));
  EXPECT_TRUE(out().records.empty());
  EXPECT_EQ(submit(small_spec("a"), "short id").code(), 2);
}

pb::Reply resume(CoreRig& rig, const pb::JobSpec& spec, const std::string& id = "") {
  pb::Request request;
  request.mutable_resume()->set_job("a");
  *request.mutable_resume()->mutable_spec() = spec;
  return rig.ask(request, id);
}

TEST_F(Requests, ResumeWithASpecTakesFreeFieldsOnly) {
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  pb::JobSpec other = small_spec("a", 2);
  other.mutable_optimizer()->set_lr(0.5);
  const pb::Reply refused = resume(*this, other);
  EXPECT_EQ(refused.code(), 4);
  EXPECT_THAT(refused.error(), ::testing::HasSubstr("optimizer.lr"));
  EXPECT_EQ(resume(*this, small_spec("b")).code(), 4) << "another name";
  EXPECT_EQ(job("a").records, 1U);
  EXPECT_EQ(resume(*this, small_spec("a")).code(), 0);
  EXPECT_EQ(job("a").records, 1U) << "nothing has changed";
  EXPECT_EQ(resume(*this, small_spec("a", 2), kId).code(), 0);
  ASSERT_EQ(out().records.size(), 1U);
  EXPECT_THAT(out().records[0].spec_changed().text(), ::testing::HasSubstr("parallelism.ranks"));
  EXPECT_TRUE(resume(*this, small_spec("a", 2), kId).existing());
  EXPECT_EQ(replayed_.jobs.at("a").spec.parallelism().ranks(), 2U);
  join(0);
  pass(200);
  EXPECT_EQ(job("a").ranks.size(), 2U) << "the next attempt has them";
}

TEST_F(Requests, ResumeWithASpecGoesOnAfterTheEnd) {
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  ASSERT_EQ(cancel("a", true).code(), 0);
  EXPECT_EQ(resume(*this, small_spec("a", 2)).code(), 0);
  ASSERT_EQ(out().records.size(), 2U);
  EXPECT_TRUE(out().records[0].has_resumed());
  EXPECT_EQ(job("a").state, JobState::kQueued);
  EXPECT_EQ(job("a").spec.parallelism().ranks(), 2U);
}

// A request that changes nothing is remembered as well: its late copy must not undo what came
// after.
TEST_F(Requests, LateCopiesChangeNothing) {
  pb::Request cancel_a, resume_a;
  cancel_a.mutable_cancel()->set_job("a");
  cancel_a.mutable_cancel()->set_now(true);
  resume_a.mutable_resume()->set_job("a");
  *resume_a.mutable_resume()->mutable_spec() = small_spec("a");
  const std::string idle_resume = std::string(31, '0') + "1";
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  EXPECT_TRUE(ask(resume_a, idle_resume).existing()) << "it goes on anyway";
  ASSERT_EQ(cancel("a", true).code(), 0);
  EXPECT_EQ(ask(cancel_a, kId).jobs(0).state(), "CANCELLED") << "it is already";
  EXPECT_EQ(ask(resume_a, idle_resume).jobs(0).state(), "CANCELLED") << "a late copy";
  EXPECT_EQ(job("a").state, JobState::kCancelled);
  ASSERT_EQ(resume(*this, small_spec("a")).code(), 0);
  restart();
  EXPECT_TRUE(ask(cancel_a, kId).existing()) << "a late copy";
  EXPECT_EQ(job("a").state, JobState::kQueued);
  EXPECT_FALSE(job("a").stop);
}

TEST_F(Requests, ALateCopyOfASecondCancelDoesNotEndTheNextAttempt) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  live(1, 1000);
  ASSERT_TRUE(job("a").attempt_live);
  pb::Request again;
  again.mutable_cancel()->set_job("a");
  ASSERT_EQ(cancel("a", false).code(), 0);
  EXPECT_EQ(ask(again, kId).code(), 0) << "asked already";
  report(0, {ended("a", "stopped")});
  pass(2000);
  ASSERT_EQ(job("a").state, JobState::kCancelled);
  ASSERT_EQ(resume(*this, small_spec("a")).code(), 0);
  EXPECT_EQ(ask(again, kId).code(), 0) << "a late copy";
  EXPECT_FALSE(job("a").stop);
}

TEST_F(Requests, HistoryIsForPeople) {
  join(0);
  join(1);
  ASSERT_EQ(submit(small_spec("a", 3)).code(), 0);
  ASSERT_EQ(out().records.size(), 2U) << "submitted, and placed at once";
  EXPECT_EQ(history_event(out().records.at(1)).text(), "3 ranks: 2 on node-0, 1 on node-1");
  pb::AttemptReport validation = about("a");
  validation.mutable_validation()->set_step(4);
  validation.mutable_validation()->set_bpb_bits(std::bit_cast<uint64_t>(2.5));
  validation.mutable_validation()->set_loss_bits(std::bit_cast<uint64_t>(1.75));
  validation.mutable_validation()->set_final(true);
  report(0, {validation});
  EXPECT_EQ(history_event(out().records.at(0)).text(),
            "2.5000 bits per byte, loss 1.7500, all held-out text");
}

TEST_F(Requests, TooManyJobsAreAQuota) {
  config_.jobs_active_max = 2;
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  ASSERT_EQ(submit(small_spec("b")).code(), 0);
  EXPECT_EQ(submit(small_spec("c")).code(), 8);
}

TEST_F(Requests, HeldJobsAreShownAndLeftAlone) {
  join(0, 4);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  ASSERT_EQ(submit(small_spec("b")).code(), 0);
  pass(200);
  const pb::RunningAttempt attempt = running("a");
  restart();
  hold_job(state_.durable, "a", "record 3 cannot be read");
  state_.vol.live.erase("a");
  pb::Request request;
  request.mutable_status()->set_job("a");
  const pb::Reply status = ask(request);
  EXPECT_EQ(status.jobs(0).state(), "HELD");
  EXPECT_THAT(status.jobs(0).message(), ::testing::HasSubstr("record 3"));
  EXPECT_EQ(cancel("a", true).code(), 4);
  EXPECT_EQ(submit(small_spec("a")).code(), 4);
  join(0, 4);
  beat(0, {attempt, running("b")});
  EXPECT_EQ(wanted_counts(), std::vector<int>{2}) << "its ranks go on";
  live(1, 2000);
  EXPECT_TRUE(job("b").attempt_live);
}

// After a start nothing is live of a held job, but its ranks run on and keep their slots.
TEST_F(Requests, HeldJobsKeepTheirSlots) {
  join(0, 2);
  ASSERT_EQ(submit(small_spec("a", 2)).code(), 0);
  pass(200);
  const pb::RunningAttempt attempt = running("a");
  restart();
  hold_job(state_.durable, "a", "record 3 cannot be read");
  state_.vol.live.erase("a");
  const auto beat_on = [&](const pb::RunningAttempt& a, int64_t ms) {
    for (int64_t end = now_ + ms; now_ < end;) {
      beat(0, {a});
      pass(200);
    }
  };
  join(0, 2);
  beat_on(attempt, 400);
  ASSERT_EQ(submit(small_spec("b", 1)).code(), 0);
  beat_on(attempt, 2000);
  EXPECT_FALSE(job("b").attempt_live) << "both slots are a's";
  pb::RunningAttempt later = attempt;
  later.set_epoch(attempt.epoch() + 1);  // of records that cannot be read
  beat_on(later, 2000);
  EXPECT_FALSE(job("b").attempt_live) << "how many slots it has is not known";
  pb::RunningAttempt ended = attempt;
  ended.set_phase("ended");
  beat_on(ended, 600);
  EXPECT_TRUE(job("b").attempt_live);
}

TEST_F(Requests, ViewsTellWhyAndWhatToDo) {
  ASSERT_EQ(submit(small_spec("a", 2)).code(), 0);
  pb::Request list;
  list.mutable_list();
  const pb::Reply reply = ask(list);
  ASSERT_EQ(reply.jobs_size(), 1);
  EXPECT_EQ(reply.jobs(0).state(), "QUEUED");
  EXPECT_EQ(reply.jobs(0).reason(), "WaitingForCapacity");
  EXPECT_THAT(reply.jobs(0).message(), ::testing::HasSubstr("start more workers"));
  EXPECT_EQ(reply.jobs(0).store_path(), "/store/jobs/a");
  join(0);
  pass(200);
  pb::Request nodes;
  nodes.mutable_nodes();
  const pb::Reply answer = ask(nodes);
  ASSERT_EQ(answer.nodes_size(), 1);
  EXPECT_EQ(answer.nodes(0).state(), "ALLOCATED");
  EXPECT_EQ(answer.nodes(0).slots_used(), 2U);
  pb::Request unknown;
  unknown.mutable_status()->set_job("zzz");
  EXPECT_EQ(ask(unknown).code(), 3);
}

}  // namespace
}  // namespace swax::coord::test
