// Goal: the srun command, its environment, and the nodes it is given. Method: pure functions on
// texts as Slurm 22.05 writes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "worker/agent/srun.h"

namespace swax {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

const SlurmPlace kPlace{.job = "7", .node = "n2", .nodes = "n[1-4]"};

SrunPlan plan() {
  return {.srun = "/usr/bin/srun",
          .job = "7",
          .command = {"/bin/swax", "srun-rank", "/tmp/s", "/bin/swax-train", "train"},
          .hosts = {"n2", "n2", "n1"},
          .session_folder = "/tmp/s"};
}

pb::StartAttempt gang(const std::vector<std::string>& workers) {
  pb::StartAttempt start;
  for (const std::string& worker : workers) {
    pb::RankPlace& place = *start.add_ranks();
    place.set_rank(static_cast<uint32_t>(start.ranks_size() - 1));
    place.set_node(worker);
  }
  return start;
}

TEST(Srun, AsksForOneStepOfTheWorkersJob) {
  const std::vector<std::string> words = srun_arguments(plan());
  EXPECT_EQ(words.front(), "/usr/bin/srun");
  for (const char* word :
       {"--jobid=7", "--overlap", "--mpi=pmix", "--nodes=2", "--ntasks=3",
        "--distribution=arbitrary", "--kill-on-bad-exit=1", "--no-kill", "--export=ALL"})
    EXPECT_THAT(words, Contains(word));
  const auto command = std::find_if(words.begin() + 1, words.end(),
                                    [](const std::string& w) { return !w.starts_with("--"); });
  EXPECT_EQ(std::vector<std::string>(command, words.end()), plan().command);
}

TEST(Srun, PlacesRankROnTheHostOfLineR) {
  EXPECT_EQ(srun_host_lines(plan()), "n2\nn2\nn1\n");
  EXPECT_EQ(srun_host_file(plan()), "/tmp/s/hosts");
}

TEST(Srun, KeepsOfSlurmsVariablesOnlyTheWayToSlurm) {
  const std::vector<std::string> own{"SLURM_CONF=/etc/s.conf", "SLURM_JWT=t", "SLURM_NTASKS=1",
                                     "SLURM_CONFIG=x"};
  const std::vector<std::string> out = srun_environment(
      plan(), {"PATH=/bin", "SRUN_CPUS_PER_TASK=1", "SWAX_JOB=j", "SWAX_STATE=/lead"}, own);
  EXPECT_THAT(out, Contains("SLURM_CONF=/etc/s.conf"));
  EXPECT_THAT(out, Contains("SLURM_JWT=t"));
  EXPECT_THAT(out, Contains("SLURM_HOSTFILE=/tmp/s/hosts"));
  EXPECT_THAT(out, Contains("SWAX_JOB=j"));
  EXPECT_THAT(out, Contains("SWAX_STATE=/tmp/s")) << "the lead's means nothing elsewhere";
  EXPECT_THAT(out, Not(Contains("SWAX_STATE=/lead")));
  EXPECT_THAT(out, Contains("OMPI_MCA_hwloc_base_binding_policy=none"));
  EXPECT_THAT(out, Not(Contains(StartsWith("SRUN_"))));
  EXPECT_THAT(out, Not(Contains(StartsWith("SLURM_NTASKS"))));
  EXPECT_THAT(out, Not(Contains(StartsWith("SLURM_CONFIG"))));
  EXPECT_THAT(out, Not(Contains(HasSubstr("yield"))));
  EXPECT_THAT(out, Not(Contains(HasSubstr("if_include")))) << "two nodes";
}

TEST(Srun, GivesWayOnSharedCoresAndKeepsOneNodeToLoopback) {
  SrunPlan one = plan();
  one.hosts = {"n2", "n2"};
  one.share_cores = true;
  const std::vector<std::string> out = srun_environment(one, {}, {});
  EXPECT_THAT(out, Contains("OMPI_MCA_mpi_yield_when_idle=1"));
  EXPECT_THAT(out, Contains("OMPI_MCA_btl_tcp_if_include=lo"));
}

TEST(Srun, ReadsListsOfNodes) {
  EXPECT_THAT(slurm_hosts("n1"), ElementsAre("n1"));
  EXPECT_THAT(slurm_hosts("n[1-3,07],m2"), ElementsAre("n1", "n2", "n3", "n07", "m2"));
  EXPECT_THAT(slurm_hosts("gpu[08-10]x"), ElementsAre("gpu08x", "gpu09x", "gpu10x"));
  EXPECT_THAT(slurm_hosts("r[1-2]n[1,3]"), ElementsAre("r1n1", "r1n3", "r2n1", "r2n3"));
  EXPECT_THAT(slurm_hosts(""), IsEmpty());
  EXPECT_THAT(slurm_hosts("n[1-"), ElementsAre("n[1-"));
  EXPECT_EQ(slurm_hosts("n[0-999999999]").size(), 65'536U);
}

TEST(Srun, FindsThePlaceInTheEnvironment) {
  const SlurmPlace place = slurm_place(
      {"SLURM_JOB_ID=7", "SLURMD_NODENAME=n2", "SLURM_JOB_NODELIST=n[1-4]", "SLURM_NODELIST=n2"});
  EXPECT_EQ(place.job, "7");
  EXPECT_EQ(place.node, "n2");
  EXPECT_EQ(place.nodes, "n[1-4]");
}

TEST(Srun, KnowsTheNodesOfTheWorkersOfItsOwnJob) {
  const auto hosts = srun_hosts(gang({"n2-7", "n2-7", "n4-7"}), "n2-7", kPlace);
  ASSERT_TRUE(hosts.ok()) << hosts.status().message();
  EXPECT_THAT(*hosts, ElementsAre("n2", "n2", "n4"));
  const auto requeued = srun_hosts(gang({"n2-7-1", "n1-7-1"}), "n2-7-1", kPlace);
  ASSERT_TRUE(requeued.ok());
  EXPECT_THAT(*requeued, ElementsAre("n2", "n1"));
  const auto upper =
      srun_hosts(gang({"node1-7", "node2-7"}), "node1-7", {"7", "Node1", "Node[1-2]"});
  ASSERT_TRUE(upper.ok());
  EXPECT_THAT(*upper, ElementsAre("Node1", "Node2"));
  const auto alone = srun_hosts(gang({"some", "some"}), "some", kPlace);
  ASSERT_TRUE(alone.ok()) << "one node needs no other's name";
  EXPECT_THAT(*alone, ElementsAre("n2", "n2"));
}

TEST(Srun, RefusesWhatASlurmStepCannotReach) {
  const auto message = [](const std::vector<std::string>& workers, const std::string& own,
                          const SlurmPlace& place) {
    const auto hosts = srun_hosts(gang(workers), own, place);
    EXPECT_EQ(hosts.status().code(), Code::kFailedPrecondition);
    EXPECT_THAT(hosts.status().message(), HasSubstr("resources.launcher=\"srun\""));
    return hosts.status().message();
  };
  EXPECT_THAT(message({"n2"}, "n2", {}), HasSubstr("does not run in a Slurm job"));
  EXPECT_THAT(message({"n2-7", "n3-8"}, "n2-7", kPlace), HasSubstr("n3-8 is not of Slurm job 7"))
      << "of another Slurm job: a pool";
  EXPECT_THAT(message({"n2-7", "n9-7"}, "n2-7", kPlace), HasSubstr("n9-7"));
  EXPECT_THAT(message({"some", "n3-7"}, "some", kPlace), HasSubstr("n3-7"));
}

}  // namespace
}  // namespace swax
