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

TEST(Mpirun, SharesNoMemoryBetweenNodesOfOneMachine) {
  const auto words = [](std::vector<MpirunHost> hosts, bool shared_host) {
    return mpirun_arguments({.mpirun = "mpirun",
                             .program = {"x"},
                             .ranks = 4,
                             .session_folder = "/s",
                             .hosts = std::move(hosts),
                             .launch_agent = "agent",
                             .loopback = false,
                             .shared_host = shared_host});
  };
  const std::vector<MpirunHost> two{{.name = "w0", .slots = 2}, {.name = "w1", .slots = 2}};
  EXPECT_THAT(words({}, false), Contains("self,vader,tcp"));
  EXPECT_THAT(words(two, false), Contains("self,vader,tcp"));
  EXPECT_THAT(words(two, true), Contains("self,tcp"));
  EXPECT_THAT(words(two, true), Not(Contains("self,vader,tcp")));
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

}  // namespace
}  // namespace swax
