// Goal: what srun starts becomes a rank of its own node, not before the node's agent expects it and
// not after the agent has gone. Method: run_srun_rank in forked processes, a shell as the rank.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "proto/base/files.h"
#include "proto/base/text.h"
#include "tests/proto/scratch_dir.h"
#include "worker/agent/process.h"
#include "worker/agent/srun_rank.h"

namespace swax {
namespace {

using ::testing::HasSubstr;

class SrunRank : public ::testing::Test {
 protected:
  // As a task of a step whose lead is another node.
  pid_t start(const std::string& script) {
    const pid_t pid = ::fork();
    if (pid != 0) return pid;
    const int out = ::open((dir_ / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::setenv("SLURMD_NODENAME", "n2", 1);
    ::setenv("SWAX_WORKER", "n1-7", 1);
    ::setenv("SWAX_STATE", dir_.path().c_str(), 1);
    ::_exit(run_srun_rank(dir_.path(), {"/bin/sh", "-c", script}));
  }

  static int end_of(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::string out() const {
    const Result<std::string> text = read_file(dir_ / "out", 10'000);
    return text.ok() ? *text : "";
  }

  const RankSeat seat_{.worker = "n2-7", .state = "/s/n2", .socket_folder = "/s/mpi", .ranks = 3};
  const ScratchDir dir_;
};

TEST_F(SrunRank, TakesTheSeatOfItsOwnNodeOnceItIsThere) {
  const pid_t pid = start("echo $SWAX_WORKER $SWAX_STATE $SWAX_AGENT_DIR $SWAX_RANKS_HERE");
  ASSERT_TRUE(write_rank_seat(dir_.path(), "n1",
                              {.worker = "n1-7", .state = "/s/n1", .socket_folder = "/s/mpi"})
                  .ok());
  ::poll(nullptr, 0, 300);
  EXPECT_EQ(out(), "") << "the other node's is not its own";
  ASSERT_TRUE(write_rank_seat(dir_.path(), "n2", seat_).ok());
  EXPECT_EQ(end_of(pid), 0);
  EXPECT_EQ(out(), "n2-7 /s/n2 /s/mpi 3\n");
}

TEST_F(SrunRank, HasADescriptorOfItsAgent) {
  ASSERT_TRUE(write_rank_seat(dir_.path(), "n2", seat_).ok());
  const pid_t pid = start("grep Pid: /proc/self/fdinfo/$SWAX_AGENT_FD");
  EXPECT_EQ(end_of(pid), 0);
  EXPECT_EQ(out(), "Pid:\t" + to_text(int64_t{::getpid()}) + "\n");
}

TEST_F(SrunRank, DoesNotBeginWhenTheAgentHasGone) {
  const pid_t agent = ::fork();
  if (agent == 0) ::_exit(write_rank_seat(dir_.path(), "n2", seat_).ok() ? 0 : 1);
  ASSERT_EQ(end_of(agent), 0);
  EXPECT_EQ(end_of(start("echo began")), 255);
  EXPECT_THAT(out(), HasSubstr("swax srun-rank: the worker has gone"));
}

TEST_F(SrunRank, DoesNotBeginOnceTheSeatIsTaken) {
  ASSERT_TRUE(write_rank_seat(dir_.path(), "n2", seat_).ok());
  ASSERT_TRUE(remove_rank_seat(dir_.path(), "n2").ok());
  const pid_t pid = start("echo began");
  ::poll(nullptr, 0, 500);
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0) << "it waits";
  ::kill(pid, SIGKILL);
  EXPECT_EQ(end_of(pid), 128 + SIGKILL);
  EXPECT_EQ(out(), "");
}

}  // namespace
}  // namespace swax
