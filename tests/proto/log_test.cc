// Goal: one line per call in the written format, levels per subsystem, and a rate limit that says
// what it dropped. Method: log into a file of a scratch folder and read it back.
#include "proto/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "proto/base/clock.h"
#include "proto/base/text.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;

class LogTest : public ::testing::Test {
 protected:
  void start(const std::string& process = "") {
    ASSERT_TRUE(log_init({.file = file_, .process = process, .to_stderr = false}).ok());
  }
  void TearDown() override {
    log_flush();
    ASSERT_TRUE(log_init({}).ok());
  }
  std::string text() const { return *read_file(file_, 1 << 22); }
  // Without the time.
  std::vector<std::string> lines() const {
    const std::string all = text();
    std::vector<std::string> out;
    for (const std::string_view line : split(all, '\n')) {
      if (!line.empty()) out.emplace_back(line.substr(std::min<size_t>(25, line.size())));
    }
    return out;
  }

  // Logs one text `count` times within one window of a second and returns it; on a machine that
  // stands still for so long, again with another text.
  static std::string storm(int count) {
    SystemClock clock;
    for (int attempt = 0;; ++attempt) {
      std::string text = "again" + to_text(attempt);
      const int64_t begin_ms = clock.monotonic_ms();
      for (int i = 0; i < count; ++i) log_info("a", text, {{"i", i}});
      if (clock.monotonic_ms() - begin_ms < 900 || attempt == 9) return text;
    }
  }

  const ScratchDir dir_;
  const std::string file_ = dir_ / "out.log";
};

TEST_F(LogTest, LineFormat) {
  start("rank=3");
  log_info("train", "checkpoint committed", {{"step", 40}, {"bytes", 1234}});
  EXPECT_THAT(text(),
              MatchesRegex("20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9]["
                           "0-9]\\.[0-9][0-9][0-9]Z info  train rank=3 checkpoint committed "
                           "step=40 bytes=1234\n"));
}

TEST_F(LogTest, FieldTypesAndQuotes) {
  start();
  const std::string path = "/a b";
  log_warn("x", "t",
           {{"yes", true},
            {"big", UINT64_MAX},
            {"small", INT64_MIN},
            {"loss", 0.25},
            {"path", path},
            {"plain", "a:b"},
            {"empty", ""},
            {"quote", "say \"hi\""},
            {"eq", "a=b"}});
  log_error("x", "u", {{"evil", "one\ntwo\x1b[0m"}});
  EXPECT_THAT(lines(), ElementsAre("warn  x t yes=true big=18446744073709551615 "
                                   "small=-9223372036854775808 loss=0.25 path=\"/a b\" plain=a:b "
                                   "empty=\"\" quote=\"say \\\"hi\\\"\" eq=\"a=b\"",
                                   "error x u evil=one\\x0atwo\\x1b[0m"));
}

TEST_F(LogTest, DefaultLevelIsInfo) {
  start();
  log_trace("a", "t");
  log_debug("a", "d");
  log_info("a", "i");
  EXPECT_THAT(lines(), ElementsAre("info  a i"));
}

TEST_F(LogTest, LevelsPerSubsystem) {
  const ScopedEnv env("SWAX_LOG", "error,train=debug,storage=trace");
  start();
  log_info("wire", "hidden");
  log_error("wire", "shown");
  log_trace("train", "hidden");
  log_debug("train", "shown");
  log_trace("storage", "shown");
  EXPECT_THAT(lines(), ElementsAre("error wire shown", "debug train shown", "trace storage shown"));
}

TEST_F(LogTest, BadLevelIsRefused) {
  for (const char* bad : {"loud", "train=", "=info", "info,,", "train=loud", "INFO"}) {
    const ScopedEnv env("SWAX_LOG", bad);
    EXPECT_EQ(log_init({.file = file_, .to_stderr = false}).code(), Code::kInvalidArgument) << bad;
  }
}

TEST_F(LogTest, BadFileIsRefused) {
  ASSERT_TRUE(write_atomic(dir_ / "plain", "x").ok());
  EXPECT_EQ(log_init({.file = dir_ / "plain/out.log"}).code(), Code::kFailedPrecondition);
}

TEST_F(LogTest, RepeatsAreLimitedAndCounted) {
  start();
  const std::string text = storm(25);
  const size_t first = lines().size() - 10;
  EXPECT_EQ(lines()[first], "info  a " + text + " i=0");
  EXPECT_EQ(lines()[first + 9], "info  a " + text + " i=9");
  log_info("a", "other");
  log_info("b", text);
  std::this_thread::sleep_for(std::chrono::milliseconds(1'050));
  log_info("a", text, {{"i", 25}});
  log_info("a", text, {{"i", 26}});
  ASSERT_EQ(lines().size(), first + 14);
  EXPECT_EQ(lines()[first + 10], "info  a other");
  EXPECT_EQ(lines()[first + 11], "info  b " + text);
  EXPECT_EQ(lines()[first + 12], "info  a " + text + " i=25 suppressed=15");
  EXPECT_EQ(lines()[first + 13], "info  a " + text + " i=26");
}

TEST_F(LogTest, FlushReportsWhatNobodyFollowed) {
  start();
  const std::string text = storm(13);
  log_flush();
  const std::vector<std::string> after = lines();
  EXPECT_EQ(after.back(), "info  a " + text + " suppressed=3");
  log_flush();
  EXPECT_EQ(lines(), after);
}

TEST_F(LogTest, MemoryOfRepeatsIsBounded) {
  start();
  for (int i = 0; i < 10'000; ++i) log_info("a", "text " + to_text(i));
  EXPECT_EQ(lines().size(), 10'000U);
}

TEST_F(LogTest, ThreadsWriteWholeLines) {
  start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 100; ++i) log_info("a", "line " + to_text(t * 100 + i), {{"t", t}});
    });
  }
  for (std::thread& t : threads) t.join();
  const auto all = lines();
  ASSERT_EQ(all.size(), 400U);
  for (const std::string& line : all)
    EXPECT_THAT(line, MatchesRegex("info  a line [0-9]+ t=[0-3]"));
}

}  // namespace
}  // namespace swax
