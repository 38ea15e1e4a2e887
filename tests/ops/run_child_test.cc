// Goal: a child has a session of its own, none of our descriptors, and dies with us. Method: shells
// and sleepers, watched by pidfds and /proc.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "tests/proto/scratch_dir.h"
#include "worker/agent/child.h"

namespace swax {
namespace {

LaunchSpec shell(const ScratchDir& dir, const std::string& script) {
  return {.arguments = {"/bin/sh", "-c", script},
          .environment = {"PATH=/usr/bin:/bin"},
          .output_path = dir / "out",
          .working_folder = dir.path()};
}

bool wait_until(const std::function<bool()>& condition, int64_t limit_ms = 60000) {
  SystemClock clock;
  const int64_t end_ms = clock.monotonic_ms() + limit_ms;
  while (!condition()) {
    if (clock.monotonic_ms() > end_ms) return false;
    ::poll(nullptr, 0, 5);
  }
  return true;
}

bool runs(pid_t pid) {
  const auto stat = read_process(pid);
  return stat && stat->state != 'Z';
}

std::string text_of(const std::string& path) {
  const auto text = read_file(path, 1 << 20);
  return text.ok() ? *text : "";
}

pid_t written_pid(const std::string& path) {
  EXPECT_TRUE(wait_until([&path] { return text_of(path).ends_with("\n"); })) << path;
  return std::atoi(text_of(path).c_str());
}

TEST(Child, WritesItsOutputAndGivesItsStatus) {
  const ScratchDir dir;
  auto child = Child::start(shell(dir, "echo out; echo err >&2; pwd; exit 7"));
  ASSERT_TRUE(child.ok()) << child.status().to_string();
  ASSERT_TRUE(wait_until([&] { return child->ended(); }));
  const int status = child->end();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(child->end(), status);
  EXPECT_EQ(text_of(dir / "out"), "out\nerr\n" + dir.path() + "\n");
}

TEST(Child, HasItsOwnSessionAndNoDescriptorOfOurs) {
  const ScratchDir dir;
  const int open_fd = ::open("/dev/zero", O_RDONLY);  // without O_CLOEXEC
  ASSERT_GE(open_fd, 0);
  auto child = Child::start(shell(dir, "ls /proc/self/fd | wc -l; sleep 1000"));
  ASSERT_TRUE(child.ok());
  const auto stat = read_process(child->id().pid);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->session, child->id().pid);
  EXPECT_NE(stat->session, ::getsid(0));
  // stdin, stdout (a pipe to wc), stderr and the folder that ls reads.
  ASSERT_TRUE(wait_until([&] { return text_of(dir / "out").ends_with("\n"); }));
  EXPECT_EQ(std::atoi(text_of(dir / "out").c_str()), 4);
  ::close(open_fd);
}

TEST(Child, StartsWithDefaultSignalsAndIsShieldedFromThoseOfManagers) {
  const ScratchDir dir;
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  ::signal(SIGUSR1, SIG_IGN);
  LaunchSpec spec = shell(dir, "");  // a shell would unblock them
  spec.arguments = {"/bin/grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"};
  auto child = Child::start(spec);
  ::signal(SIGUSR1, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(child.ok());
  ASSERT_TRUE(wait_until([&] { return child->ended(); }));
  // 1, 2, 10, 12, 15: what it is asked by these is for the agent to decide.
  EXPECT_EQ(text_of(dir / "out"), "SigBlk:\t0000000000004a03\nSigIgn:\t0000000000000000\n");
}

TEST(Child, SaysWhyAProgramCannotStart) {
  const ScratchDir dir;
  LaunchSpec spec = shell(dir, "");
  spec.arguments = {"/no/such/program"};
  const auto child = Child::start(spec);
  ASSERT_FALSE(child.ok());
  EXPECT_EQ(child.status().code(), Code::kInvalidArgument);
  EXPECT_NE(child.status().message().find("/no/such/program"), std::string::npos);
  EXPECT_NE(child.status().message().find("No such file"), std::string::npos);
}

TEST(Child, EndTakesTheWholeSessionAlong) {
  const ScratchDir dir;
  auto child = Child::start(shell(
      dir, "trap '' TERM INT; sleep 1000 & echo $! > pid; (sleep 1000 & echo $! > pid2); wait"));
  ASSERT_TRUE(child.ok());
  const pid_t one = written_pid(dir / "pid"), two = written_pid(dir / "pid2");
  EXPECT_TRUE(runs(one));
  EXPECT_TRUE(runs(two));
  EXPECT_TRUE(WIFSIGNALED(child->end()));
  EXPECT_FALSE(runs(one));
  EXPECT_FALSE(runs(two));
}

TEST(Child, DiesWithTheProcessThatStartedIt) {
  const ScratchDir dir;
  const pid_t starter = ::fork();
  ASSERT_GE(starter, 0);
  if (starter == 0) {
    auto child = Child::start(shell(dir, "echo $$ > pid; exec sleep 1000"));
    ::pause();
    ::_exit(1);
  }
  const pid_t sleeper = written_pid(dir / "pid");
  const auto before = read_process(sleeper);
  ASSERT_TRUE(before);
  const Fd watched = open_process(before->id);
  ASSERT_TRUE(watched.valid());
  ::kill(starter, SIGKILL);
  ::waitpid(starter, nullptr, 0);
  EXPECT_TRUE(wait_until([&] { return process_ended(watched); }));
}

TEST(Process, KnowsHowAnEndedProcessEnded) {
  const ScratchDir dir;
  auto child = Child::start(shell(dir, "kill -SEGV $$"));
  ASSERT_TRUE(child.ok());
  ASSERT_TRUE(wait_until([&] { return child->ended(); }));
  const auto status = ended_status(child->process(), child->id());
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFSIGNALED(*status));
  EXPECT_EQ(WTERMSIG(*status), SIGSEGV);
}

TEST(Process, RefusesAPidThatWasGivenOn) {
  ProcessId self{.pid = ::getpid(), .start_ticks = 1};
  EXPECT_FALSE(open_process(self).valid());
  self.start_ticks = read_process(::getpid())->id.start_ticks;
  EXPECT_TRUE(open_process(self).valid());
}

TEST(Process, ReadsAnEnvironment) {
  using std::string_literals::operator""s;
  const std::string environment = "A=1\0SWAX_JOBS=x\0SWAX_JOB=a=b\0EMPTY=\0"s;
  EXPECT_EQ(environment_value(environment, "SWAX_JOB"), "a=b");
  EXPECT_EQ(environment_value(environment, "EMPTY"), "");
  EXPECT_FALSE(environment_value(environment, "SWAX"));
  EXPECT_FALSE(environment_value("", "SWAX"));
}

}  // namespace
}  // namespace swax
