// Goal: the mpirun command, the environment it gets, and what is read from its words. Method: pure
// functions on texts as Open MPI 4.1.4 wrote them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/agent/mpirun.h"

namespace swax {
namespace {

using ::testing::Contains;
using ::testing::Not;

TEST(Mpirun, KeepsToLoopbackAndToItsFolder) {
  const std::vector<std::string> words =
      mpirun_arguments({.mpirun = "/usr/bin/mpirun",
                        .program = {"/bin/rank", "train"},
                        .ranks = 3,
                        .session_folder = "/state/attempts/a1/mpi"});
  EXPECT_EQ(words.front(), "/usr/bin/mpirun");
  EXPECT_THAT(words, Contains("localhost:3"));
  EXPECT_THAT(words, Not(Contains("--allow-run-as-root")));
  EXPECT_EQ(words[words.size() - 4], "-np");
  EXPECT_EQ(words[words.size() - 3], "3");
  EXPECT_EQ(words.back(), "train");
  int inside = 0;
  for (const std::string& word : words) inside += word == "/state/attempts/a1/mpi" ? 1 : 0;
  EXPECT_EQ(inside, 2);  // shared memory and session files
}

TEST(Mpirun, TellsRootAndSharedCoresOnlyWhenTrue) {
  const std::vector<std::string> words = mpirun_arguments({.mpirun = "mpirun",
                                                           .program = {"x"},
                                                           .session_folder = "/s",
                                                           .root = true,
                                                           .share_cores = true});
  EXPECT_THAT(words, Contains("--allow-run-as-root"));
  EXPECT_THAT(words, Contains("mpi_yield_when_idle"));
}

TEST(Mpirun, LeavesOutWhatAnOuterLauncherSet) {
  const std::vector<std::string> out = rank_environment(
      {"PATH=/bin", "OMPI_COMM_WORLD_RANK=3", "PMIX_RANK=3", "SLURM_JOBID=9", "SWAX_JOB=old",
       "SWAX_LOG=debug", "SWAX_FAILPOINTS=a:1", "OPENBLAS_CORETYPE=Haswell"},
      {"SWAX_JOB=new"}, false);
  EXPECT_THAT(out,
              ::testing::UnorderedElementsAre("PATH=/bin", "SWAX_JOB=new", "SWAX_LOG=debug",
                                              "SWAX_FAILPOINTS=a:1", "OPENBLAS_CORETYPE=Haswell"));
}

TEST(Mpirun, ReadsWhoWasKilled) {
  const auto verdict = parse_mpirun_output(
      "----\nPrimary job  terminated normally, but 1 process returned\n----\n"
      "mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).\n");
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_EQ(verdict->signal, 9);
}

TEST(Mpirun, ReadsWhoExited) {
  const auto verdict = parse_mpirun_output(
      "mpirun detected that one or more processes exited with non-zero status\n\n"
      "  Process name: [[12175,1],1]\n  Exit code:    9\n");
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_EQ(verdict->exit_code, 9);
  EXPECT_EQ(verdict->signal, 0);
}

TEST(Mpirun, ReadsWhoAborted) {
  const auto verdict = parse_mpirun_output(
      "MPI_ABORT was invoked on rank 4 in communicator MPI_COMM_WORLD\nwith errorcode 7.\n");
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 4);
  EXPECT_EQ(verdict->exit_code, 7);
}

TEST(Mpirun, BlamesNobodyInOtherWords) {
  EXPECT_FALSE(parse_mpirun_output(""));
  EXPECT_FALSE(parse_mpirun_output("noticed that process rank x with PID 0"));
  EXPECT_FALSE(parse_mpirun_output("Process name: [[1"));
  EXPECT_FALSE(parse_mpirun_output("noticed that process rank 99999999999999999999 on signal 9"));
}

}  // namespace
}  // namespace swax
