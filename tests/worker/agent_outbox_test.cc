#include <gtest/gtest.h>

#include "tests/proto/scratch_dir.h"
#include "worker/agent/outbox.h"

namespace swax {
namespace {

pb::AttemptReport report(uint64_t index) {
  pb::AttemptReport r;
  r.set_index(index);
  r.set_job("job");
  r.set_epoch(3);
  r.mutable_launched();
  return r;
}

agent::SaveOutbox batch(std::vector<pb::AttemptReport> add, uint64_t drop_through, uint64_t next) {
  agent::SaveOutbox save;
  save.add = std::move(add);
  save.drop_through = drop_through;
  save.next_report = next;
  return save;
}

TEST(AgentOutbox, KeepsReportsAndEpochsAcrossStarts) {
  const ScratchDir dir;
  std::string state_id;
  uint64_t incarnation = 0;
  {
    const auto outbox = Outbox::open(dir.path(), "n1");
    ASSERT_TRUE(outbox.ok()) << outbox.status().message();
    state_id = (*outbox)->state_id();
    incarnation = (*outbox)->incarnation();
    EXPECT_EQ(state_id.size(), 32U);
    ASSERT_TRUE((*outbox)->save(batch({report(1), report(2), report(3)}, 0, 4)).ok());
    ASSERT_TRUE((*outbox)->save(batch({report(4)}, 2, 5)).ok());
    agent::SaveOutbox accepts;
    accepts.next_report = 5;
    accepts.job = "job";
    accepts.accepted_epoch = 3;
    ASSERT_TRUE((*outbox)->save(accepts).ok());
  }
  const auto again = Outbox::open(dir.path(), "n1");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ((*again)->state_id(), state_id);
  EXPECT_GT((*again)->incarnation(), incarnation);
  agent::State state;
  ASSERT_TRUE((*again)->load(&state).ok());
  EXPECT_EQ(state.next_report, 5U);
  EXPECT_EQ(state.accepted.at("job"), 3U);
  ASSERT_EQ(state.outbox.size(), 2U);
  EXPECT_TRUE(state.outbox.contains(3));
  EXPECT_TRUE(state.outbox.contains(4));
  // What an earlier start wrote can be dropped by a later one.
  ASSERT_TRUE((*again)->save(batch({}, 4, 5)).ok());
  agent::State empty;
  ASSERT_TRUE((*again)->load(&empty).ok());
  EXPECT_TRUE(empty.outbox.empty());
}

TEST(AgentOutbox, OneAgentAndOneNameAState) {
  const ScratchDir dir;
  {
    const auto first = Outbox::open(dir.path(), "n1");
    ASSERT_TRUE(first.ok());
    const auto second = Outbox::open(dir.path(), "n1");
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
  }
  const auto other = Outbox::open(dir.path(), "n2");
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(other.status().message().find("n1"), std::string::npos);
}

}  // namespace
}  // namespace swax
