// Goal: what an earlier run left is found by its mark and nothing else is touched; attempt folders
// are removed wherever their session lies. Method: sleepers with and without the mark.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "proto/base/clock.h"
#include "tests/proto/scratch_dir.h"
#include "worker/agent/attempt_folder.h"
#include "worker/agent/child.h"
#include "worker/agent/sweeper.h"

namespace swax {
namespace {

Result<Child> sleeper(const ScratchDir& dir, const std::string& job, const std::string& state) {
  return Child::start({.arguments = {"/bin/sleep", "1000"},
                       .environment = {"SWAX_JOB=" + job, "SWAX_STATE=" + state},
                       .output_path = dir / "out",
                       .working_folder = "/"});
}

TEST(Sweeper, EndsOnlyWhatCarriesBothMarks) {
  const ScratchDir dir;
  auto ours = sleeper(dir, "job", dir.path());
  auto ours_too = sleeper(dir, "job", dir.path());
  auto other_job = sleeper(dir, "job2", dir.path());
  auto other_state = sleeper(dir, "job", dir.path() + "x");
  ASSERT_TRUE(ours.ok() && ours_too.ok() && other_job.ok() && other_state.ok());
  const JobMark mark{.job = "job", .state = dir.path()};
  EXPECT_EQ(marked_processes(mark).size(), 2U);
  const auto swept = sweep_processes(mark, 60000, 5000);
  ASSERT_TRUE(swept.ok()) << swept.status().to_string();
  EXPECT_EQ(*swept, 2);
  EXPECT_TRUE(ours->ended());
  EXPECT_TRUE(ours_too->ended());
  EXPECT_FALSE(other_job->ended());
  EXPECT_FALSE(other_state->ended());
  EXPECT_TRUE(marked_processes(mark).empty());
}

TEST(Sweeper, FindsNothingWhereNothingIsLeft) {
  const auto swept = sweep_processes({.job = "nobody", .state = "/nowhere"}, 1000, 1000);
  ASSERT_TRUE(swept.ok());
  EXPECT_EQ(*swept, 0);
}

// Whose a process without an environment is cannot be told: it is no reason to wait for long.
TEST(Sweeper, WaitsForStrangersOnlySoLong) {
  const ScratchDir dir;
  const std::string program = dir / "swax-train";
  std::filesystem::copy_file("/bin/sleep", program);
  auto stranger = Child::start({.arguments = {program, "1000"},
                                .environment = {},
                                .output_path = dir / "out",
                                .working_folder = "/"});
  ASSERT_TRUE(stranger.ok()) << stranger.status().to_string();
  SystemClock clock;
  const int64_t begin_ms = clock.monotonic_ms();
  const auto swept = sweep_processes({.job = "job", .state = dir.path()}, 60000, 300);
  EXPECT_TRUE(swept.ok()) << swept.status().to_string();
  const int64_t waited_ms = clock.monotonic_ms() - begin_ms;
  EXPECT_GE(waited_ms, 300);
  EXPECT_LT(waited_ms, 30000);
  EXPECT_FALSE(stranger->ended());
}

TEST(AttemptFolder, LiesInsideWhenShortAndBelowTmpWhenLong) {
  EXPECT_EQ(session_folder("/s/attempts/a1"), "/s/attempts/a1/mpi");
  const std::string deep = "/" + std::string(100, 'x') + "/attempts/a1";
  EXPECT_TRUE(session_folder(deep).starts_with("/tmp/swax-"));
  EXPECT_LT(session_folder(deep).size(), 60U);
  EXPECT_NE(session_folder(deep), session_folder(deep + "0"));
}

TEST(AttemptFolder, IsRemovedWithItsSession) {
  const ScratchDir dir;
  const std::string folder = dir / (std::string(100, 'y') + "/a1");
  ASSERT_TRUE(make_attempt_folder(folder).ok());
  ASSERT_TRUE(is_directory(session_folder(folder)));
  ASSERT_TRUE(write_atomic(session_folder(folder) + "/left", "x").ok());
  ASSERT_TRUE(make_attempt_folder(folder).ok());  // fresh again
  EXPECT_FALSE(path_exists(session_folder(folder) + "/left"));
  ASSERT_TRUE(remove_attempt_folder(folder).ok());
  EXPECT_FALSE(path_exists(folder));
  EXPECT_FALSE(path_exists(session_folder(folder)));
}

TEST(AttemptFolder, RefusesASessionThatIsNoFolderOfOurs) {
  const ScratchDir dir;
  const std::string folder = dir / (std::string(100, 'z') + "/a1");
  const std::string session = session_folder(folder);
  ASSERT_EQ(::symlink(dir.path().c_str(), session.c_str()), 0);
  EXPECT_EQ(make_attempt_folder(folder).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(path_exists(dir.path()));
  ::unlink(session.c_str());
}

}  // namespace
}  // namespace swax
