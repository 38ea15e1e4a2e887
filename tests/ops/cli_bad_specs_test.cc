// Goal: a wrong job spec never starts anything. Method: every row of the table of bad specs, and
// files that are no spec at all, through `swax validate` and `swax run` in an empty folder: exit
// code 2, messages of at most 40 lines that name the file or a field, nothing on stdout, nothing
// created.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "proto/base/files.h"
#include "tests/jobs/bad_specs.h"
#include "tests/jobs/spec_texts.h"
#include "tests/ops/cli_process.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

using test::Finished;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kLinesMax = 40;
constexpr size_t kColumnsMax = 1000;  // paths and untrusted text are cut well below

void write_text(const std::string& path, const std::string& text) {
  FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(std::fwrite(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
}

void expect_refused(const Finished& finished, const std::string& verb) {
  EXPECT_EQ(finished.exit_code, 2) << verb << ": " << finished.err;
  EXPECT_THAT(finished.out, IsEmpty()) << verb;
  EXPECT_THAT(finished.err, Not(IsEmpty())) << verb;
  EXPECT_LE(test::line_count(finished.err), kLinesMax) << verb << ": " << finished.err;
  EXPECT_LE(test::longest_line(finished.err), kColumnsMax) << verb << ": " << finished.err;
}

std::vector<std::string> command(const std::string& verb, const std::string& path,
                                 const std::vector<SpecOverride>& sets) {
  std::vector<std::string> words = {verb, path};
  for (const SpecOverride& set : sets) {
    words.push_back("--set");
    words.push_back(set.path + "=" + set.value);
  }
  return words;
}

// What the command line cannot carry: an empty key, a NUL.
bool can_be_typed(const test::BadSpec& bad) {
  return std::all_of(bad.sets.begin(), bad.sets.end(), [](const SpecOverride& set) {
    return !set.path.empty() && set.path.find('=') == std::string::npos &&
           (set.path + set.value).find('\0') == std::string::npos;
  });
}

TEST(BadSpecs, EachIsRefusedByValidateAndRun) {
  int tried = 0;
  for (const test::BadSpec& bad : test::bad_specs()) {
    if (!can_be_typed(bad)) continue;
    SCOPED_TRACE(bad.name);
    const ScratchDir dir;
    write_text(dir / "job.toml", bad.text());
    for (const char* verb : {"validate", "run"}) {
      const Finished finished = test::run_swax(dir.path(), command(verb, "job.toml", bad.sets));
      expect_refused(finished, verb);
      EXPECT_TRUE(finished.err.find("job.toml") != std::string::npos ||
                  finished.err.find("--set") != std::string::npos)
          << finished.err;
      EXPECT_THAT(test::tree_of(dir.path()), ElementsAre("job.toml")) << verb;
    }
    ++tried;
  }
  EXPECT_GE(tried, 60);
}

// What only `run` can see: data that is not there, a run that is not there. `validate` looks at the
// spec alone.
TEST(MissingData, IsRefusedByRunWithTheLineAndNothingIsCreated) {
  struct Row {
    std::string by, message;
  };
  const std::vector<Row> rows = {
      {"path = \"/nonexistent/rv\"",
       "job.toml:26: data.sources[0].path: /nonexistent/rv does not exist"},
      {"path = \"job.toml\"", "job.toml:26: data.sources[0].path: "},
      {"path = \"folder\"", "job.toml:26: data.sources[0].path: "},
      {"text = \"file:/nonexistent/x\"",
       "job.toml:26: data.sources[0].text: /nonexistent/x does not exist"},
      {"text = \"file:no/such.txt\"",
       "job.toml:26: data.sources[0].text: no/such.txt does not exist"},
      {"text = \"file:folder\"",
       "job.toml:26: data.sources[0].text: folder is a folder, not a text"},
      {"text = \"file:job.toml\"\n[[data.sources]]\nname = \"t\"\npath = \"gone\"",
       "job.toml:29: data.sources[1].path: gone does not exist"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.by);
    const ScratchDir dir;
    ASSERT_EQ(::mkdir((dir / "folder").c_str(), 0755), 0);
    write_text(dir / "job.toml", test::minimal_with("text = \"debian:kjv\"", row.by));
    const std::vector<std::string> before = test::tree_of(dir.path());
    const Finished finished = test::run_swax(dir.path(), {"run", "job.toml"});
    expect_refused(finished, "run");
    EXPECT_THAT(finished.err, HasSubstr(row.message));
    EXPECT_EQ(test::tree_of(dir.path()), before);
  }
}

TEST(MissingData, AValueOfTheCommandLineIsNamedByItsOption) {
  const ScratchDir dir;
  write_text(dir / "job.toml", test::minimal_text());
  const std::vector<std::string> set = {"--set", "data.sources[0].text=file:/nonexistent/x"};
  const Finished finished = test::run_swax(dir.path(), {"run", "job.toml", set[0], set[1]});
  expect_refused(finished, "run");
  EXPECT_THAT(finished.err, HasSubstr("--set data.sources[0].text: /nonexistent/x does not exist"));
  EXPECT_THAT(test::tree_of(dir.path()), ElementsAre("job.toml"));
  EXPECT_EQ(test::run_swax(dir.path(), {"validate", "job.toml", set[0], set[1]}).exit_code, 0);
}

TEST(ShortData, IsRefusedByRunWithTheLineAndNothingIsCreated) {
  const ScratchDir dir;
  write_text(dir / "text.txt", "ten  bytes");  // and the end of the document: 11 tokens
  const Finished built = test::run_swax(
      dir.path(),
      {"data", "build", "--name", "s", "--out", "data", "--validation-fraction", "0", "text.txt"});
  ASSERT_EQ(built.exit_code, 0) << built.err;
  for (const std::string& path : test::tree_of(dir.path())) {
    if (!is_directory(dir / path) || parent_path(path) != "data") continue;
    write_text(dir / "job.toml",
               test::minimal_with("text = \"debian:kjv\"", "path = \"" + path + "\""));
  }
  const std::vector<std::string> before = test::tree_of(dir.path());
  const Finished finished = test::run_swax(dir.path(), {"run", "job.toml"});
  expect_refused(finished, "run");
  EXPECT_THAT(finished.err, HasSubstr("job.toml:20: training.seq_len: 32 is too long for "
                                      "data.sources[0].path, which has 11 training tokens"));
  EXPECT_THAT(finished.err, HasSubstr("nearest valid value is 10"));
  EXPECT_EQ(test::tree_of(dir.path()), before);
}

TEST(MissingRun, StartResumeNeedsOne) {
  const ScratchDir dir;
  write_text(dir / "job.toml", test::minimal_with("seed = 7", "seed = 7\nstart = \"resume\""));
  EXPECT_EQ(test::run_swax(dir.path(), {"validate", "job.toml"}).exit_code, 0);
  const Finished run = test::run_swax(dir.path(), {"run", "job.toml"});
  expect_refused(run, "run");
  EXPECT_THAT(run.err, HasSubstr("job.toml:5: job.start: \"resume\" needs something to go on from, "
                                 "but there is no run in ./runs/a; nearest valid value is fresh"));
  // Found before anybody asks a coordinator.
  const Finished submit = test::run_swax(dir.path(), {"submit", "job.toml"});
  expect_refused(submit, "submit");
  EXPECT_THAT(submit.err, HasSubstr("job.toml:5: job.start: \"resume\""));
  EXPECT_THAT(test::tree_of(dir.path()), ElementsAre("job.toml"));
}

TEST(BadSpecFiles, WhatIsNoRegularSmallFileIsRefused) {
  const ScratchDir dir;
  ASSERT_EQ(::mkdir((dir / "folder").c_str(), 0755), 0);
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0644), 0);
  write_text(dir / "large", std::string(100'000'000, '#'));
  write_text(dir / "over", std::string(kSpecBytesMax + 1, '\n'));
  const std::vector<std::string> before = test::tree_of(dir.path());
  for (const char* path : {"missing.toml", "folder", "pipe", "large", "over", "/dev/zero",
                           "/dev/null", "/proc/self/mem", "folder/", "large/job.toml", ""}) {
    for (const char* verb : {"validate", "plan", "run"}) {
      SCOPED_TRACE(std::string(verb) + " " + path);
      const Finished finished = test::run_swax(dir.path(), {verb, path}, 10);
      expect_refused(finished, verb);
      EXPECT_THAT(finished.err, HasSubstr(path));
      EXPECT_EQ(test::tree_of(dir.path()), before);
    }
  }
}

TEST(BadSpecFiles, AFileWithoutTheRightToReadIsRefused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const ScratchDir dir;
  write_text(dir / "job.toml", "spec_version = 1\n");
  ASSERT_EQ(::chmod((dir / "job.toml").c_str(), 0), 0);
  expect_refused(test::run_swax(dir.path(), {"validate", "job.toml"}), "validate");
}

TEST(BadSpecs, RanksThatAreNotAllowedAreRefused) {
  const ScratchDir dir;
  const std::string preset = std::string(SWAX_SOURCE_DIR) + "/jobs/micro.toml";
  for (const char* verb : {"validate", "run"}) {
    const Finished finished = test::run_swax(dir.path(), {verb, preset, "--ranks", "9"});
    expect_refused(finished, verb);
    EXPECT_THAT(finished.err, HasSubstr("parallelism.ranks"));
    EXPECT_THAT(test::tree_of(dir.path()), IsEmpty());
  }
}

}  // namespace
}  // namespace swax
