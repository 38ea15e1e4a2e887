// Goal: what Slurm's programs say is read in the shapes that its versions have, and never more than
// they say; scripts carry the numbers of a spec and nothing that a spec could smuggle in; what is
// begun under a time limit follows from it.
// Method: answers as texts; rendered scripts line by line; made-up histories.
#include <gtest/gtest.h>

#include "ops/cli/doctor_slurm.h"
#include "ops/cli/slurm_command.h"
#include "ops/cli/slurm_limit.h"
#include "ops/cli/slurm_queue.h"
#include "ops/cli/slurm_script.h"

namespace swax {
namespace {

TEST(SlurmQueue, ReadsOldAndNewJson) {
  for (const char* text :
       {R"({"meta":{},"errors":[],"jobs":[{"job_id":12,"array_job_id":0,"job_state":"PENDING",
            "state_reason":"PartitionTimeLimit","comment":"swax:ab"}]})",
        R"({"jobs":[{"job_id":12,"array_job_id":{"set":true,"infinite":false,"number":0},
            "job_state":["PENDING","REQUEUED"],"state_reason":"PartitionTimeLimit",
            "comment":"swax:ab","new":{"key":[1,2]}}],"last_update":{}})",
        R"({"jobs":[{"job_id":"12","job_state":["PENDING"],"state_reason":["PartitionTimeLimit"],
            "comment":"swax:ab"}]})"}) {
    const auto jobs = parse_squeue_json(text);
    ASSERT_TRUE(jobs.ok()) << text;
    ASSERT_EQ(jobs->size(), 1U) << text;
    EXPECT_EQ(jobs->front().id, 12);
    EXPECT_EQ(jobs->front().state, "PENDING");
    EXPECT_EQ(jobs->front().comment, "swax:ab");
    EXPECT_TRUE(never_starts(jobs->front()));
  }
}

TEST(SlurmQueue, AnArrayIsOneJob) {
  const auto jobs = parse_squeue_json(
      R"({"jobs":[{"job_id":13,"array_job_id":12,"job_state":"RUNNING"},{"job_id":12}]})");
  ASSERT_TRUE(jobs.ok());
  ASSERT_EQ(jobs->size(), 2U);
  EXPECT_EQ((*jobs)[0].id, 12);
  EXPECT_EQ((*jobs)[1].state, "UNKNOWN");
}

TEST(SlurmQueue, RefusesWhatIsNoAnswer) {
  for (const char* text : {"", "slurm_load_jobs error", "[]", "{}", R"({"jobs":7})", "{\"jobs\":["})
    EXPECT_EQ(parse_squeue_json(text).status().code(), Code::kInvalidArgument) << text;
  const auto odd =
      parse_squeue_json(R"({"jobs":[7,null,{"comment":"x"},{"job_id":{"set":false}}]})");
  ASSERT_TRUE(odd.ok());
  EXPECT_TRUE(odd->empty());
}

TEST(SlurmQueue, ReadsLines) {
  const auto jobs =
      parse_squeue_lines("12_[1-4]|PENDING|Resources|swax:ab\n13|RUNNING|None|\nx|y\n");
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(jobs[0].id, 12);
  EXPECT_FALSE(never_starts(jobs[0]));
  EXPECT_EQ(jobs[1].comment, "");
}

pb::JobSpec small_spec() {
  pb::JobSpec spec;
  spec.mutable_job()->set_name("a");
  spec.mutable_parallelism()->set_ranks(4);
  spec.mutable_parallelism()->set_compute_threads(2);
  spec.mutable_resources()->set_signal_seconds(120);
  return spec;
}

SlurmScript small_script() {
  return {.pool = false,
          .swax = "/opt/swax",
          .spec_path = "/home/it's.toml",
          .state = "/home/runs/a",
          .coordinator = "",
          .request_id = "00ff"};
}

TEST(SlurmScript, NodesFollowFromRanks) {
  pb::JobSpec spec = small_spec();
  EXPECT_EQ(slurm_shape(spec).nodes, 4);
  spec.mutable_resources()->set_gpus_per_node(8);
  spec.mutable_resources()->set_spare_nodes(1);
  EXPECT_EQ(slurm_shape(spec).nodes, 2);
  EXPECT_EQ(slurm_shape(spec).ranks_per_node, 8);
  EXPECT_EQ(slurm_shape(spec).cpus_per_task, 16);
}

TEST(SlurmScript, HoldsHeaderSettingsAndComment) {
  pb::JobSpec spec = small_spec();
  spec.mutable_resources()->set_exclude("n[3-4]");
  const Result<std::string> text = render_script(small_script(), spec);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  for (const char* line :
       {"\n#SBATCH --nodes=4\n", "\n#SBATCH --comment=swax:00ff\n", "\n#SBATCH --cpus-per-task=2\n",
        "\nswax='/opt/swax'\n", "\nspec='/home/it'\\''s.toml'\n", "\nslots=1\n",
        "\nexclude='n[3-4]'\n", "\n#SBATCH --exclude=n[3-4]\n", "\ncontainer=()\n"})
    EXPECT_NE(text->find(line), std::string::npos) << line << *text;
  EXPECT_EQ(text->find("--exclusive"), std::string::npos);
  EXPECT_TRUE(text->starts_with("#!/bin/bash\n"));
}

TEST(SlurmScript, RefusesWhatNoHeaderHolds) {
  for (const char* value : {"a b", "x\n#SBATCH --uid=0", "\"", "a'b", "#"}) {
    pb::JobSpec spec = small_spec();
    spec.mutable_resources()->set_partition(value);
    const Result<std::string> text = render_script(small_script(), spec);
    EXPECT_EQ(text.status().code(), Code::kInvalidArgument) << value;
    EXPECT_NE(text.status().message().find("resources.partition"), std::string::npos);
  }
  pb::JobSpec few = small_spec();
  few.mutable_resources()->set_nodes(3);
  EXPECT_EQ(render_script(small_script(), few).status().code(), Code::kInvalidArgument);
  pb::JobSpec brief = small_spec();
  brief.mutable_resources()->set_time_minutes(2);
  EXPECT_NE(render_script(small_script(), brief).status().message().find("signal_seconds=120"),
            std::string::npos);
  brief.mutable_resources()->set_time_minutes(3);
  EXPECT_TRUE(render_script(small_script(), brief).ok());
}

TEST(SlurmCommand, TellsEndsOutputsAndTime) {
  const CommandResult good = run_command({"sh", "-c", "echo out; echo err >&2; exit 3"}, 20'000);
  EXPECT_EQ(good.exit_code, 3);
  EXPECT_EQ(good.out, "out\n");
  EXPECT_EQ(said(good), "err");
  EXPECT_EQ(run_command({"swax-no-such-program"}, 1'000).exit_code, 127);
  EXPECT_EQ(run_command({"sh", "-c", "kill -9 $$"}, 20'000).exit_code, 137);
  const CommandResult late = run_command({"sleep", "60"}, 100);
  EXPECT_TRUE(late.timed_out);
  EXPECT_FALSE(late.ok());
}

TEST(SlurmLimit, ReadsTimesOfSqueue) {
  EXPECT_EQ(parse_slurm_seconds("0:09"), 9);
  EXPECT_EQ(parse_slurm_seconds("59:12"), 59 * 60 + 12);
  EXPECT_EQ(parse_slurm_seconds("2:00:01"), 7201);
  EXPECT_EQ(parse_slurm_seconds("1-02:03:04"), 93784);
  for (const char* text : {"", "UNLIMITED", "INVALID", "NOT_SET", "12", "1:-2", "-1:00", "1:2:3:4",
                           "99999999999:00", "1-", "a:b"})
    EXPECT_FALSE(parse_slurm_seconds(text).has_value()) << text;
  const auto limit = parse_slurm_limit("1:30|10:00");
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->left_s, 90);
  EXPECT_EQ(limit->limit_s, 600);
  EXPECT_FALSE(parse_slurm_limit("UNLIMITED|UNLIMITED").has_value());
  EXPECT_FALSE(parse_slurm_limit("1:30").has_value());
}

TEST(SlurmLimit, NothingBeginsAfterTheNotice) {
  const SlurmLimit limit{.left_s = 300, .limit_s = 600};
  EXPECT_EQ(leave_at_ms(limit, 120, 20'000, 5'000), 185'000);
  EXPECT_EQ(leave_at_ms(std::nullopt, 120, 0, 5'000), INT64_MAX);
  EXPECT_EQ(leave_at_ms(limit, 580, 20'000, 5'000), INT64_MAX) << "no incarnation has time";
  EXPECT_EQ(leave_at_ms(limit, 400, 20'000, 5'000), -95'000) << "it is over already";
}

TEST(SlurmLimit, StartsAreTimedByHistory) {
  std::vector<pb::EventRecord> events;
  const auto add = [&events](const char* kind, uint64_t attempt, int64_t wall_ms) {
    pb::EventRecord& event = events.emplace_back();
    event.set_kind(kind);
    event.set_epoch(attempt);
    event.set_wall_ms(wall_ms);
  };
  EXPECT_EQ(longest_startup_ms(events), 0);
  add("attempt_started", 1, 1'000);
  add("attempt_running", 1, 91'000);
  for (uint64_t attempt = 2; attempt <= 5; ++attempt) {
    add("attempt_started", attempt, 100'000);
    add("attempt_running", attempt, 103'000);
  }
  EXPECT_EQ(longest_startup_ms(events), 90'000);
  add("attempt_started", 6, 200'000);
  EXPECT_EQ(longest_startup_ms(events), 90'000) << "it made no step";
  add("attempt_running", 6, 204'000);
  EXPECT_EQ(longest_startup_ms(events), 4'000) << "of the newest five";
}

TEST(SlurmQueue, FieldsOfScontrol) {
  const char* text = "JobId=7 ReqNodeList=(null) ExcNodeList=n[3-4]\n   Command=/a=b Last=x\n";
  EXPECT_EQ(slurm_field(text, "ExcNodeList"), "n[3-4]");
  EXPECT_EQ(slurm_field(text, "NodeList"), "");
  EXPECT_EQ(slurm_field(text, "ReqNodeList"), "");
  EXPECT_EQ(slurm_field(text, "Command"), "/a=b");
  EXPECT_EQ(slurm_field(text, "Last"), "x");
}

TEST(SlurmDoctor, SaysWhatTheClusterIs) {
  EXPECT_TRUE(doctor_controller("Slurmctld(primary) at head is UP\n").fits);
  EXPECT_FALSE(doctor_controller("Slurmctld(primary) at head is DOWN\n").fits);
  EXPECT_FALSE(doctor_controller("").fits);
  const DoctorRow good = doctor_partitions(
      "main*|up|infinite|3|idle\nmain*|up|infinite|1|down*\nold|down|1:00|9|idle\n");
  EXPECT_TRUE(good.fits);
  EXPECT_EQ(good.found, "main* 3 of 4 nodes, limit infinite; old 0 of 9 nodes, limit 1:00");
  EXPECT_FALSE(doctor_partitions("main*|up|infinite|4|drained\n").fits);
  EXPECT_FALSE(doctor_partitions("").fits);
  const char* can = "resources.launcher may be \"srun\"";
  EXPECT_NE(doctor_mpi("MPI plugin types are...\n\tnone\n\tpmix\n").found.find(can),
            std::string::npos);
  EXPECT_NE(doctor_mpi("srun: MPI types are...\nsrun: pmix_v2\n").found.find(can),
            std::string::npos);
  EXPECT_NE(doctor_mpi("srun: error: mpi/pmix: no such plugin\n").found.find("no pmix"),
            std::string::npos);
  EXPECT_NE(doctor_mpi("srun: MPI types are...\nsrun: pmi2\n").found.find("no pmix"),
            std::string::npos);
  const auto times = doctor_times(
      "AuthInfo    = socket=/run/m,cred_expire=5\nKillWait    = 3 sec\n"
      "SlurmdTimeoutX = 9 sec\nSlurmdTimeout  = 300 sec\n");
  ASSERT_EQ(times.size(), 3U);
  EXPECT_NE(times[0].found.find("after 300 s"), std::string::npos) << times[0].found;
  EXPECT_NE(times[1].found.find("about 6 s"), std::string::npos) << times[1].found;
  EXPECT_NE(times[2].found.find("SIGKILL 3 s"), std::string::npos) << times[2].found;
  EXPECT_FALSE(doctor_shared_folder("/dev/shm", 0x01021994).fits);
  EXPECT_TRUE(doctor_shared_folder("/home", 0x6969).fits);
  EXPECT_TRUE(doctor_shared_folder("/x", 1).fits);
}

}  // namespace
}  // namespace swax
