// Damage and full disks: one bad record holds one job, a second coordinator or a full disk is said,
// and nothing is told that is not stored. Method: the store is changed while the server is down;
// the core thread runs on a Kv that fails or waits when told.
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <thread>
#include <tuple>

#include "coordinator/core_loop.h"
#include "proto/base/ids.h"
#include "storage/mem_kv.h"
#include "storage/rocks_kv.h"
#include "tests/coordinator/server_peers.h"
#include "tests/proto/scratch_dir.h"
#include "tests/storage/storage_files.h"

namespace swax {
namespace {

using test::open_server;
using test::request_id;
using test::submit_request;
using test::TestClient;
using test::TestWorker;

std::string record_key(const std::string& job, uint64_t number) {
  std::string key = "rec/" + job + "/" + std::string(8, '\0');
  key.back() = static_cast<char>(number);
  return key;
}

// Three jobs with two records each; the middle one is damaged by `write`.
void expect_one_job_held(const KvWrite& write, const std::string& why) {
  SCOPED_TRACE(why);
  const ScratchDir dir;
  {
    const auto server = open_server(dir.path());
    TestClient client(server->address());
    for (const char* job : {"job-a", "job-b", "job-c"}) {
      ASSERT_EQ(client.submit(job).code(), 0);
      pb::Request cancel;
      cancel.mutable_cancel()->set_job(job);
      ASSERT_EQ(client.ask(cancel).code(), 0);
    }
  }
  {
    const auto kv = open_rocks_kv(dir / "kv", KvMode::kOpen);
    ASSERT_TRUE(kv.ok());
    ASSERT_TRUE((*kv)->write({write}, true).ok());
  }
  const auto server = open_server(dir.path());
  ASSERT_NE(server, nullptr);
  TestClient client(server->address());
  const pb::JobStatus held = client.status("job-b");
  EXPECT_EQ(held.state(), "HELD");
  EXPECT_NE(held.message().find(why), std::string::npos) << held.message();
  EXPECT_EQ(client.status("job-a").state(), "CANCELLED");
  EXPECT_EQ(client.status("job-c").state(), "CANCELLED");
  EXPECT_EQ(client.submit("job-d").code(), 0);
  EXPECT_EQ(client.submit("job-b").code(), 4);
}

TEST(ServerDamage, HoldsOneJobForOneBadRecord) {
  expect_one_job_held({.key = record_key("job-b", 2), .value = "\xff\xff"},
                      "record 2 cannot be read");
  expect_one_job_held({.key = record_key("job-b", 2), .value = std::nullopt},
                      "record 2 is missing");
  expect_one_job_held({.key = record_key("job-b", 1), .value = std::nullopt},
                      "record 1 is missing");
  pb::JobRecord other;
  other.set_number(2);
  other.set_job("job-a");
  expect_one_job_held({.key = record_key("job-b", 2), .value = other.SerializeAsString()},
                      "record 2 belongs elsewhere");
  other.set_job("job-b");
  expect_one_job_held({.key = record_key("job-b", 2), .value = other.SerializeAsString()},
                      "record 2: ");
}

TEST(ServerDamage, OneStateAndOneStoreHaveOneCoordinator) {
  const ScratchDir dir;
  const auto open = [](const std::string& state, const std::string& store) {
    return coord::Server::open(
        {.state = state, .listen = "tcp://127.0.0.1:0", .store = store, .timing = {}});
  };
  {
    const auto server = open(dir / "a", dir / "store");
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    for (const auto& [state, store, says] : {std::tuple{"a", "other", "give another --state"},
                                             {"b", "store", "give another --store"}}) {
      const auto second = open(dir / state, dir / store);
      EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
      EXPECT_NE(second.status().message().find(says), std::string::npos)
          << second.status().message();
      EXPECT_NE(second.status().message().find("process " + std::to_string(::getpid())),
                std::string::npos)
          << second.status().message();
    }
  }
  EXPECT_TRUE(open(dir / "b", dir / "store").ok()) << "the first has gone";
}

TEST(ServerDamage, RefusesNewJobsOnAFullDiskAndGoesOnLater) {
  const ScratchDir dir;
  const test::TinyDisk disk(dir.path(), "size=32m");
  if (!disk.mounted()) GTEST_SKIP() << "no right to mount a small disk";
  const auto server = open_server(dir.path());
  ASSERT_NE(server, nullptr);
  TestClient client(server->address());
  TestWorker worker(server->address(), "node-a", 1);
  ASSERT_TRUE(worker.join());
  ASSERT_EQ(client.submit("job-a").code(), 0);
  pb::StartAttempt start;
  ASSERT_TRUE(worker.wait_start("job-a", &start));
  pb::RunningAttempt running;
  running.set_job("job-a");
  running.set_epoch(1);
  worker.running = {running};
  const auto beat_answered = [&] {
    return std::any_of(worker.mail.begin(), worker.mail.end(),
                       [](const pb::Envelope& e) { return e.has_heartbeat_reply(); });
  };
  // The second answer is to a beat that named the attempt: no START follows it.
  for (int i = 0; i < 2; ++i) {
    worker.mail.clear();
    ASSERT_TRUE(worker.wait(beat_answered));
  }

  test::fill_disk(dir.path(), "filler");
  std::this_thread::sleep_for(
      std::chrono::milliseconds(200));  // the space is looked at 10 x a second
  const pb::Reply refused = client.submit("job-b");
  EXPECT_NE(refused.code(), 0);
  EXPECT_NE(refused.error().find("full"), std::string::npos) << refused.error();
  EXPECT_EQ(client.status("job-a").epoch(), 1U);

  // A record that cannot be written: its sender gets no acknowledgement, and it is not shown.
  pb::AttemptReport report;
  report.set_job("job-a");
  report.set_epoch(1);
  report.set_index(1);
  report.mutable_step()->set_step(1);
  report.mutable_step()->set_epoch(1);
  pb::Envelope envelope;
  *envelope.mutable_attempt_reports()->add_reports() = report;
  for (int i = 0; i < 600; ++i) {  // notes of 16 KiB each: more than the log file has left
    pb::AttemptReport& note = *envelope.mutable_attempt_reports()->add_reports();
    note.set_index(static_cast<uint64_t>(i) + 2);
    note.set_job("job-a");
    note.set_epoch(1);
    note.mutable_event()->set_kind("noise");
    note.mutable_event()->set_text(std::string(300, 'x'));
  }
  worker.send(envelope);
  pb::Request status;
  status.mutable_status()->set_job("job-a");
  EXPECT_TRUE(worker.wait([&] {
    return client.ask(status, 500).error().find("cannot be written") != std::string::npos;
  }));
  // Heartbeats are answered although nothing else goes on.
  worker.mail.clear();
  EXPECT_TRUE(worker.wait([&] { return !worker.mail.empty(); }));

  ASSERT_TRUE(remove_tree(dir / "filler").ok());
  EXPECT_TRUE(worker.wait([&] { return client.ask(status, 500).jobs_size() == 1; }));
  EXPECT_EQ(client.status("job-a").state(), "RUNNING");
  EXPECT_EQ(client.submit("job-b").code(), 0);
}

// A Kv whose writes can be made to fail or to take long.
class MoodyKv final : public Kv {
 public:
  struct Mood {
    std::atomic<bool> fails = false;
    std::atomic<int> wait_ms = 0;
  };
  explicit MoodyKv(Mood& mood) : mood_(mood) {}
  Result<std::string> get(std::string_view key) override { return kv_.get(key); }
  Status write(const std::vector<KvWrite>& batch, bool sync) override {
    if (mood_.fails) return resource_exhausted("no space left");
    if (sync) std::this_thread::sleep_for(std::chrono::milliseconds(mood_.wait_ms));
    return kv_.write(batch, sync);
  }
  Status scan(std::string_view prefix, std::string_view from,
              const std::function<bool(std::string_view, std::string_view)>& visit) override {
    return kv_.scan(prefix, from, visit);
  }

 private:
  Mood& mood_;
  MemKv kv_;
};

// The threads of a server on a moody store.
class MoodyServer {
 public:
  explicit MoodyServer(const std::string& store) {
    std::unique_ptr<coord::Journal> journal =
        coord::Journal::open(std::make_unique<MoodyKv>(mood)).value();
    coord::State state;
    SWAX_CHECK(journal->recover(&state.durable).ok());
    coord::Config config;
    config.cluster_id = journal->cluster_id();
    config.store = store;
    core_ = std::make_unique<coord::CoreLoop>(
        coord::CoreLoop::Options{.config = config, .state_folder = store}, std::move(state),
        std::move(journal), inbox_, outgoing_);
    socket_ = std::make_unique<coord::SocketLoop>(
        coord::SocketOptions{
            .listen = "tcp://127.0.0.1:0", .insecure = false, .cluster_id = config.cluster_id},
        inbox_, outgoing_, [this] { return core_->busy_ms(); });
    files_ = std::make_unique<coord::CheckpointFiles>(store, [](coord::EventBody) {});
    core_->attach(*socket_, *files_);
    address = socket_->start().value();
    thread_ = std::thread([this] { core_->run(); });
  }
  ~MoodyServer() {
    inbox_.stop();
    outgoing_.stop();
    thread_.join();
  }
  MoodyKv::Mood mood;
  std::string address;

 private:
  coord::Inbox inbox_;
  coord::Outgoing outgoing_;
  std::unique_ptr<coord::CoreLoop> core_;
  std::unique_ptr<coord::SocketLoop> socket_;
  std::unique_ptr<coord::CheckpointFiles> files_;
  std::thread thread_;
};

TEST(ServerDamage, TellsNothingBeforeItIsStored) {
  const ScratchDir dir;
  MoodyServer server(dir.path());
  TestClient client(server.address);
  ASSERT_EQ(client.submit("job-a").code(), 0);
  server.mood.fails = true;
  EXPECT_EQ(client.ask(submit_request("job-b"), request_id(9), 1500).code(),
            -1);  // no answer at all
  pb::Request list;
  list.mutable_list()->set_all(true);
  pb::Reply refused;  // once the batch with job-b is held up
  for (int tries = 0; refused.code() != 1 && tries < 20; ++tries) refused = client.ask(list, 500);
  EXPECT_EQ(refused.code(), 1);
  EXPECT_EQ(refused.jobs_size(), 0);
  EXPECT_NE(refused.error().find("no space left"), std::string::npos) << refused.error();
  EXPECT_EQ(client.service().cluster_id().size(), 32U);
  server.mood.fails = false;
  pb::Reply reply;
  for (int tries = 0; reply.jobs_size() == 0 && tries < 50; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    reply = client.ask(submit_request("job-b"), request_id(9));
  }
  // Its own answer or that of the repetition: it is one job.
  EXPECT_EQ(reply.code(), 0) << reply.error();
  EXPECT_EQ(client.ask(list).jobs_size(), 2);
}

TEST(ServerDamage, AnswersHeartbeatsWhileTheDiskIsSlow) {
  const ScratchDir dir;
  MoodyServer server(dir.path());
  TestClient client(server.address);
  TestWorker worker(server.address, "node-a", 1);
  ASSERT_TRUE(worker.join());
  worker.beat();
  ASSERT_TRUE(worker.wait([&] {
    return std::any_of(worker.mail.begin(), worker.mail.end(),
                       [](const pb::Envelope& e) { return e.has_heartbeat_reply(); });
  }));
  server.mood.wait_ms = 6000;  // longer than a worker may be silent
  std::atomic<bool> stored = false;
  std::thread submitter([&] {
    EXPECT_EQ(client.submit("job-a").code(), 0);
    stored = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  int beats = 0, answered = 0;
  while (!stored) {
    ++beats;
    worker.beat();
    worker.mail.clear();
    const int64_t sent = test::now_ms();
    worker.wait([&] { return !worker.mail.empty(); }, 1000);
    if (!worker.mail.empty() && test::now_ms() - sent < 500) ++answered;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_GE(answered, 5);
  EXPECT_GE(2 * answered, beats) << answered << " of " << beats;
  submitter.join();
  server.mood.wait_ms = 0;
  pb::Request nodes;
  nodes.mutable_nodes();
  const pb::Reply reply = client.ask(nodes);
  ASSERT_EQ(reply.nodes_size(), 1);
  EXPECT_NE(reply.nodes(0).state(), "LOST");
}

// A worker that was just welcomed or sent to is answered too, by a word that changes nothing there.
TEST(ServerDamage, AnswersAWorkerThatWasJustSentSomething) {
  const ScratchDir dir;
  MoodyServer server(dir.path());
  TestClient client(server.address);
  TestWorker worker(server.address, "node-a", 1);
  ASSERT_TRUE(worker.join());
  ASSERT_EQ(client.submit("job-a").code(), 0);
  pb::StartAttempt start;
  ASSERT_TRUE(worker.wait_start("job-a", &start));
  server.mood.fails = true;  // since START the core has answered no beat
  EXPECT_EQ(client.ask(submit_request("job-b"), request_id(9), 1000).code(), -1);
  // What the core said before may still be on its way.
  const auto only_acknowledged = [&] {
    worker.mail.clear();
    return worker.wait([&] { return !worker.mail.empty(); }) &&
           std::all_of(worker.mail.begin(), worker.mail.end(),
                       [](const pb::Envelope& e) { return e.has_reports_acknowledged(); });
  };
  bool found = false;
  for (int tries = 0; tries < 10 && !found; ++tries) found = only_acknowledged();
  ASSERT_TRUE(found);
  for (const pb::Envelope& word : worker.mail) {
    EXPECT_TRUE(word.has_reports_acknowledged());
    EXPECT_EQ(word.reports_acknowledged().index(), 0U);
    EXPECT_EQ(word.reports_acknowledged().ended_size(), 0);
    EXPECT_EQ(word.node(), "node-a");
    EXPECT_EQ(word.coordinator_epoch(), 1U);
  }
}

}  // namespace
}  // namespace swax
