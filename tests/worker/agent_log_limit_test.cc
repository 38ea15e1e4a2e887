// Goal: a log that grows on keeps to its limit on the disk, its beginning and its newest part stay
// readable where they were, and what is missing is known. Method: a writer that appends.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/files.h"
#include "tests/proto/scratch_dir.h"
#include "worker/agent/log_limit.h"

namespace swax {
namespace {

constexpr int64_t kLimit = 1 << 20;

int64_t disk_bytes(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  return int64_t{info.st_blocks} * 512;
}

TEST(LogLimit, LeavesSmallAndMissingLogsAlone) {
  const ScratchDir dir;
  EXPECT_EQ(limit_log(dir / "none", kLimit).value(), 0);
  const std::string text(kLimit / 2, 'x');
  ASSERT_TRUE(write_atomic(dir / "log", text).ok());
  EXPECT_EQ(limit_log(dir / "log", kLimit).value(), 0);
  EXPECT_EQ(read_file(dir / "log", kLimit).value(), text);
}

TEST(LogLimit, DropsTheMiddleAndCountsIt) {
  const ScratchDir dir;
  const std::string path = dir / "log";
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  std::string written;
  const auto append = [&](int64_t bytes) {
    std::string text;
    while (static_cast<int64_t>(text.size()) < bytes)
      text += "line " + std::to_string(written.size() + text.size()) + "\n";
    ASSERT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    written += text;
  };
  for (int round = 0; round < 5; ++round) {
    append(kLimit + kLimit / 2);
    const Result<int64_t> dropped = limit_log(path, kLimit);
    ASSERT_TRUE(dropped.ok()) << dropped.status().to_string();
    // More than the limit allows to stay is gone, an eighth and a half of it are there.
    const auto size = static_cast<int64_t>(written.size());
    EXPECT_GE(*dropped, size - kLimit);
    EXPECT_LE(*dropped, size - kLimit / 8 - kLimit / 2 + 4096);
    EXPECT_LE(disk_bytes(path), kLimit);
  }
  const std::string kept = read_file(path, 16 * kLimit).value();
  if (kept.size() < written.size()) GTEST_SKIP() << "this file system makes no holes";
  ASSERT_EQ(kept.size(), written.size()) << "offsets stay";
  EXPECT_EQ(kept.substr(0, kLimit / 8), written.substr(0, kLimit / 8));
  EXPECT_EQ(kept.substr(kept.size() - kLimit / 2), written.substr(kept.size() - kLimit / 2));
  EXPECT_EQ(kept[kLimit / 8], '\0');
  EXPECT_EQ(limit_log(path, kLimit).value(), 0) << "nothing more is to be done";
}

}  // namespace
}  // namespace swax
