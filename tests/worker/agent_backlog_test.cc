// Goal: what waits behind a batch that cannot be written stays small and loses nothing. Method:
// queues as the agent makes them while its disk is full.
#include <gtest/gtest.h>

#include "worker/agent/backlog.h"

namespace swax {
namespace {

pb::AttemptReport report(uint64_t index) {
  pb::AttemptReport r;
  r.set_index(index);
  return r;
}

agent::Send send(const std::function<void(pb::Envelope*)>& fill) {
  agent::Send command;
  fill(&command.envelope);
  return command;
}

std::vector<uint64_t> indexes(const agent::SaveOutbox& save) {
  std::vector<uint64_t> all;
  for (const pb::AttemptReport& r : save.add) all.push_back(r.index());
  return all;
}

// A word for each command, in order.
std::string words(const agent::Command& command) {
  if (const auto* sends = std::get_if<agent::Send>(&command)) {
    const pb::Envelope& e = sends->envelope;
    if (e.has_heartbeat()) return "beat";
    if (e.has_hello()) return "hello";
    return e.has_goodbye() ? "goodbye" : "other";
  }
  if (std::holds_alternative<agent::SaveOutbox>(command)) return "save";
  if (std::holds_alternative<agent::TellRank>(command)) return "tell";
  if (const auto* kill = std::get_if<agent::Kill>(&command))
    return "kill-" + kill->job + std::to_string(kill->epoch);
  if (std::holds_alternative<agent::Exit>(command)) return "exit";
  const auto named = [](const char* word, const auto& of) {
    return word + of.job() + std::to_string(of.epoch());
  };
  if (const auto* c = std::get_if<agent::Prepare>(&command)) return named("prepare-", c->start);
  if (const auto* c = std::get_if<agent::Launch>(&command)) return named("launch-", c->start);
  if (const auto* c = std::get_if<agent::RunRemote>(&command)) return named("remote-", c->launch);
  return "?";
}

using Words = std::vector<std::string>;

Words words(const std::deque<agent::Command>& commands) {
  Words all;
  for (const agent::Command& command : commands) all.push_back(words(command));
  return all;
}

Words shorten(std::deque<agent::Command>* waiting) {
  Words passed;
  shorten_backlog(waiting, [&](const agent::Command& c) { passed.push_back(words(c)); });
  return passed;
}

template <typename Start>
Start start(const std::string& job, uint64_t epoch) {
  Start command;
  command.start.set_job(job);
  command.start.set_epoch(epoch);
  return command;
}

TEST(Backlog, PassesBeatsAndForgetsWhatIsSentAgain) {
  std::deque<agent::Command> waiting;
  waiting.emplace_back(agent::SaveOutbox{});
  waiting.emplace_back(send([](pb::Envelope* e) { e->mutable_attempt_reports(); }));
  waiting.emplace_back(send([](pb::Envelope* e) { e->mutable_heartbeat(); }));
  waiting.emplace_back(send([](pb::Envelope* e) { e->mutable_remote_exited(); }));
  waiting.emplace_back(send([](pb::Envelope* e) { e->mutable_hello(); }));
  EXPECT_EQ(shorten(&waiting), (Words{"beat", "hello"}));
  EXPECT_EQ(words(waiting), (Words{"save", "other"}));
}

// On a full disk ranks must be stopped, killed and left all the same: none of it tells what the
// batch would keep. What begins something waits, as the batch may be the epoch's acceptance.
TEST(Backlog, PassesWhatEndsRanksAndTheWorker) {
  std::deque<agent::Command> waiting;
  waiting.emplace_back(agent::SaveOutbox{});
  waiting.emplace_back(start<agent::Prepare>("b", 3));
  waiting.emplace_back(agent::TellRank{.job = "a", .epoch = 1, .rank = -1, .message = {}});
  waiting.emplace_back(agent::Kill{.job = "a", .epoch = 1});
  waiting.emplace_back(send([](pb::Envelope* e) { e->mutable_goodbye(); }));
  waiting.emplace_back(agent::Exit{.code = 99, .reason = "stopped"});
  EXPECT_EQ(shorten(&waiting), (Words{"tell", "kill-a1", "goodbye", "exit"}));
  EXPECT_EQ(words(waiting), (Words{"save", "prepare-b3"}));
}

// Its processes are swept at once: a start that waited would come after that.
TEST(Backlog, AKillTakesTheStartsOfItsAttemptAlong) {
  std::deque<agent::Command> waiting;
  waiting.emplace_back(agent::SaveOutbox{});
  agent::RunRemote remote;
  remote.launch.set_job("a");
  remote.launch.set_epoch(1);
  for (const uint64_t epoch : {1, 2}) {
    waiting.emplace_back(start<agent::Prepare>("a", epoch));
    waiting.emplace_back(start<agent::Launch>("a", epoch));
  }
  waiting.emplace_back(remote);
  waiting.emplace_back(start<agent::Launch>("b", 1));
  waiting.emplace_back(agent::Kill{.job = "a", .epoch = 1});
  EXPECT_EQ(shorten(&waiting), Words{"kill-a1"});
  EXPECT_EQ(words(waiting), (Words{"save", "prepare-a2", "launch-a2", "launch-b1"}));
}

TEST(Backlog, MakesOneBatchOfMany) {
  std::deque<agent::Command> waiting;
  waiting.emplace_back(agent::SaveOutbox{
      .add = {report(5), report(6)}, .drop = {2}, .drop_through = 1, .next_report = 7, .job = {}});
  waiting.emplace_back(agent::ProxyDone{});
  waiting.emplace_back(agent::SaveOutbox{.add = {report(7), report(8)},
                                         .drop = {3, 6},
                                         .drop_through = 0,
                                         .next_report = 9,
                                         .job = {}});
  waiting.emplace_back(agent::SaveOutbox{
      .add = {}, .drop = {}, .drop_through = 5, .next_report = 9, .job = "b", .accepted_epoch = 4});
  shorten(&waiting);
  ASSERT_EQ(waiting.size(), 2U);
  const auto& batch = std::get<agent::SaveOutbox>(waiting[0]);
  EXPECT_EQ(indexes(batch), (std::vector<uint64_t>{7, 8})) << "5 is acknowledged, 6 dropped";
  EXPECT_EQ(batch.drop, (std::vector<uint64_t>{2, 3})) << "6 never reached the disk";
  EXPECT_EQ(batch.drop_through, 5U);
  EXPECT_EQ(batch.next_report, 9U);
  EXPECT_EQ(batch.job, "b");
  EXPECT_EQ(batch.accepted_epoch, 4U);
}

TEST(Backlog, KeepsEveryAcceptedEpoch) {
  std::deque<agent::Command> waiting;
  for (const char* job : {"a", "b"})
    waiting.emplace_back(agent::SaveOutbox{.add = {},
                                           .drop = {},
                                           .drop_through = 0,
                                           .next_report = 1,
                                           .job = job,
                                           .accepted_epoch = 2});
  waiting.emplace_back(
      agent::SaveOutbox{.add = {report(1)}, .drop = {}, .next_report = 2, .job = {}});
  shorten(&waiting);
  ASSERT_EQ(waiting.size(), 2U);
  EXPECT_EQ(std::get<agent::SaveOutbox>(waiting[0]).job, "a");
  EXPECT_EQ(std::get<agent::SaveOutbox>(waiting[1]).job, "b");
  EXPECT_EQ(indexes(std::get<agent::SaveOutbox>(waiting[1])), std::vector<uint64_t>{1});
}

// Hours of a full disk with steps that come and go: what is kept is what the outbox holds.
TEST(Backlog, StaysSmallHoweverLongItLasts) {
  std::deque<agent::Command> waiting;
  for (uint64_t step = 1; step <= 20000; ++step) {
    agent::SaveOutbox save{.add = {report(step)}, .drop = {}, .next_report = step + 1, .job = {}};
    if (step > 100) save.drop = {step - 100};
    waiting.emplace_back(std::move(save));
    waiting.emplace_back(send([](pb::Envelope* e) { e->mutable_attempt_reports(); }));
    shorten(&waiting);
  }
  ASSERT_EQ(waiting.size(), 1U);
  EXPECT_EQ(std::get<agent::SaveOutbox>(waiting[0]).add.size(), 100U);
  EXPECT_TRUE(std::get<agent::SaveOutbox>(waiting[0]).drop.empty());
}

}  // namespace
}  // namespace swax
