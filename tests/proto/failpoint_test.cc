// Goal: a failpoint kills exactly at its passage, in its rank, once where that is asked for.
// Method: each case runs in a forked child that walks over failpoints and exits with 0.
#include "proto/base/failpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

struct Outcome {
  bool killed = false;
  int exit_code = -1;
  std::string said;  // on stderr
};

// Passes a.one `ones` times, then a.two `twos` times, in a child.
Outcome walk(const std::string& spec, int rank, int ones, int twos) {
  const ScopedEnv env("SWAX_FAILPOINTS", spec);
  int pipe_fds[2];
  SWAX_CHECK(pipe(pipe_fds) == 0);
  Fd read_end(pipe_fds[0]);
  Fd write_end(pipe_fds[1]);
  const pid_t pid = fork();
  SWAX_CHECK(pid >= 0);
  if (pid == 0) {
    dup2(write_end.get(), STDERR_FILENO);
    failpoints_init(rank);
    for (int i = 0; i < ones; ++i) SWAX_FAILPOINT("a.one");
    for (int i = 0; i < twos; ++i) SWAX_FAILPOINT("a.two");
    _exit(0);
  }
  write_end.reset();
  Outcome outcome;
  char buffer[512];
  for (ssize_t n; (n = read(read_end.get(), buffer, sizeof buffer)) > 0;) {
    outcome.said.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  SWAX_CHECK(waitpid(pid, &status, 0) == pid);
  outcome.killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

TEST(Failpoint, KillsAtItsPassage) {
  const Outcome hit = walk("a.one:3", -1, 3, 0);
  EXPECT_TRUE(hit.killed);
  EXPECT_EQ(hit.said.rfind("failpoint a.one:3 rank=-1 pid=", 0), 0U) << hit.said;
  EXPECT_EQ(hit.said.back(), '\n');
  EXPECT_EQ(walk("a.one:3", -1, 2, 9).exit_code, 0);
}

TEST(Failpoint, PassesAfterItsPassageAreFree) {
  EXPECT_EQ(walk("", 0, 100, 100).exit_code, 0);
  EXPECT_EQ(walk("b.other:1", 0, 100, 100).exit_code, 0);
  EXPECT_EQ(walk("a:1", 0, 100, 100).exit_code, 0);
}

TEST(Failpoint, SeveralInOneList) {
  EXPECT_TRUE(walk("b.other:1,a.two:2", 0, 5, 2).killed);
  EXPECT_TRUE(walk("a.one:9,a.one:2", 0, 2, 0).killed);
  EXPECT_EQ(walk("a.one:9,a.two:2", 0, 8, 1).exit_code, 0);
}

TEST(Failpoint, OnlyInItsRank) {
  EXPECT_TRUE(walk("a.one:1:rank=2", 2, 1, 0).killed);
  EXPECT_EQ(walk("a.one:1:rank=2", 1, 1, 0).exit_code, 0);
  EXPECT_EQ(walk("a.one:1:rank=2", -1, 1, 0).exit_code, 0);
}

TEST(Failpoint, OnceOverRestarts) {
  const ScratchDir dir;
  const ScopedEnv once("SWAX_FAILPOINT_ONCE_DIR", dir.path());
  EXPECT_TRUE(walk("a.one:1,a.two:2", 0, 1, 2).killed);
  EXPECT_TRUE(path_exists(dir / "a.one.1"));
  EXPECT_TRUE(walk("a.one:1,a.two:2", 0, 1, 2).killed);  // the second one now
  EXPECT_TRUE(path_exists(dir / "a.two.2"));
  EXPECT_EQ(walk("a.one:1,a.two:2", 0, 1, 2).exit_code, 0);
}

TEST(Failpoint, BadListEndsTheProcess) {
  for (const char* bad : {"a.one", "a.one:0", "a.one:-1", "a.one:x", "a.one:1x", ":1", "a.one:1:2",
                          "a.one:1:rank=", "a.one:1:rank=-1", "a.one:1,", "a.one:1:rank=1:x"}) {
    const Outcome outcome = walk(bad, 0, 0, 0);
    EXPECT_EQ(outcome.exit_code, 2) << bad;
    EXPECT_NE(outcome.said.find("SWAX_FAILPOINTS"), std::string::npos) << bad;
  }
}

}  // namespace
}  // namespace swax
