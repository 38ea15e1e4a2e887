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

TEST(Backlog, PassesBeatsAndForgetsWhatIsSentAgain) {
  std::deque<agent::Command> waiting;
  waiting.emplace_back(agent::SaveOutbox{});
  waiting.emplace_back(send([](pb::Envelope* e) { e->mutable_attempt_reports(); }));
  waiting.emplace_back(send([](pb::Envelope* e) { e->mutable_heartbeat(); }));
  waiting.emplace_back(agent::Kill{.job = "a", .epoch = 1});
  waiting.emplace_back(send([](pb::Envelope* e) { e->mutable_hello(); }));
  waiting.emplace_back(send([](pb::Envelope* e) { e->mutable_goodbye(); }));
  int beats = 0, hellos = 0;
  shorten_backlog(&waiting, [&](const pb::Envelope& e) {
    beats += e.has_heartbeat() ? 1 : 0;
    hellos += e.has_hello() ? 1 : 0;
  });
  EXPECT_EQ(beats, 1);
  EXPECT_EQ(hellos, 1);
  ASSERT_EQ(waiting.size(), 3U);
  EXPECT_TRUE(std::holds_alternative<agent::SaveOutbox>(waiting[0]));
  EXPECT_TRUE(std::holds_alternative<agent::Kill>(waiting[1]));
  EXPECT_TRUE(std::get<agent::Send>(waiting[2]).envelope.has_goodbye());
}

TEST(Backlog, MakesOneBatchOfMany) {
  std::deque<agent::Command> waiting;
  waiting.emplace_back(agent::SaveOutbox{
      .add = {report(5), report(6)}, .drop = {2}, .drop_through = 1, .next_report = 7, .job = {}});
  waiting.emplace_back(agent::Kill{.job = "a", .epoch = 1});
  waiting.emplace_back(agent::SaveOutbox{.add = {report(7), report(8)},
                                         .drop = {3, 6},
                                         .drop_through = 0,
                                         .next_report = 9,
                                         .job = {}});
  waiting.emplace_back(agent::SaveOutbox{
      .add = {}, .drop = {}, .drop_through = 5, .next_report = 9, .job = "b", .accepted_epoch = 4});
  shorten_backlog(&waiting, [](const pb::Envelope&) {});
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
  shorten_backlog(&waiting, [](const pb::Envelope&) {});
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
    shorten_backlog(&waiting, [](const pb::Envelope&) {});
  }
  ASSERT_EQ(waiting.size(), 1U);
  EXPECT_EQ(std::get<agent::SaveOutbox>(waiting[0]).add.size(), 100U);
  EXPECT_TRUE(std::get<agent::SaveOutbox>(waiting[0]).drop.empty());
}

}  // namespace
}  // namespace swax
