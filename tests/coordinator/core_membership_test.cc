// Who is a worker: names, incarnations, proof of the store, silence, pauses of the coordinator.
#include "tests/coordinator/core_rig.h"

namespace swax::coord::test {
namespace {

class Membership : public CoreRig {
 public:
  pb::Welcome welcome() const {
    for (const Send& send : commands<Send>())
      if (send.envelope.has_welcome()) return send.envelope.welcome();
    return {};
  }
  bool asked_who() const {
    for (const Send& send : commands<Send>())
      if (send.envelope.has_who_are_you()) return true;
    return false;
  }
  pb::Envelope hello(const std::string& name, const std::string& state_id, uint64_t incarnation,
                     uint64_t sequence) const {
    pb::Envelope e;
    e.set_node(name);
    e.set_incarnation(incarnation);
    e.set_sequence(sequence);
    e.mutable_hello()->set_state_id(state_id);
    e.mutable_hello()->set_slots(2);
    e.mutable_hello()->set_store_nonce("nonce");
    return e;
  }
};

TEST_F(Membership, FirstHelloIsAskedForTheNonce) {
  pb::Envelope e = hello("node-0", "s", 1, 1);
  e.mutable_hello()->clear_store_nonce();
  tell(1, e);
  EXPECT_FALSE(welcome().accepted());
  EXPECT_EQ(welcome().refusal(), "");
  EXPECT_EQ(welcome().store_nonce_file(), "nonce-file");
  EXPECT_TRUE(state_.vol.workers.empty());
}

TEST_F(Membership, WrongNonceIsRefusedAndMayTryAgain) {
  pb::Envelope e = hello("node-0", "s", 1, 1);
  e.mutable_hello()->set_store_nonce("of another store");
  tell(1, e);
  EXPECT_FALSE(welcome().accepted());
  EXPECT_THAT(welcome().refusal(), ::testing::HasSubstr("does not see"));
  EXPECT_FALSE(welcome().final());
}

TEST_F(Membership, BadNamesAreRefusedForGood) {
  for (const std::string& name : {std::string(""), std::string("a/b"), std::string("a b"),
                                  std::string(64, 'a'), std::string("../x")}) {
    tell(1, hello(name, "s", 1, 1));
    EXPECT_TRUE(welcome().final()) << name;
  }
}

TEST_F(Membership, SecondPeerUnderATakenNameGetsNothing) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  tell(77, hello("node-0", "another state folder", 9, 1));
  EXPECT_FALSE(welcome().accepted());
  EXPECT_FALSE(welcome().final());
  EXPECT_THAT(welcome().refusal(), ::testing::HasSubstr("another worker holds the name"));
  pass(1000);
  EXPECT_EQ(state_.vol.workers.at("node-0").peer, 1U);
  ASSERT_FALSE(starts("a").empty());
  EXPECT_EQ(sent_to(76).size(), 1U) << "the refusal";
}

TEST_F(Membership, AnotherStateTakesTheNameOnceTheHolderIsLost) {
  join(0);
  pass(6000);
  ASSERT_TRUE(state_.vol.workers.at("node-0").lost);
  tell(77, hello("node-0", "another state folder", 1, 1));
  EXPECT_TRUE(welcome().accepted());
  EXPECT_EQ(state_.vol.workers.at("node-0").peer, 77U);
}

TEST_F(Membership, LaterStartOfTheSameWorkerTakesOverAtOnce) {
  join(0, 2, 1);
  tell(55, hello("node-0", "state-0", 2, 1));
  EXPECT_TRUE(welcome().accepted());
  EXPECT_EQ(state_.vol.workers.at("node-0").peer, 55U);
  ASSERT_EQ(commands<ForgetPeer>().size(), 1U) << "the old connection is of no use";
  EXPECT_EQ(commands<ForgetPeer>()[0].peer, 1U);
  tell(1, hello("node-0", "state-0", 1, 99));
  EXPECT_FALSE(welcome().accepted());
  EXPECT_TRUE(welcome().final());
  EXPECT_EQ(state_.vol.workers.at("node-0").incarnation, 2U);
}

TEST_F(Membership, StrangersAreAskedWhoTheyAre) {
  beat(0);
  EXPECT_TRUE(asked_who());
  join(0);
  beat(0);
  EXPECT_FALSE(asked_who());
  pb::Envelope e;
  e.set_node("node-0");
  e.set_incarnation(1);
  e.set_sequence(50);
  e.mutable_heartbeat();
  tell(44, e);  // right name, other connection
  EXPECT_TRUE(asked_who());
  e.set_incarnation(2);
  tell(1, e);  // right connection, other incarnation
  EXPECT_TRUE(asked_who());
}

TEST_F(Membership, OldHeartbeatsChangeNothing) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  pass(200);
  beat(0, {running("a")});
  pb::Envelope old;
  old.set_node("node-0");
  old.set_incarnation(1);
  old.set_sequence(1);
  old.mutable_heartbeat();
  tell(1, old);
  EXPECT_EQ(state_.vol.workers.at("node-0").attempts.size(), 1U);
  EXPECT_TRUE(commands<Send>().empty());
}

// A worker whose main loop waits for its disk sends its newest beat again and again.
TEST_F(Membership, CopiesOfABeatAreASignOfLifeAndNothingElse) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  pass(200);
  pb::Envelope copy;
  copy.set_node("node-0");
  copy.set_incarnation(1);
  copy.set_sequence(100);
  *copy.mutable_heartbeat()->add_attempts() = running("a");
  tell(1, copy);
  EXPECT_EQ(wanted_counts(), std::vector<int>{1});
  for (int second = 0; second < 10; ++second) {
    pass(1000);
    tell(1, copy);
    EXPECT_TRUE(out().commands.empty());
    EXPECT_TRUE(out().records.empty());
    EXPECT_EQ(node_status(state_, config_, state_.vol.workers.at("node-0"), now_).state(),
              "ALLOCATED");
  }
  EXPECT_TRUE(job("a").attempt_live);
  pass(6000);
  tell(1, copy);
  pass(200);
  EXPECT_TRUE(state_.vol.workers.at("node-0").lost) << "lost is lost until a new beat";
}

TEST_F(Membership, SilenceMakesSuspectThenLost) {
  join(0);
  const auto state = [this] {
    return node_status(state_, config_, state_.vol.workers.at("node-0"), now_).state();
  };
  EXPECT_EQ(state(), "IDLE");
  pass(2400);
  EXPECT_EQ(state(), "SUSPECT");
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  pass(400);
  EXPECT_FALSE(job("a").attempt_live) << "a suspect worker gets no new work";
  pass(2600);
  EXPECT_EQ(state(), "LOST");
  beat(0);
  pass(200);
  EXPECT_TRUE(job("a").attempt_live) << "it came back";
}

TEST_F(Membership, PausedCoordinatorBlamesNobody) {
  join(0);
  join(1);
  ASSERT_EQ(submit(small_spec("a", 4)).code(), 0);
  pass(200);
  live(2, 3000);
  now_ += 60000;  // stopped and continued; the beats wait unread
  give(Tick{});
  EXPECT_FALSE(state_.vol.workers.at("node-0").lost);
  live(2, 3000);
  EXPECT_EQ(job("a").epoch, 1U);
  EXPECT_TRUE(job("a").attempt_live);
}

TEST_F(Membership, AfterAShortPauseTheDeadAreLostAsEver) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  live(1, 3000);
  now_ += 2500;
  pass(6000);
  EXPECT_FALSE(job("a").attempt_live);
}

TEST_F(Membership, WhoSpeaksAfterALongPauseIsLostAsEver) {
  join(0);
  join(1);
  ASSERT_EQ(submit(small_spec("a", 4)).code(), 0);
  live(2, 3000);
  now_ += 60000;
  live(2, 1000);  // may have been sent before
  beat(0, {running("a")});
  pass(6000);
  EXPECT_TRUE(state_.vol.workers.at("node-0").lost);
  EXPECT_FALSE(state_.vol.workers.at("node-1").lost) << "it may be on its way back";
  pass(25000);
  EXPECT_TRUE(state_.vol.workers.at("node-1").lost);
}

// Nobody who was silent for less than lost_ms turned away: a dead worker is given up soon.
TEST_F(Membership, AfterAPauseTheDeadAreWaitedForByItsLength) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  live(1, 3000);
  now_ += 4000;
  pass(10000);
  EXPECT_TRUE(job("a").attempt_live);
  pass(2000);
  EXPECT_FALSE(job("a").attempt_live);
}

// Coordinator and workers killed together, then all are there again.
TEST_F(Membership, WorkersThatAreBackAreNotWaitedFor) {
  join(0);
  join(1);
  ASSERT_EQ(submit(small_spec("a", 4)).code(), 0);
  live(2, 3000);
  restart();
  join(0, 2, 2);
  join(1, 2, 2);
  report(0, {ended("a", "killed")});
  for (int i = 0; i < 6 && job("a").epoch == 1; ++i) {
    beat(0);
    beat(1);
    pass(1000);
  }
  EXPECT_EQ(job("a").epoch, 2U);
}

TEST_F(Membership, RestartedCoordinatorWaitsForItsWorkers) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  pass(200);
  live(1, 3000);
  restart();
  pass(29000);
  EXPECT_TRUE(job("a").attempt_live);
  EXPECT_EQ(job("a").epoch, 1U);
  join(0);
  live(1, 10000);
  EXPECT_TRUE(job("a").attempt_live);
  EXPECT_EQ(job("a").epoch, 1U);
  restart();
  pass(31000);
  EXPECT_FALSE(job("a").attempt_live) << "nobody came back";
}

TEST_F(Membership, RevivedWorkerIsFreeOnlyWhenItsOldAttemptIsGone) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  pass(200);
  live(1, 2000);
  const pb::RunningAttempt old = running("a");
  pass(6000);  // lost; the attempt is over
  ASSERT_FALSE(job("a").attempt_live);
  clear();
  for (int i = 0; i < 5; ++i) {
    beat(0, {old});
    EXPECT_EQ(wanted_counts(), std::vector<int>{0});
    pass(1000);
  }
  EXPECT_FALSE(job("a").attempt_live);
  beat(0);
  pass(200);
  EXPECT_TRUE(job("a").attempt_live);
  EXPECT_EQ(job("a").epoch, 2U);
}

TEST_F(Membership, HeartbeatReplyNamesWhatIsOnTheWay) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  pass(200);
  beat(0);  // sent before START arrived
  EXPECT_EQ(wanted_counts(), std::vector<int>{1});
}

TEST_F(Membership, GoodbyeEndsItsAttemptsAtOnce) {
  join(0);
  ASSERT_EQ(submit(small_spec("a")).code(), 0);
  pass(200);
  pb::Envelope e;
  e.set_node("node-0");
  e.set_incarnation(1);
  e.mutable_goodbye();
  tell(1, e);
  EXPECT_TRUE(state_.vol.workers.empty());
  pass(6000);
  EXPECT_FALSE(job("a").attempt_live);
  EXPECT_THAT(job("a").reason, ::testing::HasSubstr("node_lost"));
}

TEST_F(Membership, LaunchRequestsAreRelayedInsideTheAttemptOnly) {
  join(0);
  join(1);
  join(2);
  ASSERT_EQ(submit(small_spec("a", 4)).code(), 0);
  pass(200);
  ASSERT_EQ(job("a").lead, "node-0");
  const auto launch = [this](int from, const std::string& target, uint64_t epoch) {
    clear();
    pb::Envelope e;
    e.set_node(node(from));
    e.set_incarnation(1);
    e.mutable_launch_remote()->set_job("a");
    e.mutable_launch_remote()->set_epoch(epoch);
    e.mutable_launch_remote()->set_target(target);
    e.mutable_launch_remote()->set_proxy(5);
    tell(static_cast<uint64_t>(from) + 1, e);
  };
  launch(0, "node-1", 1);
  ASSERT_EQ(sent_to(1).size(), 1U);
  EXPECT_EQ(sent_to(1)[0].launch_remote().proxy(), 5U);
  launch(0, "node-2", 1);  // no part in it
  EXPECT_TRUE(sent_to(2).empty());
  EXPECT_EQ(sent_to(0).at(0).remote_exited().exit_code(), 255);
  launch(0, "node-1", 2);  // not this epoch
  EXPECT_EQ(sent_to(0).at(0).remote_exited().exit_code(), 255);
  restart();
  join(0);
  launch(0, "node-1", 1);
  EXPECT_TRUE(sent_to(0).empty()) << "node-1 is not back yet: no refusal, the lead asks again";
  join(1);
  launch(1, "node-0", 1);  // only the lead
  EXPECT_EQ(sent_to(1).at(0).remote_exited().exit_code(), 255);
}

}  // namespace
}  // namespace swax::coord::test
