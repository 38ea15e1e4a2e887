// Goal: the end of mpirun is told with its code once nothing of its session is left, whoever ends
// it, and the main loop's look at it waits for nothing. Method: shell scripts in the place of
// mpirun.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <cstdlib>

#include "proto/base/clock.h"
#include "proto/base/files.h"
#include "tests/proto/scratch_dir.h"
#include "worker/agent/attempt_runner.h"
#include "worker/agent/process.h"

namespace swax {
namespace {

class Runner : public ::testing::Test {
 protected:
  // An attempt of one rank, launched by `script`.
  void launch(const std::string& script) {
    const std::string mpirun = dir_ / "mpirun";
    ASSERT_TRUE(write_atomic(mpirun, "#!/bin/sh\n" + script + "\n").ok());
    ASSERT_EQ(::chmod(mpirun.c_str(), 0755), 0);
    for (const char* folder : {"state", "attempts", "store"})
      ASSERT_TRUE(make_dirs(dir_ / folder).ok());
    events_ = std::move(EventQueue::make()).value();
    runner_ = std::make_unique<AttemptRunner>(
        RunnerOptions{.node = "w1",
                      .state = dir_ / "state",
                      .attempts_folder = dir_ / "attempts",
                      .socket_folder = dir_.path(),
                      .mpirun = mpirun,
                      .train_program = "swax-train",
                      .swax_program = "swax",
                      .prepare = [](pb::JobSpec*,
                                    const AttemptPaths&) { return std::vector<std::string>(); }},
        *events_);
    pb::StartAttempt start;
    start.set_job("j");
    start.set_epoch(1);
    start.set_lead("w1");
    start.add_ranks()->set_node("w1");
    runner_->prepare(start, dir_ / "store");
    ASSERT_TRUE(wait<agent::Prepared>().ok);
    runner_->launch(start, dir_ / "store");
  }

  template <typename Event>
  Event wait() {
    for (const int64_t end_ms = clock_.monotonic_ms() + 30000; clock_.monotonic_ms() < end_ms;) {
      runner_->look(clock_.monotonic_ms());
      for (agent::EventBody& event : events_->take())
        if (auto* found = std::get_if<Event>(&event)) return std::move(*found);
      ::poll(nullptr, 0, 5);
    }
    ADD_FAILURE() << "no such event";
    return {};
  }

  // Of the process whose number the script wrote.
  bool runs(const std::string& file) const {
    const auto text = read_file(dir_ / file, 100);
    const auto stat = read_process(text.ok() ? std::atoi(text->c_str()) : 0);
    return stat && stat->state != 'Z';
  }

  SystemClock clock_;
  const ScratchDir dir_;
  std::unique_ptr<EventQueue> events_;
  std::unique_ptr<AttemptRunner> runner_;
};

TEST_F(Runner, TellsTheLaunchersCodeOnceItsSessionIsGone) {
  launch("sleep 1000 &\necho $! > " + (dir_ / "sleeper") + "\necho trouble\nexit 3");
  const auto exited = wait<agent::LauncherExited>();
  EXPECT_EQ(exited.job, "j");
  EXPECT_EQ(exited.epoch, 1U);
  EXPECT_EQ(exited.exit_code, 3);
  EXPECT_EQ(exited.log_tail, "trouble\n");
  EXPECT_FALSE(runs("sleeper"));
  runner_->kill("j", 1);
  EXPECT_EQ(wait<agent::Swept>().job, "j");
}

TEST_F(Runner, EndsALauncherThatOutlivesItsRanks) {
  launch("echo $$ > " + (dir_ / "launcher") + "\nsleep 1000");
  runner_->rank_closed({.job = "j", .epoch = 1, .rank = 0, .exit_code = 5}, clock_.monotonic_ms());
  const auto exited = wait<agent::LauncherExited>();
  EXPECT_EQ(exited.exit_code, 5) << "the rank's, not that of our signal";
  EXPECT_EQ(exited.signal, 0);
  EXPECT_FALSE(runs("launcher"));
}

TEST_F(Runner, RefusesToStartBySrunOutsideASlurmJob) {
  ::unsetenv("SLURM_JOB_ID");
  launch("exit 0");
  pb::StartAttempt start;
  start.set_job("s");
  start.set_epoch(1);
  start.set_lead("w1");
  start.add_ranks()->set_node("w1");
  start.mutable_spec()->mutable_resources()->set_launcher("srun");
  runner_->prepare(start, dir_ / "store");
  const auto prepared = wait<agent::Prepared>();
  EXPECT_FALSE(prepared.ok);
  EXPECT_FALSE(prepared.retry) << "the next attempt would meet the same";
  EXPECT_NE(prepared.error.find("resources.launcher=\"srun\""), std::string::npos)
      << prepared.error;
}

TEST_F(Runner, AKillWaitsForTheEndsThatAreUnderWay) {
  launch("sleep 1000 &\necho $! > " + (dir_ / "sleeper") + "\nexit 0");
  while (!path_exists(dir_ / "sleeper")) ::poll(nullptr, 0, 5);
  runner_->look(clock_.monotonic_ms());
  runner_->kill("j", 1);
  EXPECT_EQ(wait<agent::Swept>().epoch, 1U);
  EXPECT_FALSE(runs("sleeper"));
}

}  // namespace
}  // namespace swax
