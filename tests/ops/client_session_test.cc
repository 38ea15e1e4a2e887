// Goal: a client waits as long as it was told to, without a limit too, and for a coordinator that
// cannot write its state as for one that is silent. Method: a coordinator that gives prepared
// answers, one a request and the last one again and again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "ops/cli/client_events.h"
#include "ops/cli/client_follow.h"

namespace swax {
namespace {

class Answers {
 public:
  explicit Answers(std::vector<pb::Reply> replies) {
    std::promise<std::string> bound;
    std::future<std::string> address = bound.get_future();
    thread_ = std::thread([this, replies = std::move(replies),
                           promise = std::move(bound)]() mutable { serve(replies, &promise); });
    address_ = address.get();
  }
  ~Answers() {
    stop_ = true;
    thread_.join();
  }
  const std::string& address() const { return address_; }

 private:
  void serve(const std::vector<pb::Reply>& replies, std::promise<std::string>* bound) {
    const auto channel = std::move(ServerChannel::bind("tcp://127.0.0.1:0", false)).value();
    bound->set_value(channel->address());
    size_t next = 0;
    while (!stop_) {
      for (const Received& received : channel->poll(20, 16)) {
        pb::Envelope envelope;
        envelope.set_request_id(received.envelope.request_id());
        *envelope.mutable_reply() = replies[next];
        channel->send(received.peer, envelope);
        next = std::min(next + 1, replies.size() - 1);
      }
    }
  }

  std::string address_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

pb::Reply refusal(int code, const std::string& error) {
  pb::Reply reply;
  reply.set_code(code);
  reply.set_error(error);
  return reply;
}

pb::Reply job_in(const std::string& state) {
  pb::Reply reply;
  reply.add_jobs()->set_job("a");
  reply.mutable_jobs(0)->set_state(state);
  return reply;
}

const pb::Reply kStuck = refusal(1, "the coordinator's state cannot be written");

TEST(ClientSession, WaitsHoweverLongTheLimitIs) {
  const Answers coordinator({job_in("RUNNING")});
  ClientSession session = ClientSession::connect(coordinator.address()).value();
  for (const int64_t limit_ms : {INT64_MAX, INT64_MAX - 1, INT64_MAX / 2, int64_t{0}}) {
    const pb::Reply reply = session.ask(status_request("a"), {.tries = 3, .total_ms = limit_ms});
    EXPECT_EQ(reply.code(), 0) << limit_ms << ": " << reply.error();
  }
}

TEST(JobFollower, WaitsForACoordinatorThatCannotWriteFromTheBeginning) {
  const Answers coordinator({kStuck, kStuck, job_in("SUCCEEDED")});
  ClientSession session = ClientSession::connect(coordinator.address()).value();
  JobFollower follower(&session, "a", 0);
  std::vector<std::string> said;
  follower.on_message([&said](const std::string& text) { said.push_back(text); });
  const std::optional<pb::JobStatus> status = follower.next();
  ASSERT_TRUE(status);
  EXPECT_EQ(status->state(), "SUCCEEDED");
  EXPECT_EQ(follower.exit_code(), 0);
  ASSERT_EQ(said.size(), 2U);
  EXPECT_THAT(said[0], ::testing::HasSubstr("cannot be written"));
  EXPECT_THAT(said[1], ::testing::HasSubstr("answers again"));
}

TEST(JobFollower, WaitsNoLongerThanItMay) {
  const Answers coordinator({kStuck});
  ClientSession session = ClientSession::connect(coordinator.address()).value();
  JobFollower follower(&session, "a", 700);
  EXPECT_FALSE(follower.next());
  EXPECT_EQ(follower.exit_code(), kExitWaitTimedOut);
}

TEST(JobFollower, EndsWithWhatIsNoMatterOfTime) {
  const Answers coordinator({kStuck, refusal(3, "no job a")});
  ClientSession session = ClientSession::connect(coordinator.address()).value();
  JobFollower follower(&session, "a", 0);
  EXPECT_FALSE(follower.next());
  EXPECT_EQ(follower.exit_code(), 3);
}

}  // namespace
}  // namespace swax
