// Goal: COMMITTED is written for what all ranks reported and the disk holds, once, and never for
// less; a commit that the disk interrupts can be repeated and loses nothing.
// Method: wrong reports and damaged parts, one at a time; this program's fsync fails on request.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "proto/base/files.h"
#include "storage/checkpoint_store.h"
#include "tests/storage/checkpoint_fixture.h"
#include "tests/storage/storage_files.h"

namespace {

std::atomic<int> fsync_until_failure{0};  // the n-th call from now on fails; 0: none

}  // namespace

// In place of libc's.
extern "C" int fsync(int fd) {
  if (fsync_until_failure.load() > 0 && fsync_until_failure.fetch_sub(1) == 1) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace swax {
namespace {

using test::good_checkpoints;
using test::TempDir;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

#define ASSERT_OK(expr)                               \
  do {                                                \
    const Status status_ = to_status(expr);           \
    ASSERT_TRUE(status_.ok()) << status_.to_string(); \
  } while (false)

class Commit : public testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      auto shard = test::write_rank(root_.path(), {1, 1}, rank, 2);
      ASSERT_OK(shard);
      ranks_.push_back(*shard);
    }
    manifest_ = test::fixture_manifest({1, 1}, ranks_);
  }
  Code commit(const pb::CheckpointManifest& manifest) {
    return commit_checkpoint(root_.path(), manifest).code();
  }
  const TempDir root_{TempDir::Place::kMemory};
  std::vector<pb::RankShard> ranks_;
  pb::CheckpointManifest manifest_;
};

TEST_F(Commit, IsIdempotentAndRefusesOtherContent) {
  EXPECT_THAT(good_checkpoints(root_.path()), IsEmpty());
  ASSERT_OK(commit_checkpoint(root_.path(), manifest_));
  EXPECT_THAT(good_checkpoints(root_.path()), ElementsAre("step-000000001.a1"));
  manifest_.set_committed_ms(5);
  ASSERT_OK(commit_checkpoint(root_.path(), manifest_));
  EXPECT_EQ(CheckpointReader::open(root_.path(), {1, 1}).value()->manifest().committed_ms(),
            1700000000000);
  manifest_.set_numeric_id("other");
  EXPECT_EQ(commit(manifest_), Code::kAlreadyExists);
}

TEST_F(Commit, RefusesWrongReports) {
  const std::vector<std::pair<Code, std::function<void(pb::CheckpointManifest&)>>> mistakes = {
      {Code::kInvalidArgument, [](auto& m) { m.set_world_size(3); }},
      {Code::kInvalidArgument, [](auto& m) { m.mutable_ranks()->RemoveLast(); }},
      {Code::kInvalidArgument, [](auto& m) { m.mutable_ranks()->SwapElements(0, 1); }},
      {Code::kInvalidArgument, [](auto& m) { m.mutable_tensors(0)->set_id(1); }},
      {Code::kInvalidArgument, [](auto& m) { m.mutable_tensors(0)->set_dtype("f16"); }},
      {Code::kDataLoss, [](auto& m) { m.mutable_ranks(0)->set_bytes(1); }},
      {Code::kDataLoss, [](auto& m) { m.mutable_ranks(0)->set_chunks(1); }},
      {Code::kDataLoss, [](auto& m) { m.mutable_ranks(0)->set_root_xxh3(""); }},
      {Code::kDataLoss, [](auto& m) { m.mutable_ranks(1)->set_path("../rank-00001.db"); }},
      {Code::kDataLoss, [](auto& m) { m.set_step(2); }},
      {Code::kFailedPrecondition, [](auto& m) { m.mutable_tensors(1)->set_shape(1, 8); }},
      {Code::kFailedPrecondition, [](auto& m) { m.mutable_tensors(1)->set_shape(1, 6); }},
      {Code::kFailedPrecondition, [](auto& m) { m.mutable_tensors()->RemoveLast(); }},
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    pb::CheckpointManifest wrong = manifest_;
    mistakes[i].second(wrong);
    EXPECT_EQ(commit(wrong), mistakes[i].first) << "mistake " << i;
  }
  EXPECT_THAT(good_checkpoints(root_.path()), IsEmpty());
}

TEST_F(Commit, RefusesAMissingRank) {
  ASSERT_OK(remove_tree(root_ / "step-000000001.a1/rank-00001.shard"));
  EXPECT_EQ(commit(manifest_), Code::kDataLoss);
  EXPECT_FALSE(path_exists(root_ / "step-000000001.a1/COMMITTED"));
}

TEST_F(Commit, RefusesADatabaseThatWasDamagedMeanwhile) {
  const auto tables = test::files_like(root_.path(), "0", ".sst");
  ASSERT_FALSE(tables.empty());
  test::cut_file(tables[0], 1);
  EXPECT_EQ(commit(manifest_), Code::kDataLoss);
}

TEST_F(Commit, RefusesWhatIsMarkedBad) {
  ASSERT_OK(mark_bad(root_.path(), {1, 1}, "loss jumped"));
  EXPECT_EQ(commit(manifest_), Code::kFailedPrecondition);
}

// Fails each sync of a commit in turn.
TEST_F(Commit, ThatCannotSyncSaysSoAndLosesNothing) {
  const auto arm = [](int calls) { fsync_until_failure.store(calls); };
  ASSERT_OK(commit_checkpoint(root_.path(), manifest_));
  bool left_committed = false;
  bool done = false;
  for (int fail_at = 1; fail_at < 20 && !done; ++fail_at) {
    const CheckpointName name{static_cast<uint64_t>(fail_at) + 1, 1};
    std::vector<pb::RankShard> ranks;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      auto shard = test::write_rank(root_.path(), name, rank, 2);
      ASSERT_OK(shard);
      ranks.push_back(*shard);
    }
    const pb::CheckpointManifest manifest = test::fixture_manifest(name, ranks);
    arm(fail_at);
    const Status status = commit_checkpoint(root_.path(), manifest);
    done = fsync_until_failure.exchange(0) > 0;  // so many syncs are not made
    EXPECT_EQ(status.ok(), done) << fail_at << ": " << status.to_string();
    EXPECT_TRUE(done || status.message().find("fsync") != std::string::npos) << status.message();

    // Whoever lists now finds it whole or not at all, and the one before in any case.
    const auto entries = list_checkpoints(root_.path());
    ASSERT_OK(entries);
    ASSERT_GE(entries->size(), 2U);
    EXPECT_EQ((*entries)[0].problem, (*entries)[0].committed ? "" : "not committed");
    if ((*entries)[0].committed) {
      ASSERT_OK(verify_checkpoint(root_.path(), name, {}));
      left_committed = left_committed || !done;
      arm(1);
      EXPECT_FALSE(commit_checkpoint(root_.path(), manifest).ok()) << "ok without a sync";
      arm(0);
    }
    ASSERT_OK(verify_checkpoint(root_.path(), {name.step - 1, 1}, {}));

    ASSERT_OK(commit_checkpoint(root_.path(), manifest));
    ASSERT_OK(verify_checkpoint(root_.path(), name, {}));
    EXPECT_THAT(test::files_like(root_.path(), "COMMITTED", ".tmp"), IsEmpty());
  }
  EXPECT_TRUE(done);
  EXPECT_TRUE(left_committed) << "no failure came after COMMITTED was there";
}

// Writes [begin, end) of one tensor of 10 elements as rank `rank` of 2.
pb::RankShard write_span(const std::string& root, uint32_t rank, uint64_t begin, uint64_t end) {
  const std::vector<float> data(end - begin, 1.0F);
  const std::vector<ShardRange> ranges = {{0, begin, data}};
  auto shard =
      write_shard({.ckpt_root = root, .name = {1, 1}, .rank = rank, .world_size = 2}, ranges);
  EXPECT_TRUE(shard.ok()) << shard.status().to_string();
  return *shard;
}

TEST(Coverage, EveryElementExactlyOnce) {
  const struct {
    uint64_t begin;
    Code want;
    const char* says;
  } cases[] = {{6, Code::kFailedPrecondition, "element 5 of 10 is in no shard"},
               {4, Code::kFailedPrecondition, "element 4 of 10 is in two shards"},
               {5, Code::kOk, ""}};
  for (const auto& c : cases) {
    const TempDir root(TempDir::Place::kMemory);
    pb::CheckpointManifest manifest;
    manifest.set_step(1);
    manifest.set_epoch(1);
    manifest.set_world_size(2);
    pb::CheckpointTensor* const tensor = manifest.add_tensors();
    tensor->set_name("t");
    tensor->set_dtype("f32");
    tensor->add_shape(10);
    *manifest.add_ranks() = write_span(root.path(), 0, 0, 5);
    *manifest.add_ranks() = write_span(root.path(), 1, c.begin, 10);
    const Status status = commit_checkpoint(root.path(), manifest);
    EXPECT_EQ(status.code(), c.want) << c.begin;
    EXPECT_THAT(status.message(), HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace swax
