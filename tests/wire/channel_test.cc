// Channels: messages arrive, bad frames are counted by reason, nobody takes another's mail, a peer
// that does not read costs a bounded amount of memory and nobody else anything, sockets end
// quickly. Method: both ends in one process; peers that lie are RawPeer.
#include "proto/wire/channel.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "proto/base/clock.h"
#include "proto/base/ids.h"
#include "tests/wire/channel_ends.h"
#include "tests/wire/hostile_frames.h"
#include "tests/wire/raw_peer.h"

namespace swax {
namespace {

int64_t resident_bytes() {
  const std::string statm = read_file("/proc/self/statm", 4096).value();
  return std::stoll(statm.substr(statm.find(' '))) * ::sysconf(_SC_PAGESIZE);
}

TEST(Channel, CarriesMessagesBothWays) {
  const auto server = make_server();
  const auto client = make_client(server->address());
  ASSERT_TRUE(client->send(message("a")));
  // Delivery needs the client's turn too: what waits for the connection is sent in poll.
  std::vector<Received> got;
  for (const int64_t end = now_ms() + 60000; got.empty() && now_ms() < end;) {
    client->poll(5, 1);
    got = server->poll(5, 8);
  }
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].envelope.node(), "a");
  ASSERT_TRUE(server->send(got[0].peer, answer()));
  const std::vector<pb::Envelope> back = client_poll(*client, *server, 1);
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(back[0].reply().error(), "x");
  EXPECT_EQ(client->trouble(), "");
  EXPECT_EQ(server->peers(), 1U);
}

TEST(Channel, PutsWorkersBeforeClientsAndKeepsTheBytesOfARequest) {
  const auto server = make_server();
  RawPeer peer(server->address());
  std::vector<pb::Envelope> all = sample_envelopes();
  std::reverse(all.begin(), all.end());  // clients' messages first
  std::vector<Received> got;
  // The order is that of one poll: again when some of them came too late for it.
  for (int64_t wait_ms = 200; got.size() != all.size() && wait_ms < 20000; wait_ms *= 2) {
    for (const pb::Envelope& envelope : all) ASSERT_TRUE(peer.send(encode_frame(envelope).value()));
    std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
    got = server->poll(1000, 64);
    const size_t late = all.size() - std::min(got.size(), all.size());
    ASSERT_EQ(poll_messages(*server, late).size(), late);
  }
  ASSERT_EQ(got.size(), all.size());
  const auto is_request = [](const Received& r) { return r.envelope.has_request(); };
  EXPECT_TRUE(std::is_partitioned(got.begin(), got.end(),
                                  [&](const Received& r) { return !is_request(r); }));
  for (const Received& r : got) {
    EXPECT_EQ(r.request_bytes,
              is_request(r) ? r.envelope.request().SerializeAsString() : std::string());
  }
}

TEST(Channel, BindsOnlyWhereItMay) {
  const auto code = [](const char* address, bool insecure) {
    const auto server = ServerChannel::bind(address, insecure);
    return server.ok() ? Code::kOk : server.status().code();
  };
  EXPECT_EQ(code("tcp://0.0.0.0:0", false), Code::kInvalidArgument);
  EXPECT_EQ(code("tcp://0.0.0.0:0", true), Code::kOk);
  EXPECT_EQ(code("tcp://127.0.0.9:0", false), Code::kOk);
  for (const char* bad : {"", "tcp://", "127.0.0.1:80", "tcp://localhost:0", "tcp://*:0",
                          "tcp://127.0.0.1", "tcp://127.0.0.1:65536", "tcp://127.0.0.1:-1",
                          "tcp://127.0.0.1:8x", "ipc:///tmp/x", "tcp://1.2.3:5", "tcp://[::1:0"}) {
    EXPECT_EQ(code(bad, true), Code::kInvalidArgument) << bad;
  }
  const auto server = make_server();
  EXPECT_EQ(code(server->address().c_str(), false), Code::kFailedPrecondition);
  EXPECT_EQ(ClientChannel::connect("tcp://localhost:1").status().code(), Code::kInvalidArgument);
}

TEST(Channel, WakesFromAnotherThread) {
  const auto server = make_server();
  const auto client = make_client(server->address());
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server->wake();
    client->wake();
  });
  const int64_t begin = now_ms();
  server->poll(20000, 1);
  client->poll(20000, 1);
  EXPECT_LT(now_ms() - begin, 10000);
  waker.join();
}

TEST(Channel, CountsRefusedFramesByReason) {
  const auto server = make_server();
  RawPeer peer(server->address());
  const std::string good = encode_frame(message("a")).value();
  std::string version = good;
  version[4] = 9;
  std::string hash = good;
  hash.back() = static_cast<char>(hash.back() ^ 1);
  std::string large = good;
  large[11] = 1;
  for (const std::string& bad : {std::string("x"), "Y" + good.substr(1), version, good + "z", hash,
                                 frame_of("\xff"), large}) {
    ASSERT_TRUE(peer.send(bad));
  }
  ASSERT_TRUE(peer.send_parts({good, good}));
  ASSERT_TRUE(peer.send_parts({"", good}));  // what a REQ socket sends
  ASSERT_TRUE(peer.send(good));
  RawPeer named(server->address(), "worker-a");
  ASSERT_TRUE(named.send(good));
  poll_until(*server, [&](size_t got) { return got > 0 && server->refused().contains("state"); });
  const std::map<std::string, uint64_t> want = {{"short", 1},  {"magic", 1},    {"version", 1},
                                                {"length", 3}, {"hash", 1},     {"parse", 1},
                                                {"state", 1},  {"too_large", 1}};
  EXPECT_EQ(server->refused(), want);
  EXPECT_EQ(server->peers(), 1U);
}

// A peer that takes the name of another, in the message or as its ZeroMQ identity, gets no mail of
// it: mail goes to a handle, a handle to one connection.
TEST(Channel, GivesNoMailToAPeerThatClaimsAName) {
  const auto server = make_server();
  RawPeer worker(server->address());
  worker.send(encode_frame(message("worker-a")).value());
  const std::vector<Received> first = poll_messages(*server, 1);
  ASSERT_EQ(first.size(), 1U);
  RawPeer liar(server->address());
  liar.send(encode_frame(message("worker-a")).value());
  const std::vector<Received> second = poll_messages(*server, 1);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_NE(first[0].peer, second[0].peer);
  ASSERT_TRUE(server->send(first[0].peer, answer(1000)));
  EXPECT_TRUE(reaches(worker, *server, std::string(1000, 'x')));
  EXPECT_EQ(liar.receive(500).find(std::string(1000, 'x')), std::string::npos);
}

TEST(Channel, NeverUsesAHandleAgain) {
  const auto server = make_server();
  RawPeer peer(server->address());
  peer.send(encode_frame(message("a")).value());
  const uint64_t handle = poll_messages(*server, 1).at(0).peer;
  server->forget(handle);
  EXPECT_FALSE(server->send(handle, answer()));
  peer.send(encode_frame(message("a")).value());
  EXPECT_GT(poll_messages(*server, 1).at(0).peer, handle);
}

TEST(Channel, NoticesAPeerThatIsGone) {
  const auto server = make_server();
  uint64_t handle = 0;
  {
    RawPeer peer(server->address());
    peer.send(encode_frame(message("a")).value());
    handle = poll_messages(*server, 1).at(0).peer;
  }
  bool sent = true;
  for (const int64_t end = now_ms() + 60000; sent && now_ms() < end;) {
    server->poll(10, 1);
    sent = server->send(handle, answer());
  }
  EXPECT_FALSE(sent);
  EXPECT_EQ(server->peers(), 0U);
}

TEST(Channel, BoundsWhatASlowReaderCosts) {
  const auto server = make_server();
  RawPeer slow(server->address());
  slow.send(encode_frame(message("slow")).value());
  const uint64_t slow_peer = poll_messages(*server, 1).at(0).peer;
  RawPeer other(server->address());
  other.send(encode_frame(message("other")).value());
  const uint64_t other_peer = poll_messages(*server, 1).at(0).peer;

  const int64_t before = resident_bytes();
  int taken = 0;
  for (int i = 0; i < 2000; ++i) {  // 200 MB
    if (server->send(slow_peer, answer(100000))) ++taken;
    if (i % 100 == 0) server->poll(1, 1);
  }
  // An outbox of 2 MiB, 16 messages in libzmq, and what the kernel holds (at most 4 + 6 MiB).
  EXPECT_LT(taken, 160);
  if (!kUnderThreadSanitizer) {
    EXPECT_LT(resident_bytes() - before, 64 * kMiB);
  }
  EXPECT_EQ(server->refused().at("dropped"), static_cast<uint64_t>(2000 - taken));

  std::vector<int64_t> waits_ms;
  for (int i = 0; i < 5; ++i) {
    const int64_t begin = now_ms();
    ASSERT_TRUE(server->send(other_peer, answer(1000)));
    ASSERT_TRUE(reaches(other, *server, std::string(1000, 'x')));
    waits_ms.push_back(now_ms() - begin);
  }
  std::sort(waits_ms.begin(), waits_ms.end());
  EXPECT_LT(waits_ms[waits_ms.size() / 2], 1000);
}

TEST(Channel, PutsControlBeforeRepliesInAFullOutbox) {
  const auto server = make_server();
  RawPeer slow(server->address());
  slow.send(encode_frame(message("slow")).value());
  const uint64_t peer = poll_messages(*server, 1).at(0).peer;
  while (server->send(peer, answer(100000))) {
  }
  pb::Envelope stop;
  stop.mutable_stop_attempt()->set_job("job-to-stop");
  EXPECT_TRUE(server->send(peer, stop));
}

// The peer that promises more than a message may have is cut off; promises cost no memory.
TEST(Channel, CutsOffOversizeAndHalfFrames) {
  const auto server = make_server();
  const int64_t before = resident_bytes();
  RawPeer large(server->address());
  large.send_half(300 * 1024, "x");
  for (const int64_t end = now_ms() + 60000; now_ms() < end;) {
    server->poll(5, 8);
    large.receive(5);
    if (!large.send("x")) break;
  }
  EXPECT_FALSE(large.send("x"));

  std::vector<std::unique_ptr<RawPeer>> half;
  for (int i = 0; i < 300; ++i) {
    half.push_back(std::make_unique<RawPeer>(server->address()));
    half.back()->send_half(256 * 1024, "half");
  }
  for (int i = 0; i < 20; ++i) server->poll(10, 8);
  if (!kUnderThreadSanitizer) {
    EXPECT_LT(resident_bytes() - before, 64 * kMiB);
  }
  const auto client = make_client(server->address());
  client->send(message("honest"));
  std::vector<Received> got;
  for (const int64_t end = now_ms() + 60000; got.empty() && now_ms() < end;) {
    client->poll(5, 1);
    got = server->poll(5, 8);
  }
  EXPECT_EQ(got.size(), 1U);
}

// Each frame is either a message or counted under its reason. In portions that libzmq's queue
// holds, so that a slow machine changes nothing.
TEST(Channel, SurvivesHostileFrames) {
  const auto server = make_server();
  RawPeer peer(server->address());
  HostileFrames hostile(2);
  uint64_t sent = 0, accepted = 0;
  const auto seen = [&] {
    uint64_t sum = accepted;
    for (const auto& [reason, count] : server->refused()) sum += count;
    return sum;
  };
  for (int portion = 0; portion < 200; ++portion) {
    for (int i = 0; i < 25; ++i, ++sent) ASSERT_TRUE(peer.send(hostile.next()));
    for (const int64_t end = now_ms() + 60000; seen() < sent && now_ms() < end;)
      accepted += server->poll(10, 64).size();
    ASSERT_EQ(seen(), sent);
  }
  EXPECT_GT(accepted, 0U);
}

// With ZMTP heartbeats libzmq would end the process a second after this peer is gone.
TEST(Channel, OutlivesAPeerThatFloodsAndLeaves) {
  const auto server = make_server();
  const std::string frame = encode_frame(message("a")).value();
  for (int i = 0; i < 5; ++i) {
    RawPeer peer(server->address());
    for (int m = 0; m < 2000 && peer.send(frame); ++m) {
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_GE(poll_messages(*server, 5).size(), 5U);
  RawPeer honest(server->address());
  honest.send(encode_frame(message("honest")).value());
  bool heard = false;
  for (const int64_t end = now_ms() + 60000; !heard && now_ms() < end;) {
    for (const Received& received : server->poll(10, 64))
      heard |= received.envelope.node() == "honest";
  }
  EXPECT_TRUE(heard);
}

// SWAX_TEST_FULL=1 runs the long form.
TEST(Channel, StartsAndStopsAgainAndAgain) {
  const int cycles = ::getenv("SWAX_TEST_FULL") != nullptr ? 1000 : 100;
  for (int i = 0; i < cycles; ++i) {
    const int64_t begin = now_ms();
    {
      const auto server = make_server();
      const auto client = make_client(server->address());
      const auto unanswered = make_client("tcp://127.0.0.1:1");
      for (int m = 0; m < 10; ++m) {
        client->send(message("a"));
        unanswered->send(message("b"));
      }
      client->poll(1, 1);
      server->poll(1, 4);
    }
    ASSERT_LT(now_ms() - begin, 5000) << "cycle " << i;
  }
}

}  // namespace
}  // namespace swax
