// An attempt through the real server: placed, started, steps, a checkpoint, the end; the same after
// a restart of the coordinator in the middle. Method: a worker that runs nothing but reports what a
// node agent would, and writes real shards.
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>

#include "coordinator/checkpoint_files.h"
#include "jobs/state_digest.h"
#include "proto/base/text.h"
#include "storage/checkpoint_store.h"
#include "tests/coordinator/server_peers.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

using test::durable_report;
using test::open_server;
using test::report_of;
using test::running;
using test::step_report;
using test::TestClient;
using test::TestWorker;

bool has_event(TestClient& client, const std::string& job, const std::string& kind) {
  for (const pb::EventRecord& event : client.events(job))
    if (event.kind() == kind) return true;
  return false;
}

class ServerAttempt : public ::testing::Test {
 protected:
  ServerAttempt() : server_(open_server(dir_.path())) {}
  std::string store() const { return dir_ / "store"; }
  void restart() {
    server_.reset();
    server_ = open_server(dir_.path());
  }
  const ScratchDir dir_;
  std::unique_ptr<coord::Server> server_;
};

TEST_F(ServerAttempt, RunsToItsEndThroughARestart) {
  auto client = std::make_unique<TestClient>(server_->address());
  auto worker = std::make_unique<TestWorker>(server_->address(), "node-a", 2);
  ASSERT_TRUE(worker->join());
  ASSERT_EQ(client->submit("job-a", 2).code(), 0);
  pb::StartAttempt start;
  ASSERT_TRUE(worker->wait_start("job-a", &start));
  EXPECT_EQ(start.epoch(), 1U);
  EXPECT_EQ(start.lead(), "node-a");
  EXPECT_EQ(start.ranks_size(), 2);
  worker->running = {running("job-a", 1)};
  ASSERT_TRUE(worker->report({step_report("job-a", 1, 1, 2.5)}));
  EXPECT_EQ(client->status("job-a").state(), "RUNNING");
  EXPECT_EQ(client->status("job-a").step(), 1U);

  ASSERT_TRUE(worker->report({durable_report(store(), "job-a", 1, 1, 0)}));
  EXPECT_EQ(client->status("job-a").checkpoint_step(), 0U);  // one rank is no checkpoint
  ASSERT_TRUE(worker->report({durable_report(store(), "job-a", 1, 1, 1)}));
  ASSERT_TRUE(worker->wait([&] { return client->status("job-a").checkpoint_step() == 1; }));

  restart();
  client = std::make_unique<TestClient>(server_->address());
  const uint64_t next_report = worker->next_report;
  worker = std::make_unique<TestWorker>(server_->address(), "node-a", 2);
  worker->next_report = next_report;
  ASSERT_TRUE(worker->join({running("job-a", 1)}));
  ASSERT_TRUE(worker->report({step_report("job-a", 1, 2, 2.25)}));
  EXPECT_EQ(client->status("job-a").epoch(), 1U);  // found again, not started again
  ASSERT_TRUE(worker->report(
      {durable_report(store(), "job-a", 1, 2, 0), durable_report(store(), "job-a", 1, 2, 1)}));
  ASSERT_TRUE(worker->wait([&] { return client->status("job-a").checkpoint_step() == 2; }));
  pb::AttemptReport done = report_of("job-a", 1);
  done.mutable_done()->set_outcome("done");
  done.mutable_done()->set_step(2);
  done.mutable_done()->set_digest("0123");
  pb::AttemptReport ended = report_of("job-a", 1);
  ended.mutable_ended()->set_result("done");
  ended.mutable_ended()->set_step(2);
  worker->running = {};
  ASSERT_TRUE(worker->report({done, ended}));
  EXPECT_EQ(client->status("job-a").state(), "SUCCEEDED");
  EXPECT_EQ(client->status("job-a").digest(), "0123");

  pb::Request steps;
  steps.mutable_steps()->set_job("job-a");
  const pb::Reply reply = client->ask(steps);
  ASSERT_EQ(reply.steps_size(), 2);
  EXPECT_EQ(reply.steps(1).loss_bits(), std::bit_cast<uint64_t>(2.25));
}

TEST_F(ServerAttempt, FindsACommitThatNoRecordKnows) {
  {
    TestClient client(server_->address());
    TestWorker worker(server_->address(), "node-a", 2);
    ASSERT_TRUE(worker.join());
    ASSERT_EQ(client.submit("job-a", 2).code(), 0);
    pb::StartAttempt start;
    ASSERT_TRUE(worker.wait_start("job-a", &start));
  }
  coord::WriteCommitted write{.job = "job-a", .step = 7, .epoch = 1, .ranks = {}};
  for (const uint32_t rank : {0, 1})
    write.ranks.push_back(durable_report(store(), "job-a", 1, 7, rank).durable());
  const Result<pb::CheckpointManifest> manifest = coord::build_manifest(write, 1);
  ASSERT_TRUE(manifest.ok()) << manifest.status().to_string();
  ASSERT_TRUE(commit_checkpoint(store() + "/jobs/job-a/ckpt", *manifest).ok());
  restart();
  TestClient client(server_->address());
  for (int i = 0; i < 1200 && client.status("job-a").checkpoint_step() != 7; ++i) ::usleep(50'000);
  EXPECT_EQ(client.status("job-a").checkpoint_step(), 7U);
}

TEST_F(ServerAttempt, CommitsWhatTheRanksWrote) {
  TestClient client(server_->address());
  TestWorker worker(server_->address(), "node-a", 2);
  ASSERT_TRUE(worker.join());
  ASSERT_EQ(client.submit("job-a", 2).code(), 0);
  pb::StartAttempt start;
  ASSERT_TRUE(worker.wait_start("job-a", &start));
  worker.running = {running("job-a", 1)};
  // Five checkpoints, of which the spec keeps fewer; all ranks in one message, in any order.
  const uint32_t keep = start.spec().checkpoint().keep_latest_k();
  ASSERT_LT(keep, 5U);
  for (uint64_t step = 10; step <= 50; step += 10) {
    ASSERT_TRUE(worker.report({durable_report(store(), "job-a", 1, step, 1),
                               durable_report(store(), "job-a", 1, step, 0)}));
    ASSERT_TRUE(worker.wait([&] { return client.status("job-a").checkpoint_step() == step; }));
  }
  const std::string root = store() + "/jobs/job-a/ckpt";
  const auto committed = [&] {
    size_t count = 0;
    const std::vector<CheckpointEntry> entries = list_checkpoints(root).value();
    for (const CheckpointEntry& entry : entries)
      if (entry.committed && entry.problem.empty()) ++count;
    return count;
  };
  ASSERT_TRUE(worker.wait([&] { return committed() == keep; }));
  const CheckpointName newest{.step = 50, .epoch = 1};
  EXPECT_TRUE(verify_checkpoint(root, newest, {}).ok());  // the tensors' digests among it
  pb::Request request;
  request.mutable_checkpoints()->set_job("job-a");
  const pb::Reply reply = client.ask(request);
  ASSERT_EQ(reply.checkpoints_size(), 5);
  EXPECT_EQ(reply.checkpoints(0).state(), "RETIRED");
  EXPECT_EQ(reply.checkpoints(4).state(), "COMMITTED");
  const std::vector<CheckpointEntry> entries = list_checkpoints(root).value();
  EXPECT_EQ(reply.checkpoints(4).digest(), entries[0].manifest.run_digest());
  EXPECT_EQ(reply.checkpoints(4).world_size(), 2U);
  EXPECT_EQ(reply.checkpoints(4).bytes(), test::kTensorElements * sizeof(float));
}

// A second attempt that computes a step again must find the same bits.
TEST_F(ServerAttempt, NotesAStepThatDiverged) {
  TestClient client(server_->address());
  TestWorker worker(server_->address(), "node-a", 2);
  ASSERT_TRUE(worker.join());
  ASSERT_EQ(client.submit("job-a").code(), 0);
  pb::StartAttempt start;
  ASSERT_TRUE(worker.wait_start("job-a", &start));
  worker.running = {running("job-a", 1)};
  ASSERT_TRUE(worker.report({step_report("job-a", 1, 1, 2.5), step_report("job-a", 1, 2, 2.25)}));
  pb::AttemptReport ended = report_of("job-a", 1);
  ended.mutable_ended()->set_result("signal");
  ended.mutable_ended()->set_signal(9);
  worker.running = {};
  worker.mail.clear();
  ASSERT_TRUE(worker.report({ended}));
  ASSERT_TRUE(worker.wait_start("job-a", &start));
  EXPECT_EQ(start.epoch(), 2U);
  worker.running = {running("job-a", 2)};
  ASSERT_TRUE(worker.report({step_report("job-a", 2, 1, 2.5)}));
  EXPECT_FALSE(has_event(client, "job-a", "diverged"));
  ASSERT_TRUE(worker.report({step_report("job-a", 2, 2, 2.26)}));
  EXPECT_TRUE(worker.wait([&] { return has_event(client, "job-a", "diverged"); }));
}

TEST_F(ServerAttempt, RefusesAWorkerThatDoesNotSeeTheStore) {
  TestWorker worker(server_->address(), "node-a", 2);
  ASSERT_TRUE(remove_tree(store()).ok());
  pb::Envelope hello;
  hello.mutable_hello()->set_state_id("s");
  hello.mutable_hello()->set_store_nonce("00000000000000000000000000000000");
  worker.send(hello);
  ASSERT_TRUE(worker.wait([&] {
    for (const pb::Envelope& envelope : worker.mail)
      if (envelope.has_welcome() && !envelope.welcome().accepted()) return true;
    return false;
  }));
}

TEST(BuildManifest, SumsTheDigestsOfAllRanks) {
  const ScratchDir dir;
  coord::WriteCommitted command{.job = "job-a", .step = 7, .epoch = 3, .ranks = {}};
  for (uint32_t rank = 0; rank < 2; ++rank)
    command.ranks.push_back(durable_report(dir.path(), "job-a", 3, 7, rank).durable());
  command.ranks[0].set_digest_sums(0, ~uint64_t{0});  // the sums wrap around
  command.ranks[1].set_digest_sums(0, 3);
  const auto manifest = coord::build_manifest(command, 1234);
  ASSERT_TRUE(manifest.ok()) << manifest.status().to_string();
  EXPECT_EQ(manifest->tensors(0).digest0(), 2U);
  EXPECT_EQ(manifest->committed_ms(), 1234);
  EXPECT_EQ(manifest->ranks_size(), 2);
  // The bytes that are hashed, written out.
  std::string bytes("model/w\0f32\0", 12);
  const auto append = [&](uint64_t value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const uint64_t value :
       {uint64_t{2}, uint64_t{3}, uint64_t{2},
        command.ranks[0].digest_sums(1) + command.ranks[1].digest_sums(1), uint64_t{7}}) {
    append(value);
  }
  EXPECT_EQ(manifest->run_digest(), xxh3_128(bytes).hex());
}

TEST(BuildManifest, RefusesReportsThatDoNotBelongTogether) {
  const ScratchDir dir;
  coord::WriteCommitted good{.job = "job-a", .step = 7, .epoch = 3, .ranks = {}};
  for (uint32_t rank = 0; rank < 2; ++rank)
    good.ranks.push_back(durable_report(dir.path(), "job-a", 3, 7, rank).durable());
  const auto refused = [](const coord::WriteCommitted& command) {
    return coord::build_manifest(command, 0).status().code() == Code::kInvalidArgument;
  };
  coord::WriteCommitted bad = good;
  bad.ranks.clear();
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.ranks[0].clear_base();
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.epoch = 4;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.ranks.pop_back();
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.ranks[1].set_step(8);
  EXPECT_TRUE(refused(bad));
  bad = good;
  std::swap(bad.ranks[0], bad.ranks[1]);
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.ranks[1].add_digest_sums(1);
  EXPECT_TRUE(refused(bad));
}

}  // namespace
}  // namespace swax
