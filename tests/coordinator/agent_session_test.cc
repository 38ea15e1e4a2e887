// The agent and its coordinator: registration, silence, outbox, restarts of either, leaving.
#include <set>

#include "tests/coordinator/agent_rig.h"

namespace swax::agent::test {
namespace {

class Session : public AgentRig {
 public:
  void report_step(uint64_t step) {
    train_step("a", 1, 0, step);
    pass(200);
  }
};

TEST_F(Session, ProvesThatItSeesTheStore) {
  state_ = State();
  clear();
  give(Started{});
  EXPECT_EQ(hellos(), 1);
  pb::Envelope e = from_coordinator();
  e.mutable_welcome()->set_store("/store");
  e.mutable_welcome()->set_store_nonce_file("f");
  hear(e);
  EXPECT_FALSE(state_.registered);
  ASSERT_EQ(all<ReadNonce>().size(), 1U);
  EXPECT_EQ(all<ReadNonce>()[0].file, "f");
  give(NonceRead{.nonce = "secret"});
  EXPECT_EQ(hellos(), 2);
  EXPECT_EQ(all<Send>().back().envelope.hello().store_nonce(), "secret");
  welcome();
  EXPECT_TRUE(state_.registered);
}

TEST_F(Session, FinalRefusalEndsTheAgentOthersAreTriedAgain) {
  state_ = State();
  give(Started{});
  clear();
  pb::Envelope e = from_coordinator();
  e.mutable_welcome()->set_refusal("another worker holds the name");
  hear(e);
  pass(5000);
  EXPECT_GE(hellos(), 2);
  EXPECT_TRUE(all<Exit>().empty());
  e = from_coordinator();
  e.mutable_welcome()->set_final(true);
  hear(e);
  ASSERT_EQ(all<Exit>().size(), 1U);
  EXPECT_EQ(all<Exit>()[0].code, 78);
}

TEST_F(Session, BeatsEverySecondAndNamesWhatRuns) {
  run("a", 1);
  clear();
  for (int i = 0; i < 5; ++i) {
    want({{"a", 1}});
    pass(1000);
  }
  int beats = 0;
  for (const Send& send : all<Send>()) {
    if (!send.envelope.has_heartbeat()) continue;
    ++beats;
    ASSERT_EQ(send.envelope.heartbeat().attempts_size(), 1);
    EXPECT_EQ(send.envelope.heartbeat().attempts(0).job(), "a");
  }
  EXPECT_EQ(beats, 5);
}

TEST_F(Session, SilenceBringsANewSocketAndTrainingGoesOn) {
  run("a", 1);
  phase("a", 1, 0, "train");
  clear();
  for (int i = 0; i < 60; ++i) {
    train_step("a", 1, 0, static_cast<uint64_t>(i) + 1);
    pass(1000);
  }
  EXPECT_GE(all<Reconnect>().size(), 4U);
  EXPECT_LE(all<Reconnect>().size(), 12U) << "further and further apart";
  EXPECT_TRUE(all<Kill>().empty());
  EXPECT_EQ(state_.outbox_steps.size(), 60U);
  clear();
  welcome();
  pass(200);
  EXPECT_EQ(sent_reports().size(), 61U) << "launched, and every step";
}

TEST_F(Session, WelcomeSaysHowOftenToBeatAndHowLongToWait) {
  pb::Envelope e = from_coordinator();
  e.mutable_welcome()->set_accepted(true);
  e.mutable_welcome()->set_heartbeat_ms(4000);
  e.mutable_welcome()->set_lost_ms(20000);
  hear(e);
  pass(4000);
  clear();
  pass(8000);
  int beats = 0;
  for (const Send& send : all<Send>()) beats += send.envelope.has_heartbeat() ? 1 : 0;
  EXPECT_EQ(beats, 2);
  pass(7600);
  EXPECT_TRUE(all<Reconnect>().empty());
  pass(1000);
  EXPECT_EQ(all<Reconnect>().size(), 1U);
}

TEST_F(Session, WorkersComeBackApart) {
  std::set<int64_t> waits;
  for (const std::string node : {"n0", "n1", "n2", "n3", "n4"}) {
    State state;
    Config config = config_;
    config.node = node;
    agent::step(state, config, {.now_ms = 0, .wall_ms = 0, .body = Started{}});
    agent::step(state, config, {.now_ms = 900, .wall_ms = 0, .body = Tick{}});
    for (int64_t now = 1000; now <= 6000; now += 200)
      agent::step(state, config, {.now_ms = now, .wall_ms = 0, .body = Tick{}});
    waits.insert(state.hello_due_ms);
  }
  EXPECT_GE(waits.size(), 3U);
}

TEST_F(Session, ReportsStayUntilAcknowledged) {
  run("a", 1);
  clear();
  report_step(1);
  report_step(2);
  ASSERT_EQ(all<SaveOutbox>().size(), 2U);
  EXPECT_EQ(state_.outbox.size(), 3U);  // launched and two steps
  pass(config_.resend_ms);
  EXPECT_GE(sent_reports().size(), 5U) << "sent again: nobody answered";
  acknowledge(2);
  EXPECT_EQ(state_.outbox.size(), 1U);
  acknowledge(1);
  EXPECT_EQ(state_.outbox.size(), 1U) << "an old word";
  acknowledge(99);
  EXPECT_TRUE(state_.outbox.empty());
  pass(200);
  EXPECT_EQ(all<SaveOutbox>().back().drop_through, 3U);
}

TEST_F(Session, RunsOfTheOutboxNameWhatCameBefore) {
  run("a", 1);
  clear();
  report_step(1);
  const auto first = all<Send>();
  EXPECT_EQ(first.back().envelope.attempt_reports().after(), 1U);
  acknowledge(1);
  acknowledge(2);
  report_step(2);
  for (const Send& send : all<Send>()) {
    if (send.envelope.has_attempt_reports() &&
        send.envelope.attempt_reports().reports(0).index() == 3) {
      EXPECT_EQ(send.envelope.attempt_reports().after(), 0U) << "nothing older is left";
    }
  }
}

TEST_F(Session, OnlyStepsAreDroppedAndTheyAreCounted) {
  config_.outbox_steps_max = 10;
  run("a", 1);
  pb::RankMessage m;
  m.mutable_durable()->set_step(5);
  for (uint64_t step = 1; step <= 30; ++step) {
    train_step("a", 1, 0, step);
    if (step == 5) say("a", 1, 0, m);
  }
  EXPECT_EQ(state_.outbox_steps.size(), 10U);
  EXPECT_EQ(state_.steps_dropped, 20U);
  EXPECT_EQ(state_.outbox.size(), 12U);  // launched and durable are kept
}

TEST_F(Session, MessagesStayBelowTheFrame) {
  config_.send_bytes_max = 1000;
  run("a", 1);
  clear();
  for (uint64_t step = 1; step <= 100; ++step) train_step("a", 1, 0, step);
  pass(200);
  int messages = 0;
  for (const Send& send : all<Send>()) {
    if (!send.envelope.has_attempt_reports()) continue;
    ++messages;
    EXPECT_LE(send.envelope.ByteSizeLong(), 1200U);
  }
  EXPECT_GE(messages, 2);
}

TEST_F(Session, OldCoordinatorsAndStrangersAreNotHeard) {
  run("a", 1);
  clear();
  coordinator_epoch_ = 6;
  want({});
  coordinator_epoch_ = 7;
  pb::Envelope e = from_coordinator();
  e.mutable_heartbeat_reply();
  e.set_incarnation(2);
  hear(e);
  e.set_incarnation(3);
  e.set_cluster_id("another");
  hear(e);
  EXPECT_TRUE(all<Kill>().empty());
}

TEST_F(Session, NewCoordinatorHearsWhatTheOldOneMayHaveForgotten) {
  run("a", 1);
  for (const uint64_t step : {2U, 4U, 6U}) {
    pb::RankMessage m;
    m.mutable_durable()->set_step(step);
    say("a", 1, 0, m);
  }
  acknowledge(99);
  ASSERT_TRUE(state_.outbox.empty());
  clear();
  now_ += 1000;
  coordinator_epoch_ = 8;
  want({});  // of a process that does not know us
  EXPECT_TRUE(all<Kill>().empty());
  EXPECT_FALSE(state_.registered);
  EXPECT_EQ(hellos(), 1);
  EXPECT_EQ(all<Send>().back().envelope.hello().attempts(0).job(), "a");
  welcome();
  std::vector<uint64_t> steps;
  for (const auto& r : sent_reports()) steps.push_back(r.durable().step());
  EXPECT_EQ(steps, (std::vector<uint64_t>{4, 6}));
  close("a", 1, 0, -1, 9);
  sweep("a", 1);
  acknowledge(99);
  coordinator_epoch_ = 9;
  clear();
  welcome();
  EXPECT_EQ(sent_ends().size(), 1U) << "the end is told again until the coordinator knows it";
  acknowledge(99, "a", 1);
  EXPECT_TRUE(state_.attempts.empty());
}

TEST_F(Session, WhoAreYouIsAnsweredButNotInAStorm) {
  clear();
  now_ += 1000;
  for (int i = 0; i < 20; ++i) {
    pb::Envelope e = from_coordinator();
    e.mutable_who_are_you();
    hear(e);
  }
  EXPECT_EQ(hellos(), 1);
}

TEST_F(Session, RestartedAgentGoesOnWithItsOutbox) {
  run("a", 1);
  report_step(1);
  State next;
  next.outbox = state_.outbox;
  next.next_report = state_.next_report;
  next.accepted = state_.accepted;
  state_ = next;
  clear();
  give(Started{});
  welcome();
  EXPECT_EQ(sent_reports().size(), 2U);
  hear(start_message("a", 1));
  ASSERT_EQ(sent_ends().size(), 1U);
  EXPECT_GT(state_.outbox.rbegin()->first, 2U) << "numbers go on";
}

TEST_F(Session, LeavesWithACheckpoint) {
  run("a", 1);
  clear();
  give(StopSignal{.checkpoint = true});
  EXPECT_EQ(all<Send>().back().envelope.hello().slots(), 0U) << "gets no new work";
  EXPECT_EQ(all<TellRank>().size(), 1U);
  phase("a", 1, 0, "leaving");
  close("a", 1, 0, 99);
  launcher("a", 1, 99);
  sweep("a", 1);
  pass(1000);
  EXPECT_TRUE(all<Exit>().empty()) << "its reports are not acknowledged yet";
  acknowledge(99);
  pass(200);
  ASSERT_EQ(all<Exit>().size(), 1U);
  EXPECT_EQ(all<Exit>()[0].code, 99);
}

TEST_F(Session, LeavesAtOnceWhenNobodyListens) {
  run("a", 1);
  clear();
  give(StopSignal{.checkpoint = false});
  EXPECT_EQ(all<Kill>().size(), 1U);
  sweep("a", 1);
  pass(config_.leave_ms + 400);
  ASSERT_GE(all<Exit>().size(), 1U);
  EXPECT_EQ(all<Exit>()[0].code, 0);
}

class Watchdog : public AgentRig {};

TEST_F(Watchdog, HangOfAStoppedProcessIsItsOwn) {
  run("a", 1, 2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    phase("a", 1, rank, "train");
    train_step("a", 1, rank, 10);
    pass(10);
  }
  give(RankHalted{.job = "a", .epoch = 1, .rank = 1, .halted = true});
  clear();
  for (int i = 0; i < 200 && all<Kill>().empty(); ++i) {
    want({{"a", 1}});
    pass(1000);
  }
  sweep("a", 1);
  EXPECT_EQ(sent_ends().at(0).first_rank(), 1) << "rank 0 was silent first: it waits";
  EXPECT_NE(sent_ends().at(0).reason().find("stopped"), std::string::npos);
}

}  // namespace
}  // namespace swax::agent::test
