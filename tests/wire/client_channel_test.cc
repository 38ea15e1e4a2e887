// The client's end: it says what the trouble is, keeps a bounded number of messages and finds a
// server that came back. Method: a server in the same process, or none.
#include <gtest/gtest.h>

#include "tests/wire/channel_ends.h"

namespace swax {
namespace {

TEST(ClientChannel, SaysWhatTheTroubleIs) {
  std::string address;
  {
    const auto server = make_server();
    address = server->address();
  }
  const auto client = make_client(address);
  for (const int64_t end = now_ms() + 60000;
       client->trouble().find("refused") == std::string::npos && now_ms() < end;) {
    client->poll(10, 1);
  }
  EXPECT_NE(client->trouble().find("connection refused"), std::string::npos) << client->trouble();
  EXPECT_NE(client->trouble().find(address), std::string::npos);
  client->reconnect();  // before anything new is known
  EXPECT_NE(client->trouble().find("connection refused"), std::string::npos) << client->trouble();
}

TEST(ClientChannel, KeepsABoundedNumberOfMessagesUntilItIsConnected) {
  const auto client = make_client("tcp://127.0.0.1:1");
  int taken = 0;
  while (taken < 1000 && client->send(message("a"))) ++taken;
  EXPECT_EQ(taken, 64);
}

// Many times: what is left of the old socket must not stop the new one.
TEST(ClientChannel, ReconnectsToAServerThatCameBack) {
  auto server = make_server();
  const std::string address = server->address();
  const auto client = make_client(address);
  for (int i = 0; i < 100; ++i) {
    if (i % 10 == 0) {
      server.reset();
      server = std::move(ServerChannel::bind(address, false)).value();
    }
    client->reconnect();
    client->send(message("again-" + std::to_string(i)));
    std::vector<Received> got;
    for (const int64_t end = now_ms() + 60000; got.empty() && now_ms() < end;) {
      client->poll(5, 1);
      got = server->poll(5, 8);
    }
    ASSERT_EQ(got.size(), 1U) << i << ": " << client->trouble();
    EXPECT_EQ(got[0].envelope.node(), "again-" + std::to_string(i));
  }
}

}  // namespace
}  // namespace swax
