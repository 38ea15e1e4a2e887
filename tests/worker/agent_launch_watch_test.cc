// Goal: the end of a rank that has not said hello is seen at its process. Method: a shell stands
// for mpirun, sleepers under the rank's name for its ranks.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <functional>

#include "proto/base/clock.h"
#include "tests/proto/scratch_dir.h"
#include "worker/agent/child.h"
#include "worker/agent/launch_watch.h"

namespace swax {
namespace {

bool wait_until(const std::function<bool()>& condition) {
  SystemClock clock;
  const int64_t end_ms = clock.monotonic_ms() + 60000;
  while (!condition()) {
    if (clock.monotonic_ms() > end_ms) return false;
    ::poll(nullptr, 0, 10);
  }
  return true;
}

TEST(LaunchWatch, TellsEachEndOfARankThatNeverCame) {
  const ScratchDir dir;
  const std::string rank = dir / "swax-train";
  std::filesystem::copy_file("/bin/sleep", rank);
  // The last one is no rank: it has no number.
  const std::string script = "for r in 0 1 2; do OMPI_COMM_WORLD_RANK=$r " + rank +
                             " 1000 & done; " + rank + " 1000 & wait; sleep 1000";
  auto launcher = Child::start({.arguments = {"/bin/sh", "-c", script},
                                .environment = {"PATH=/usr/bin:/bin"},
                                .output_path = dir / "out",
                                .working_folder = "/"});
  ASSERT_TRUE(launcher.ok()) << launcher.status().to_string();
  const pid_t pid = launcher->id().pid;
  LaunchWatch watch;
  const auto watched = [&watch] {
    std::vector<pollfd> fds;
    watch.add_poll(&fds);
    return fds.size();
  };
  const auto started = [pid] {
    size_t ranks = 0;
    for (const ProcessStat& child : child_processes(pid)) ranks += child.name == "swax-train";
    return ranks;
  };
  ASSERT_TRUE(wait_until([&] { return started() == 4; })) << "the shell needs its time, too";
  ASSERT_TRUE(wait_until([&] {
    watch.look(pid, 1000);
    return watched() == 3;
  }));
  const std::set<uint32_t> expected = {0, 1, 7};
  watch.look(pid, 2000);
  EXPECT_FALSE(watch.lost(expected, 60000)) << "hardly anybody looked";
  for (int i = 0; i < 20; ++i) watch.look(pid, 2000);
  EXPECT_FALSE(watch.lost(expected, 2900));
  EXPECT_EQ(watch.lost(expected, 3100).value_or(0), 7U) << "it was gone before anybody looked";
  EXPECT_FALSE(watch.lost({0, 1, 2}, 60000));
  EXPECT_TRUE(watch.take_dead().empty());
  watch.came(2);
  EXPECT_EQ(watched(), 2U);
  std::map<std::string, pid_t> pids;
  for (const ProcessStat& child : child_processes(pid)) {
    const std::string environment = process_environment(child.id.pid).value_or("");
    const auto number = environment_value(environment, "OMPI_COMM_WORLD_RANK");
    pids[std::string(number.value_or("none"))] = child.id.pid;
  }
  ASSERT_EQ(pids.size(), 4U);
  ::kill(pids["1"], SIGKILL);
  ::kill(pids["2"], SIGKILL);  // its socket tells
  std::vector<LaunchWatch::Dead> dead;
  ASSERT_TRUE(wait_until([&] {
    watch.look(pid, 2000);
    for (LaunchWatch::Dead& one : watch.take_dead()) dead.push_back(one);
    return !dead.empty();
  }));
  EXPECT_EQ(dead.size(), 1U);
  EXPECT_EQ(dead[0].rank, 1U);
  if (dead[0].status) {
    EXPECT_EQ(WTERMSIG(*dead[0].status), SIGKILL);
  }
  EXPECT_EQ(watched(), 1U);
  watch.look(pid, 3000);
  EXPECT_TRUE(watch.take_dead().empty()) << "once";
}

TEST(LaunchWatch, ReadsTheNumberThatSrunGivesAndWaitsForWhatIsNoRankYet) {
  const ScratchDir dir;
  const std::string rank = dir / "swax-train";
  std::filesystem::copy_file("/bin/sleep", rank);
  auto process = Child::start({.arguments = {rank, "1000"},
                               .environment = {"PMIX_RANK=5"},
                               .output_path = dir / "out",
                               .working_folder = "/"});
  ASSERT_TRUE(process.ok()) << process.status().to_string();
  const auto stat = read_process(process->id().pid);
  ASSERT_TRUE(stat);
  LaunchWatch watch;
  for (int i = 0; i < 30; ++i) watch.look({*stat}, true, 1000);
  EXPECT_FALSE(watch.lost({5, 6}, 60000)) << "another one is on its way";
  watch.look({*stat}, false, 1000);
  EXPECT_EQ(watch.lost({5, 6}, 60000).value_or(0), 6U);
  EXPECT_FALSE(watch.lost({5}, 60000));
}

}  // namespace
}  // namespace swax
