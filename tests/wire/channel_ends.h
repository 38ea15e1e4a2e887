// Both ends of a channel in one process, and waits that a slow machine does not end: 60 s.
// Threads: one per channel.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/clock.h"
#include "proto/wire/channel.h"
#include "tests/wire/raw_peer.h"

namespace swax {

constexpr const char* kAnyPort = "tcp://127.0.0.1:0";

inline std::unique_ptr<ServerChannel> make_server() {
  Result<std::unique_ptr<ServerChannel>> server = ServerChannel::bind(kAnyPort, false);
  SWAX_CHECK(server.ok());
  return std::move(server).value();
}
inline std::unique_ptr<ClientChannel> make_client(const std::string& address) {
  Result<std::unique_ptr<ClientChannel>> client = ClientChannel::connect(address);
  SWAX_CHECK(client.ok());
  return std::move(client).value();
}

inline pb::Envelope message(const std::string& node) {
  pb::Envelope envelope;
  envelope.set_node(node);
  envelope.mutable_heartbeat();
  return envelope;
}
inline pb::Envelope answer(size_t bytes = 1) {
  pb::Envelope envelope;
  envelope.mutable_reply()->set_error(std::string(bytes, 'x'));
  return envelope;
}

inline int64_t now_ms() {
  SystemClock clock;
  return clock.monotonic_ms();
}
// Polls the server until `done`, at most 60 s.
inline std::vector<Received> poll_until(ServerChannel& server,
                                        const std::function<bool(size_t)>& done) {
  std::vector<Received> all;
  for (const int64_t end = now_ms() + 60000; !done(all.size()) && now_ms() < end;) {
    for (Received& received : server.poll(10, 64)) all.push_back(std::move(received));
  }
  return all;
}
inline std::vector<Received> poll_messages(ServerChannel& server, size_t count) {
  return poll_until(server, [&](size_t got) { return got >= count; });
}
// True once the peer has received the bytes, within 60 s; they are sent meanwhile.
inline bool reaches(RawPeer& peer, ServerChannel& server, const std::string& bytes) {
  std::string all;
  for (const int64_t end = now_ms() + 60000; now_ms() < end;) {
    server.poll(1, 8);
    all += peer.receive(10);
    if (all.find(bytes) != std::string::npos) return true;
  }
  return false;
}
inline std::vector<pb::Envelope> client_poll(ClientChannel& client, ServerChannel& server,
                                             size_t count) {
  std::vector<pb::Envelope> all;
  for (const int64_t end = now_ms() + 60000; all.size() < count && now_ms() < end;) {
    server.poll(1, 64);
    for (pb::Envelope& envelope : client.poll(5, 64)) all.push_back(std::move(envelope));
  }
  return all;
}

}  // namespace swax
