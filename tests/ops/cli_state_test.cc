// Goal: status, events and checkpoints tell what stands in a state folder, also beside a run that
// holds it, and after damage. Method: synthetic state folders and the program itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdio>
#include <filesystem>

#include "ops/cli/state_dir.h"
#include "ops/cli/state_report.h"
#include "storage/rocks_kv.h"
#include "tests/ops/cli_process.h"
#include "tests/ops/cli_state_fixture.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

using test::Finished;
using test::run_swax;
using ::testing::HasSubstr;
using ::testing::Not;

// Changes one byte in the middle of the largest file below `folder`.
void damage_largest_file(const std::string& folder) {
  std::filesystem::path largest;
  uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.file_size() <= bytes) continue;
    largest = entry.path();
    bytes = entry.file_size();
  }
  FILE* file = std::fopen(largest.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  std::fseek(file, static_cast<long>(bytes / 4), SEEK_SET);
  const int byte = std::fgetc(file);
  std::fseek(file, static_cast<long>(bytes / 4), SEEK_SET);
  std::fputc(byte ^ 0x10, file);
  std::fclose(file);
}

TEST(Status, TellsWhatARunDoesAndWhatToDo) {
  const ScratchDir dir;
  ASSERT_TRUE(test::make_state(dir / "run", {}).ok());
  const Finished text = run_swax(dir.path(), {"status", "--state", "run"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("STOPPED"));
  EXPECT_THAT(text.out, HasSubstr("step 40 of 40 (100.0 %)"));
  EXPECT_THAT(text.out, HasSubstr("restarts 1"));
  EXPECT_THAT(text.out, HasSubstr("attempt_started: 1 rank: 1 on local"));
  EXPECT_THAT(text.out, HasSubstr("the checkpoint of step 40"));
  EXPECT_THAT(text.out, HasSubstr("validation   none yet"));
  EXPECT_THAT(text.out, Not(HasSubstr("\x1b")));  // no colours into a pipe
  const Finished json = run_swax(dir.path(), {"status", "--state=run", "-o", "json"});
  EXPECT_THAT(json.out, HasSubstr("\"checkpoint_step\": 40"));
  EXPECT_THAT(json.out, HasSubstr("\"tokens_per_s\": 20480.0"));
}

TEST(Status, WorksBesideTheRunThatHoldsTheFolder) {
  const ScratchDir dir;
  ASSERT_TRUE(test::make_state(dir / "run", {}).ok());
  const StateDir state(dir / "run");
  const Result<Fd> lock = lock_file(state.lock_path());
  ASSERT_TRUE(lock.ok());
  const auto db = open_rocks_kv(state.db_folder(), KvMode::kOpen);
  ASSERT_TRUE(db.ok());
  // What the run writes while it is open is seen.
  pb::JobRecord end;
  end.set_job("micro");
  end.set_number(5);
  end.mutable_finished()->set_epoch(2);
  end.mutable_finished()->set_result("user_error");
  end.mutable_finished()->set_reason("on attempt 2");
  end.mutable_finished()->set_retry_delay_ms(1000);
  const std::string key = std::string("rec/micro/") + std::string(7, '\0') + '\5';
  ASSERT_TRUE((*db)->write({{.key = key, .value = end.SerializeAsString()}}, true).ok());
  const Finished finished = run_swax(dir.path(), {"status", "--state", "run"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("RUNNING: user_error: on attempt 2"));
  EXPECT_TRUE((*db)->write({{.key = "meta/epoch", .value = "7"}}, true).ok());
}

TEST(Status, TellsOfAnEnd) {
  const ScratchDir dir;
  ASSERT_TRUE(test::make_state(dir / "run", {}).ok());
  std::vector<pb::JobRecord> records(3);
  records[0].mutable_result()->set_epoch(2);
  records[0].mutable_result()->set_step(40);
  records[0].mutable_result()->set_digest("0123456789abcdef0123456789abcdef");
  records[1].mutable_finished()->set_epoch(2);
  records[1].mutable_finished()->set_result("done");
  records[2].mutable_job_finished()->set_state("SUCCEEDED");
  ASSERT_TRUE(test::add_records(StateDir(dir / "run"), std::move(records)).ok());
  const Finished finished = run_swax(dir.path(), {"status", "--state", "run"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("SUCCEEDED"));
  EXPECT_THAT(finished.out, HasSubstr("0123456789abcdef0123456789abcdef"));
}

TEST(RunView, IsCompletedFromTheStepsOfARunWithoutAnEnd) {
  const ScratchDir dir;
  ASSERT_TRUE(test::make_state(dir / "run", {}).ok());
  const StateDir state(dir / "run");
  const auto view = load_run_view(state);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->events.size(), 4U);
  RunInfo run = view->run;
  EXPECT_EQ(run.state, "STOPPED");
  EXPECT_EQ(run.epoch, 2U);
  EXPECT_EQ(run.progress_step, 30U);
  complete_from_history(state, &run);
  EXPECT_EQ(run.progress_step, 40U);
  EXPECT_EQ(run.loss_bits, std::bit_cast<uint64_t>(5.0 / 41.0));
  EXPECT_EQ(run.tokens_per_s, 20480.0);
  EXPECT_EQ(run.digest, "");
}

// Record 3 of 4 is damaged; what stood before it is told, and which one it is.
TEST(Status, ADamagedRecordHoldsTheRunAndIsNamed) {
  const ScratchDir dir;
  ASSERT_TRUE(test::make_state(dir / "run", {}).ok());
  test::damage_record(StateDir(dir / "run"), 3);
  const Finished status = run_swax(dir.path(), {"status", "--state", "run"});
  EXPECT_EQ(status.exit_code, 0) << status.err;
  EXPECT_THAT(status.out, HasSubstr("HELD"));
  EXPECT_THAT(status.out, HasSubstr("job micro: record 3 cannot be read"));
  EXPECT_THAT(status.out, HasSubstr("from a backup"));
  EXPECT_THAT(status.err, HasSubstr("job micro: record 3 cannot be read"));
  const Finished json = run_swax(dir.path(), {"status", "--state", "run", "-o", "json"});
  EXPECT_THAT(json.out, HasSubstr("\"state\": \"HELD\""));
  const Finished events = run_swax(dir.path(), {"events", "--state", "run"});
  EXPECT_EQ(events.exit_code, 0);
  EXPECT_THAT(events.out, HasSubstr("attempt_started"));
  EXPECT_THAT(events.out, Not(HasSubstr("attempt_ended")));
  EXPECT_THAT(events.err, HasSubstr("record 3 cannot be read"));
  const std::string spec = std::string(SWAX_SOURCE_DIR) + "/jobs/micro.toml";
  const Finished run = run_swax(dir.path(), {"run", spec, "--state", "run"});
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_THAT(run.err, HasSubstr("job micro: record 3 cannot be read"));
  EXPECT_EQ(run.out, "");
}

TEST(Status, ADamagedFirstRecordLeavesNothingToTell) {
  const ScratchDir dir;
  ASSERT_TRUE(test::make_state(dir / "run", {}).ok());
  test::damage_record(StateDir(dir / "run"), 1);
  const std::string spec = std::string(SWAX_SOURCE_DIR) + "/jobs/micro.toml";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"status", "--state", "run"}, {"run", spec, "--state", "run"}}) {
    const Finished finished = run_swax(dir.path(), words);
    EXPECT_EQ(finished.exit_code, 4) << finished.err;
    EXPECT_EQ(finished.out, "");
    EXPECT_THAT(finished.err, HasSubstr("job micro: record 1 cannot be read"));
  }
}

TEST(Status, WhatIsNoRunIsExitCode3AndDamage4) {
  const ScratchDir dir;
  ASSERT_TRUE(make_dirs(dir / "empty").ok());
  ASSERT_TRUE(make_dirs(dir / "garbage/coordinator/kv").ok());
  ASSERT_TRUE(write_atomic(dir / "garbage/coordinator/kv/CURRENT", "MANIFEST-000001\n").ok());
  ASSERT_TRUE(
      write_atomic(dir / "garbage/coordinator/kv/MANIFEST-000001", std::string(512, 'x')).ok());
  ASSERT_TRUE(make_dirs(dir / "other/coordinator").ok());
  ASSERT_TRUE(open_rocks_kv(dir / "other/coordinator/kv", KvMode::kCreate).ok());  // without a run
  for (const char* folder : {"missing", "empty", "garbage", "other"}) {
    for (const char* verb : {"status", "events"}) {
      const Finished finished = run_swax(dir.path(), {verb, "--state", folder});
      EXPECT_EQ(finished.exit_code, std::string(folder) == "garbage" ? 4 : 3)
          << verb << " " << folder << ": " << finished.err;
      EXPECT_EQ(finished.out, "");
      EXPECT_THAT(finished.err, HasSubstr(folder));
    }
  }
}

TEST(Events, AreListedOldestFirst) {
  const ScratchDir dir;
  ASSERT_TRUE(test::make_state(dir / "run", {}).ok());
  const Finished text = run_swax(dir.path(), {"events", "--state", "run"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("2023-11-14T22:13:20.000Z  attempt_ended"));
  EXPECT_THAT(text.out, HasSubstr("rank 1 was killed by signal 9"));
  const Finished json = run_swax(dir.path(), {"events", "--state", "run", "-o", "json"});
  EXPECT_THAT(json.out, HasSubstr("\"kind\": \"attempt_ended\""));
}

TEST(Checkpoints, AreListedNewestFirstAndVerified) {
  const ScratchDir dir;
  ASSERT_TRUE(test::make_state(dir / "run", {}).ok());
  const Finished list = run_swax(dir.path(), {"checkpoints", "list", "--state", "run"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_LT(list.out.find("40"), list.out.find("20"));
  EXPECT_THAT(list.out, HasSubstr("good"));
  EXPECT_LE(test::longest_line(list.out), 80U);
  const Finished all = run_swax(dir.path(), {"checkpoints", "verify", "--state", "run"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(test::line_count(all.out), 2);
  EXPECT_EQ(run_swax(dir.path(), {"checkpoints", "verify", "20", "--state", "run"}).exit_code, 0);
  EXPECT_EQ(run_swax(dir.path(), {"checkpoints", "verify", "21", "--state", "run"}).exit_code, 3);
  EXPECT_EQ(run_swax(dir.path(), {"checkpoints", "verify", "x", "--state", "run"}).exit_code, 2);
}

TEST(Checkpoints, ADamagedOneIsShown) {
  const ScratchDir dir;
  ASSERT_TRUE(test::make_state(dir / "run", {}).ok());
  const std::string folder = StateDir(dir / "run").checkpoints_folder("micro");
  damage_largest_file(folder + "/step-000000040.a1");
  const Finished verify = run_swax(dir.path(), {"checkpoints", "verify", "--state", "run"});
  EXPECT_EQ(verify.exit_code, 4) << verify.out;
  EXPECT_THAT(verify.out, HasSubstr("step-000000040.a1: damaged"));
  EXPECT_THAT(verify.out, HasSubstr("step-000000020.a1: good"));
  // What COMMITTED itself shows is seen without reading the tensors.
  ASSERT_TRUE(write_atomic(folder + "/step-000000040.a1/COMMITTED", "rubbish").ok());
  const Finished list = run_swax(dir.path(), {"checkpoints", "list", "--state", "run"});
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_THAT(list.out, HasSubstr("step-000000040.a1: "));
  const Finished json =
      run_swax(dir.path(), {"checkpoints", "list", "--state", "run", "-o", "json"});
  EXPECT_THAT(json.out, Not(HasSubstr("\"problem\": \"\",\n    \"committed_ms\": 0")));
  const Finished status = run_swax(dir.path(), {"status", "--state", "run"});
  EXPECT_THAT(status.out, HasSubstr("the checkpoint of step 20"));
}

// The same records and checkpoints where a coordinator has them.
void make_service(const std::string& run, const std::string& service, const std::string& store) {
  ASSERT_TRUE(test::make_state(run, {}).ok());
  ASSERT_TRUE(make_dirs(service).ok());
  std::filesystem::rename(run + "/coordinator/kv", service + "/kv");
  std::filesystem::rename(run + "/store", store);
}

TEST(Checkpoints, OfAServiceAreFoundInTheStateOfItsCoordinator) {
  const ScratchDir dir;
  make_service(dir / "run", dir / "service", dir / "service/store");
  const Finished all = run_swax(dir.path(), {"checkpoints", "verify", "--state", "service"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(test::line_count(all.out), 2);
  const Finished list = run_swax(dir.path(), {"checkpoints", "list", "--state", "service"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr("good"));
  const Finished other =
      run_swax(dir.path(), {"checkpoints", "verify", "--state", "service", "--job", "nobody"});
  EXPECT_EQ(other.exit_code, 3) << other.err;
  EXPECT_THAT(other.err, HasSubstr("no job nobody"));
  const Finished status = run_swax(dir.path(), {"status", "--state", "service"});
  EXPECT_EQ(status.exit_code, 3);
  EXPECT_THAT(status.err, HasSubstr("the state of a coordinator"));
}

TEST(Checkpoints, OfAServiceWithSeveralJobsAndAStoreOfItsOwn) {
  const ScratchDir dir;
  make_service(dir / "run", dir / "service", dir / "shared");
  pb::JobRecord record;
  record.set_job("second");
  record.set_number(1);
  *record.mutable_created()->mutable_spec() = test::state_spec({});
  record.mutable_created()->mutable_spec()->mutable_job()->set_name("second");
  {
    const auto db = open_rocks_kv(dir / "service/kv", KvMode::kOpen);
    ASSERT_TRUE(db.ok());
    const std::string key = std::string("rec/second/") + std::string(7, '\0') + '\1';
    ASSERT_TRUE((*db)
                    ->write({{.key = "job/second", .value = ""},
                             {.key = key, .value = record.SerializeAsString()}},
                            true)
                    .ok());
  }
  std::vector<std::string> words = {"checkpoints", "verify", "--state", "service"};
  const Finished which = run_swax(dir.path(), words);
  EXPECT_EQ(which.exit_code, 2) << which.err;
  EXPECT_THAT(which.err, HasSubstr("2 jobs: which one? give --job NAME"));
  words.insert(words.end(), {"--job", "micro"});
  EXPECT_EQ(run_swax(dir.path(), words).exit_code, 3) << "nothing in STATE/store";
  words.insert(words.end(), {"--store", "shared"});
  const Finished found = run_swax(dir.path(), words);
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_EQ(test::line_count(found.out), 2);
}

TEST(Generate, RefusesARunThatIsNotThere) {
  const ScratchDir dir;
  const Finished finished = run_swax(dir.path(), {"generate", "--state", "nowhere"});
  EXPECT_EQ(finished.exit_code, 3) << finished.err;
}

}  // namespace
}  // namespace swax
