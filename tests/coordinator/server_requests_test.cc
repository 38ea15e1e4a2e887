// What clients get: one job for one request however often it is sent, answers with codes, histories
// without gaps, rows that fit into a frame; all of it the same after a restart. Method: a server in
// this process, clients over its real socket.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "coordinator/queries.h"
#include "proto/base/text.h"
#include "proto/frame.h"
#include "tests/coordinator/server_peers.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

using test::job_spec;
using test::open_server;
using test::request_id;
using test::submit_request;
using test::TestClient;

TEST(ServerRequests, MakeOneJobOfARequestThatIsSentFiveTimes) {
  const ScratchDir dir;
  const auto server = open_server(dir.path());
  const pb::Request request = submit_request("job-a");
  std::vector<pb::Reply> replies(5);
  std::thread other([&] {
    TestClient client(server->address());
    for (int i = 0; i < 2; ++i) replies[i] = client.ask(request, request_id(77));
  });
  TestClient client(server->address());
  for (int i = 2; i < 5; ++i) replies[i] = client.ask(request, request_id(77));
  other.join();
  int fresh = 0;
  for (const pb::Reply& reply : replies) {
    EXPECT_EQ(reply.code(), 0) << reply.error();
    ASSERT_EQ(reply.jobs_size(), 1);
    EXPECT_EQ(reply.jobs(0).job(), "job-a");
    fresh += reply.existing() ? 0 : 1;
  }
  EXPECT_EQ(fresh, 1);
  EXPECT_EQ(client.service().jobs(), 1U);

  // The same id for something else is a conflict, another id for the same name too.
  EXPECT_EQ(client.ask(submit_request("job-b"), request_id(77)).code(), 4);
  EXPECT_EQ(client.ask(request, request_id(78)).code(), 4);
  EXPECT_EQ(client.service().jobs(), 1U);
}

TEST(ServerRequests, RefuseWithCodeAndText) {
  const ScratchDir dir;
  const auto server = open_server(dir.path());
  TestClient client(server->address());
  pb::Request bad = submit_request("job-a");
  bad.mutable_submit()->mutable_spec()->mutable_training()->set_seq_len(0);
  const pb::Reply refused = client.ask(bad);
  EXPECT_EQ(refused.code(), 2);
  EXPECT_NE(refused.error().find("seq_len"), std::string::npos) << refused.error();
  pb::Request unknown;
  for (int kind = 0; kind < 5; ++kind) {
    if (kind == 0) unknown.mutable_status()->set_job("nobody");
    if (kind == 1) unknown.mutable_events()->set_job("nobody");
    if (kind == 2) unknown.mutable_steps()->set_job("nobody");
    if (kind == 3) unknown.mutable_logs()->set_job("nobody");
    if (kind == 4) unknown.mutable_cancel()->set_job("nobody");
    const pb::Reply reply = client.ask(unknown);
    EXPECT_EQ(reply.code(), 3) << kind;
    EXPECT_NE(reply.error().find("nobody"), std::string::npos) << kind;
  }
}

TEST(ServerRequests, TellAHistoryWithoutGaps) {
  const ScratchDir dir;
  const auto server = open_server(dir.path());
  TestClient client(server->address());
  ASSERT_EQ(client.submit("job-a").code(), 0);
  pb::Request cancel;
  cancel.mutable_cancel()->set_job("job-a");
  ASSERT_EQ(client.ask(cancel).code(), 0);
  const std::vector<pb::EventRecord> events = client.events("job-a");
  ASSERT_GE(events.size(), 3U);
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].sequence(), i + 1);
  EXPECT_EQ(events.front().kind(), "submitted");
  EXPECT_EQ(events.back().kind(), "job_ended");
  EXPECT_EQ(client.status("job-a").events(), events.size());
  EXPECT_EQ(client.status("job-a").state(), "CANCELLED");
}

TEST(ServerRequests, SurviveARestart) {
  const ScratchDir dir;
  std::string cluster;
  pb::Reply first;
  {
    const auto server = open_server(dir.path());
    TestClient client(server->address());
    first = client.ask(submit_request("job-a"), request_id(5));
    for (int i = 0; i < 20; ++i) ASSERT_EQ(client.submit("more-" + to_text(i)).code(), 0);
    cluster = client.service().cluster_id();
    EXPECT_EQ(cluster.size(), 32U);
    EXPECT_EQ(client.service().coordinator_epoch(), 1U);
    EXPECT_TRUE(server->stop(5000));
  }
  const auto server = open_server(dir.path());
  TestClient client(server->address());
  EXPECT_EQ(client.service().cluster_id(), cluster);
  EXPECT_EQ(client.service().coordinator_epoch(), 2U);
  EXPECT_EQ(client.service().jobs(), 21U);
  const pb::Reply again = client.ask(submit_request("job-a"), request_id(5));
  EXPECT_EQ(again.code(), 0);
  EXPECT_TRUE(again.existing());
  EXPECT_EQ(again.jobs(0).numeric_id(), first.jobs(0).numeric_id());
  EXPECT_EQ(client.ask(submit_request("job-b"), request_id(5)).code(), 4);
}

TEST(FitReply, TakesRowsFromTheEndAndSaysSo) {
  pb::Reply reply;
  for (int i = 0; i < 1000; ++i) {
    pb::JobStatus& job = *reply.add_jobs();
    job.set_job("job-" + to_text(i));
    job.set_message(std::string(400, 'm'));
  }
  pb::Reply small = reply;
  small.mutable_jobs()->DeleteSubrange(10, 990);
  const std::string before = small.SerializeAsString();
  coord::fit_reply(&small);
  EXPECT_EQ(small.SerializeAsString(), before);  // what fits stays

  coord::fit_reply(&reply);
  pb::Envelope envelope;
  *envelope.mutable_reply() = reply;
  EXPECT_TRUE(encode_frame(envelope).ok());
  EXPECT_GT(reply.jobs_size(), 400);
  EXPECT_LT(reply.jobs_size(), 600);
  EXPECT_EQ(reply.jobs(0).job(), "job-0");
  EXPECT_NE(reply.error().find(" of 1000 rows"), std::string::npos) << reply.error();
}

TEST(ServerRequests, GiveThePathOfALog) {
  const ScratchDir dir;
  const auto server = open_server(dir.path());
  TestClient client(server->address());
  ASSERT_EQ(client.submit("job-a").code(), 0);
  pb::Request logs;
  logs.mutable_logs()->set_job("job-a");
  EXPECT_EQ(client.ask(logs).code(), 3);  // no attempt yet
}

TEST(Server, RefusesASecondOneOnTheSameState) {
  const ScratchDir dir;
  const auto server = open_server(dir.path());
  const auto second = coord::Server::open({.state = dir.path(),
                                           .listen = "tcp://127.0.0.1:0",
                                           .store = "",
                                           .insecure = false,
                                           .timing = {}});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kFailedPrecondition);
  EXPECT_NE(second.status().message().find("process " + to_text(int64_t{::getpid()})),
            std::string::npos)
      << second.status().message();
}

// SWAX_TEST_FULL=1 runs the long form.
TEST(Server, StartsAndStopsAgainAndAgain) {
  const int cycles = ::getenv("SWAX_TEST_FULL") != nullptr ? 200 : 20;
  const ScratchDir dir;
  for (int i = 0; i < cycles; ++i) {
    const auto server = open_server(dir.path());
    ASSERT_NE(server, nullptr);
    TestClient client(server->address());
    if (i % 3 == 0) {
      EXPECT_EQ(client.service().coordinator_epoch(), static_cast<uint64_t>(i) + 1);
    }
    const int64_t begin = test::now_ms();
    EXPECT_TRUE(server->stop(5000));
    EXPECT_LT(test::now_ms() - begin, 5000);
  }
}

}  // namespace
}  // namespace swax
