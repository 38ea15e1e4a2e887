// Goal: a rank knows its place below mpirun and below srun, refuses a number that is not MPI's, and
// does not outlive its agent. Method: environments of both launchers; a pipe in the place of the
// agent's descriptor.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "proto/base/text.h"
#include "worker/train/launcher.h"

namespace swax {
namespace {

class Launcher : public ::testing::Test {
 protected:
  Launcher() {
    for (const char* name :
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
          "PMIX_RANK", "SLURM_LOCALID", "SWAX_RANKS_HERE", "SWAX_AGENT_FD"})
      ::unsetenv(name);
  }
  static void set(const char* name, const char* value) { ::setenv(name, value, 1); }
};

TEST_F(Launcher, TellsThePlaceOnTheNode) {
  EXPECT_EQ(local_rank().rank, 0) << "started by hand";
  EXPECT_EQ(local_rank().size, 1);
  set("SLURM_LOCALID", "2");
  set("SWAX_RANKS_HERE", "4");
  EXPECT_EQ(local_rank().rank, 2);
  EXPECT_EQ(local_rank().size, 4);
  set("OMPI_COMM_WORLD_LOCAL_RANK", "1");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "3");
  EXPECT_EQ(local_rank().rank, 1) << "mpirun inside a step of Slurm";
  EXPECT_EQ(local_rank().size, 3);
}

TEST_F(Launcher, AnotherNumberThanMpisIsRefusedWithBoth) {
  EXPECT_TRUE(check_rank_number(3).ok());
  set("PMIX_RANK", "3");
  EXPECT_TRUE(check_rank_number(3).ok());
  const Status status = check_rank_number(0);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message(), "MPI says rank 0, PMIX_RANK=3");
  set("OMPI_COMM_WORLD_RANK", "1");
  EXPECT_FALSE(check_rank_number(3).ok());
}

TEST_F(Launcher, TheEndOfTheAgentEndsTheRank) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t rank = ::fork();
  if (rank == 0) {
    set("SWAX_AGENT_FD", to_text(ends[0]).c_str());
    die_with_agent();
    for (;;) ::pause();  // as in MPI_Init
  }
  ::usleep(200'000);
  int status = 0;
  EXPECT_EQ(::waitpid(rank, &status, WNOHANG), 0) << "not before";
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  ASSERT_EQ(::waitpid(rank, &status, 0), rank);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 75);
}

}  // namespace
}  // namespace swax
