// A flood of hostile frames: memory stays bounded, a submit is answered in time, refusals are
// counted by reason, and a peer that claims a worker's name gets none of its mail.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>

#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/frame.h"
#include "tests/coordinator/server_peers.h"
#include "tests/proto/scratch_dir.h"
#include "tests/wire/hostile_frames.h"
#include "tests/wire/raw_peer.h"

// Under the address sanitizer freed memory would count for long: keep little of it.
extern "C" const char* __asan_default_options();
const char* __asan_default_options() { return "quarantine_size_mb=8"; }

namespace swax {
namespace {

using test::now_ms;
using test::open_server;
using test::TestClient;
using test::TestWorker;

int64_t resident_bytes() {
  const std::string statm = read_file("/proc/self/statm", 4096).value();
  return std::stoll(statm.substr(statm.find(' '))) * ::sysconf(_SC_PAGESIZE);
}

void flood(const std::string& address, int peers, int frames, uint64_t seed) {
  std::vector<std::unique_ptr<RawPeer>> open;
  for (int i = 0; i < peers; ++i) open.push_back(std::make_unique<RawPeer>(address));
  HostileFrames hostile(seed);
  for (int i = 0; i < frames; ++i) {
    std::unique_ptr<RawPeer>& peer = open[static_cast<size_t>(i % peers)];
    if (!peer->send(hostile.next())) peer = std::make_unique<RawPeer>(address);
  }
}

// How late threads of this machine get their turn, at most, while it lives: others may want it too.
class Lateness {
 public:
  Lateness() : thread_([this] { look(); }) {}
  ~Lateness() { end_ms(); }
  int64_t end_ms() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
    return worst_ms_;
  }

 private:
  void look() {
    constexpr int64_t kSleepMs = 5;
    while (!over_) {
      const int64_t begin = now_ms();
      std::this_thread::sleep_for(std::chrono::milliseconds(kSleepMs));
      worst_ms_ = std::max(worst_ms_, now_ms() - begin - kSleepMs);
    }
  }
  std::atomic<bool> over_ = false;
  int64_t worst_ms_ = 0;
  std::thread thread_;
};

class ServerFlood : public ::testing::TestWithParam<int> {};

TEST_P(ServerFlood, LeavesMemoryAndClientsAlone) {
  const ScratchDir dir;
  const auto server = open_server(dir.path());
  TestClient client(server->address());
  ASSERT_EQ(client.submit("job-before").code(), 0);
  const int64_t before = resident_bytes();
  Lateness lateness;
  std::atomic<bool> over = false;
  std::thread attacker([&] {
    flood(server->address(), GetParam(), 10000, static_cast<uint64_t>(GetParam()));
    over = true;
  });
  int submits = 0;
  int64_t slowest_ms = 0, largest = 0;
  do {
    const int64_t begin = now_ms();
    EXPECT_EQ(client.submit("job-" + std::to_string(submits++)).code(), 0);
    slowest_ms = std::max(slowest_ms, now_ms() - begin);
    largest = std::max(largest, resident_bytes() - before);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (!over);
  attacker.join();
  const int64_t late_ms = lateness.end_ms();
  largest = std::max(largest, resident_bytes() - before);
  std::printf(
      "%d peers, 10000 frames: %d submits, slowest %lld ms (threads here wait up to %lld ms), "
      "memory "
      "+%lld MiB\n",
      GetParam(), submits, static_cast<long long>(slowest_ms), static_cast<long long>(late_ms),
      static_cast<long long>(largest / kMiB));
  if (!kUnderThreadSanitizer) {
    EXPECT_LT(slowest_ms, 1000);
    EXPECT_LT(largest, 64 * kMiB);
  }
  const char* const reasons[] = {"short", "magic", "version", "length", "hash", "parse"};
  pb::ServiceStatus service;
  const auto all_counted = [&] {
    service = client.service();
    return std::all_of(std::begin(reasons), std::end(reasons),
                       [&](const char* reason) { return service.refused().contains(reason); });
  };
  for (const int64_t end = now_ms() + 60000; !all_counted() && now_ms() < end;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  for (const char* reason : reasons)
    EXPECT_TRUE(service.refused().contains(reason)) << reason << "; " << service.ShortDebugString();
}

INSTANTIATE_TEST_SUITE_P(Peers, ServerFlood, ::testing::Values(1, 50));

TEST(ServerMail, GoesToTheWorkerThatRegistered) {
  const ScratchDir dir;
  const auto server = open_server(dir.path());
  TestClient client(server->address());
  TestWorker worker(server->address(), "node-a", 1);
  ASSERT_TRUE(worker.join());
  // The liar knows everything but the worker's connection and state id.
  RawPeer liar(server->address());
  pb::Envelope hello;
  hello.set_node("node-a");
  hello.set_incarnation(1000);
  hello.set_sequence(1000);
  hello.mutable_hello()->set_state_id("another");
  hello.mutable_hello()->set_slots(64);
  liar.send(encode_frame(hello).value());
  pb::Envelope beat = hello;
  beat.set_incarnation(1);
  beat.mutable_heartbeat();
  liar.send(encode_frame(beat).value());
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ASSERT_EQ(client.submit("job-secret").code(), 0);
  pb::StartAttempt start;
  EXPECT_TRUE(worker.wait_start("job-secret", &start));
  EXPECT_EQ(liar.receive(300).find("job-secret"), std::string::npos);
  pb::Request nodes;
  nodes.mutable_nodes();
  const pb::Reply reply = client.ask(nodes);
  ASSERT_EQ(reply.nodes_size(), 1);
  EXPECT_EQ(reply.nodes(0).slots(), 1U);
}

// Frames of another coordinator's cluster are not looked at, nor what no coordinator should get.
TEST(ServerMail, ThatBelongsElsewhereIsRefused) {
  const ScratchDir dir;
  const auto server = open_server(dir.path());
  TestClient client(server->address());
  RawPeer stray(server->address());
  pb::Envelope beat;
  beat.set_cluster_id("00000000000000000000000000000000");
  beat.set_node("node-a");
  beat.mutable_heartbeat();
  stray.send(encode_frame(beat).value());
  pb::Envelope welcome;
  welcome.set_node("node-a");
  welcome.mutable_welcome();
  stray.send(encode_frame(welcome).value());
  const int64_t end = now_ms() + 60000;
  while (!client.service().refused().contains("state") && now_ms() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const pb::ServiceStatus service = client.service();
  ASSERT_TRUE(service.refused().contains("cluster"));
  ASSERT_TRUE(service.refused().contains("state"));
  EXPECT_EQ(service.refused().at("cluster"), 1U);
  EXPECT_EQ(service.refused().at("state"), 1U);
}

}  // namespace
}  // namespace swax
