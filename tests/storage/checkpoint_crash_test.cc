// Goal: kill -9 at any moment of a save loses no committed checkpoint and never shows an
// uncommitted one; the sweep removes what is left.
// Method: storage_crash_child is killed at each failpoint and, in a loop, at random times; a fresh
// process is needed because RocksDB's threads do not survive a fork.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "proto/base/files.h"
#include "proto/base/rng.h"
#include "proto/base/text.h"
#include "tests/storage/checkpoint_fixture.h"
#include "tests/storage/storage_files.h"

namespace swax {
namespace {

using test::good_checkpoints;
using test::TempDir;
using testing::ElementsAre;

struct Save {
  uint64_t first;
  uint64_t last;
  uint64_t epoch;
  int keep;
};

pid_t start_child(const std::string& root, const Save& save, const std::string& failpoint) {
  std::string program = SWAX_BINARY_DIR "/bin/storage_crash_child";
  std::vector<std::string> words = {
      program,           root, to_text(save.first), to_text(save.last), to_text(save.epoch), "2",
      to_text(save.keep)};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::string variable = "SWAX_FAILPOINTS=" + failpoint;
  std::vector<char*> environment;
  for (char** at = environ; *at != nullptr; ++at) environment.push_back(*at);
  environment.push_back(variable.data());
  environment.push_back(nullptr);
  pid_t pid = -1;
  EXPECT_EQ(
      posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments.data(), environment.data()), 0)
      << program;
  return pid;
}

// Signal that ended it, or minus the exit code.
int wait_for(pid_t pid) {
  int state = 0;
  EXPECT_EQ(waitpid(pid, &state, 0), pid);
  return WIFSIGNALED(state) ? WTERMSIG(state) : -WEXITSTATUS(state);
}

// After a crash: every checkpoint that is listed is whole; after the sweep nothing else is there.
void recover(const std::string& root, uint64_t live_epoch) {
  const std::vector<std::string> before = good_checkpoints(root);
  for (const std::string& folder : before) {
    const Status status = verify_checkpoint(root, *parse_checkpoint_name(folder), {});
    ASSERT_TRUE(status.ok()) << folder << " " << status.to_string();
  }
  const Status swept = sweep_checkpoints(root, live_epoch);
  ASSERT_TRUE(swept.ok()) << swept.to_string();
  ASSERT_EQ(good_checkpoints(root), before);
  std::vector<std::string> left = *list_dir(root);
  std::reverse(left.begin(), left.end());
  ASSERT_EQ(left, before);
}

struct Point {
  const char* failpoint;
  bool committed;  // step 2 counts
  bool retired;    // step 1 is gone
};
void PrintTo(const Point& point, std::ostream* out) { *out << point.failpoint; }

class KilledAt : public testing::TestWithParam<Point> {};
// Two ranks, so that the second passage is in the second rank; write_atomic writes the two
// rank-NNNNN.shard and then COMMITTED.
INSTANTIATE_TEST_SUITE_P(Each, KilledAt,
                         testing::Values(Point{"checkpoint.save_begun:1", false, false},
                                         Point{"checkpoint.save_begun:2", false, false},
                                         Point{"checkpoint.sst_finished:1", false, false},
                                         Point{"checkpoint.sst_finished:2", false, false},
                                         Point{"checkpoint.ingested:1", false, false},
                                         Point{"checkpoint.ingested:2", false, false},
                                         Point{"files.before_rename:1", false, false},
                                         Point{"files.before_dir_sync:2", false, false},
                                         Point{"checkpoint.durable:1", false, false},
                                         Point{"checkpoint.durable:2", false, false},
                                         Point{"files.before_rename:3", false, false},
                                         Point{"files.before_dir_sync:3", true, false},
                                         Point{"checkpoint.committed_written:1", true, false},
                                         Point{"checkpoint.retention_half:1", true, true}));

TEST_P(KilledAt, EarlierOnesStayAndTheNextSaveWorks) {
  const Point& point = GetParam();
  const TempDir root(TempDir::Place::kMemory);
  ASSERT_TRUE(test::save(root.path(), {1, 1}, 1).ok());
  const int ended = wait_for(start_child(root.path(), {2, 2, 1, 1}, point.failpoint));
  ASSERT_EQ(ended, SIGKILL) << "the failpoint was not passed";

  std::vector<std::string> want;
  if (point.committed) want.push_back("step-000000002.a1");
  if (!point.retired) want.push_back("step-000000001.a1");
  EXPECT_EQ(good_checkpoints(root.path()), want);
  recover(root.path(), 2);
  EXPECT_EQ(good_checkpoints(root.path()), want);

  // The next attempt saves the same step again and goes on; the kill may also be repeated by an
  // attempt of the same epoch, which finds the leftovers of its rank.
  ASSERT_EQ(wait_for(start_child(root.path(), {2, 3, 2, 1}, "")), 0);
  EXPECT_THAT(good_checkpoints(root.path()), ElementsAre("step-000000003.a2"));
  recover(root.path(), 3);
}

TEST(KilledWriter, TheSameAttemptWritesOverItsLeftovers) {
  for (const char* point : {"checkpoint.sst_finished:2", "checkpoint.ingested:1",
                            "files.before_rename:2", "checkpoint.durable:2"}) {
    const TempDir root(TempDir::Place::kMemory);
    ASSERT_EQ(wait_for(start_child(root.path(), {5, 5, 1, 1}, point)), SIGKILL) << point;
    ASSERT_EQ(wait_for(start_child(root.path(), {5, 5, 1, 1}, "")), 0) << point;
    EXPECT_THAT(good_checkpoints(root.path()), ElementsAre("step-000000005.a1"));
    recover(root.path(), 2);
  }
}

// The newest checkpoint never goes back, whatever the moment.
TEST(KilledWriter, AtRandomMoments) {
  const int kills = test::full_tests() ? 100 : 12;
  const TempDir root(TempDir::Place::kMemory);
  // One save in peace gives the scale: a kill comes at some moment of the first three saves.
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(wait_for(start_child(root.path(), {1, 1, 1, 2}, "")), 0);
  const auto window = std::chrono::duration_cast<std::chrono::microseconds>(
      3 * (std::chrono::steady_clock::now() - begin));
  uint64_t next = 2;
  // Where saves take longer now than that one, further kills come later and later.
  for (int i = 0; i < kills || (next == 2 && i < 10 * kills); ++i) {
    const uint64_t epoch = static_cast<uint64_t>(i) + 2;
    const pid_t pid = start_child(root.path(), {next, next + 1000, epoch, 2}, "");
    const uint32_t draw = random_block(13, Purpose::kTest, static_cast<uint64_t>(i))[0];
    std::this_thread::sleep_for(
        std::chrono::microseconds(draw % (window.count() * (1 + i / kills))));
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_EQ(wait_for(pid), SIGKILL) << "kill " << i;
    ASSERT_NO_FATAL_FAILURE(recover(root.path(), epoch + 1)) << "kill " << i;
    const auto good = good_checkpoints(root.path());
    EXPECT_LE(good.size(), 3U) << "two kept, one not yet retired";
    const uint64_t newest = good.empty() ? 0 : parse_checkpoint_name(good[0])->step;
    ASSERT_GE(newest + 1, next) << "a committed checkpoint was lost by kill " << i;
    next = newest + 1;
  }
  EXPECT_GT(next, 2U) << "not one save was finished between the kills";
}

}  // namespace
}  // namespace swax
