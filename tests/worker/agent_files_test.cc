#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "proto/base/files.h"
#include "tests/proto/scratch_dir.h"
#include "worker/agent/attempt_files.h"

namespace swax {
namespace {

TEST(TailOf, IsTheEndOfALogOfAnyLength) {
  const ScratchDir dir;
  const std::string path = dir / "log";
  EXPECT_EQ(tail_of(path), "");
  ASSERT_TRUE(write_atomic(path, "").ok());
  EXPECT_EQ(tail_of(path), "");
  ASSERT_TRUE(write_atomic(path, "short").ok());
  EXPECT_EQ(tail_of(path), "short");
  ASSERT_TRUE(write_atomic(path, std::string(16 << 20, 'x') + "the end").ok());
  const std::string tail = tail_of(path);
  EXPECT_TRUE(tail.ends_with("xthe end")) << tail.size();
  EXPECT_LT(tail.size(), 1000U);
}

TEST(TailOf, IsTheLineOfAProgramOfOursBeforeAPageOfGuesses) {
  const ScratchDir dir;
  const std::string path = dir / "log";
  const std::string guesses(3000, 'g');
  ASSERT_TRUE(write_atomic(path, "x\nswax launch-proxy: w1: no such job\n" + guesses + "\n").ok());
  EXPECT_EQ(tail_of(path), "swax launch-proxy: w1: no such job");
}

TEST(Failures, AreReadOldestFirst) {
  const ScratchDir dir;
  EXPECT_TRUE(read_failures(dir / "none").empty());
  ASSERT_TRUE(write_atomic(dir / "failure-rank-2", "second\n").ok());
  ASSERT_TRUE(write_atomic(dir / "failure-rank-10", "first\x1b[31m\nmore\n").ok());
  ASSERT_TRUE(write_atomic(dir / "failure-rank-x", "no number").ok());
  ASSERT_TRUE(write_atomic(dir / "spec.pb", "other").ok());
  const timespec early[2] = {{.tv_sec = 1000, .tv_nsec = 0}, {.tv_sec = 1000, .tv_nsec = 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir / "failure-rank-10").c_str(), early, 0), 0);
  const auto failures = read_failures(dir.path());
  ASSERT_EQ(failures.size(), 2U);
  EXPECT_EQ(failures[0].rank, 10U);
  EXPECT_TRUE(failures[0].text.starts_with("first"));
  EXPECT_EQ(failures[0].text.find('\x1b'), std::string::npos);
  EXPECT_EQ(failures[1].rank, 2U);
  EXPECT_EQ(failures[1].text, "second");
}

TEST(Logs, OfAttemptsLongAgoAreRemoved) {
  const ScratchDir dir;
  pb::StartAttempt start;
  start.set_job("j");
  for (const uint64_t epoch : {1, 2, 60, 101, 102}) {
    start.set_epoch(epoch);
    ASSERT_TRUE(make_attempt_folders(dir.path(), start).ok());
    ASSERT_TRUE(write_attempt_spec(dir.path(), start).ok());
  }
  EXPECT_EQ(list_dir(dir / "jobs/j/logs").value(),
            (std::vector<std::string>{"a101", "a102", "a2", "a60"}));
  EXPECT_EQ(list_dir(dir / "jobs/j/attempts").value(), std::vector<std::string>{"a102"});
}

}  // namespace
}  // namespace swax
