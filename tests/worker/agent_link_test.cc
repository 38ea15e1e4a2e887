// Goal: a main loop that waits for a disk loses no worker, one that hangs for ever does. Method:
// the link to a socket of ours, and a main loop that says nothing.
#include <gtest/gtest.h>

#include <algorithm>

#include "proto/base/clock.h"
#include "worker/agent/coordinator_link.h"

namespace swax {
namespace {

constexpr int64_t kLostMs = 5000;  // of a coordinator

pb::Envelope envelope(uint64_t sequence) {
  pb::Envelope e;
  e.set_node("w1");
  e.set_incarnation(1);
  e.set_sequence(sequence);
  return e;
}

pb::Envelope beat(uint64_t sequence) {
  pb::Envelope e = envelope(sequence);
  e.mutable_heartbeat()->add_attempts()->set_job("a");
  return e;
}

struct Heard {
  std::vector<pb::Envelope> all;
  int64_t longest_gap_ms = 0;
};

class Link : public ::testing::Test {
 protected:
  void start(const LinkTiming& timing) {
    server_ = std::move(ServerChannel::bind("tcp://127.0.0.1:0", false)).value();
    events_ = std::move(EventQueue::make()).value();
    link_ = std::move(CoordinatorLink::start(server_->address(), *events_, timing)).value();
  }
  // Sent again until it has come: the connection takes a moment.
  void deliver(const pb::Envelope& e) {
    const int64_t end_ms = clock_.monotonic_ms() + 30000;
    for (bool came = false; !came;) {
      ASSERT_LT(clock_.monotonic_ms(), end_ms);
      link_->send(e);
      for (const Received& r : server_->poll(100, 16))
        came = came || r.envelope.sequence() == e.sequence();
    }
  }
  // Heartbeats only. What deliver() sent twice is through once this has come after it.
  void deliver_mark(uint64_t sequence) {
    pb::Envelope mark = envelope(sequence);
    mark.mutable_attempt_reports();
    deliver(mark);
  }
  Heard listen(int64_t ms, bool alive = false) {
    Heard heard;
    const int64_t begin_ms = clock_.monotonic_ms();
    int64_t last_ms = begin_ms;
    for (int64_t now_ms = begin_ms; now_ms < begin_ms + ms; now_ms = clock_.monotonic_ms()) {
      if (alive) link_->alive();
      for (Received& r : server_->poll(20, 16))
        if (r.envelope.has_heartbeat()) heard.all.push_back(std::move(r.envelope));
      now_ms = clock_.monotonic_ms();
      heard.longest_gap_ms = std::max(heard.longest_gap_ms, now_ms - last_ms);
      if (!heard.all.empty() && heard.all.size() != counted_) last_ms = now_ms;
      counted_ = heard.all.size();
    }
    return heard;
  }

  SystemClock clock_;
  size_t counted_ = 0;
  std::unique_ptr<ServerChannel> server_;
  std::unique_ptr<EventQueue> events_;
  std::unique_ptr<CoordinatorLink> link_;
};

TEST_F(Link, RepeatsTheNewestBeatWhileTheMainLoopWaits) {
  start({});
  deliver(beat(6));
  deliver(beat(7));
  const Heard heard = listen(8000);  // a write that a disk holds back
  ASSERT_GE(heard.all.size(), 3U);
  for (const pb::Envelope& e : heard.all)
    EXPECT_EQ(e.SerializeAsString(), beat(7).SerializeAsString());
  EXPECT_LT(heard.longest_gap_ms, kLostMs);
}

TEST_F(Link, RepeatsNothingWhileTheMainLoopGoesOn) {
  start({.late_ms = 5000, .copy_ms = 20, .limit_ms = 60000});
  deliver(beat(7));
  deliver_mark(8);
  EXPECT_TRUE(listen(1000, true).all.empty());
}

TEST_F(Link, RepeatsOnlyForAWhile) {
  start({.late_ms = 100, .copy_ms = 100, .limit_ms = 5000});
  deliver(beat(7));
  link_->alive();
  EXPECT_FALSE(listen(4000).all.empty());
  bool silent = false;
  for (int i = 0; i < 3 && !silent; ++i) silent = listen(1000).all.empty();
  EXPECT_TRUE(silent) << "a main loop that hangs is a worker that is lost";
}

TEST_F(Link, RepeatsNothingAfterGoodbye) {
  start({.late_ms = 100, .copy_ms = 100, .limit_ms = 60000});
  deliver(beat(7));
  pb::Envelope goodbye = envelope(8);
  goodbye.mutable_goodbye();
  deliver(goodbye);
  EXPECT_TRUE(listen(1000).all.empty());
}

}  // namespace
}  // namespace swax
