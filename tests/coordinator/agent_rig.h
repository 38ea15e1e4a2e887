// The agent core with a coordinator, ranks and processes that are only voices.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "jobs/spec.h"
#include "tests/jobs/spec_texts.h"
#include "worker/agent/core/core.h"

namespace swax::agent::test {

class AgentRig : public ::testing::Test {
 public:
  AgentRig() {
    config_.node = "n0";
    config_.state_id = "s0";
    config_.slots = 2;
    config_.incarnation = 3;
    config_.train_floor_ms = 10000;
    give(Started{});
    welcome();
  }

  void give(EventBody body) {
    commands_ =
        agent::step(state_, config_, {.now_ms = now_, .wall_ms = 1, .body = std::move(body)});
    all_.insert(all_.end(), commands_.begin(), commands_.end());
  }
  void pass(int64_t ms) {
    for (const int64_t end = now_ + ms; now_ < end;) {
      now_ += 200;
      give(Tick{});
    }
  }
  void clear() { all_.clear(); }

  // Of all commands since the last clear().
  template <typename T>
  std::vector<T> all() const {
    std::vector<T> found;
    for (const Command& command : all_)
      if (const T* c = std::get_if<T>(&command)) found.push_back(*c);
    return found;
  }
  std::vector<pb::AttemptReport> sent_reports() const {
    std::vector<pb::AttemptReport> found;
    for (const Send& send : all<Send>())
      for (const auto& r : send.envelope.attempt_reports().reports()) found.push_back(r);
    return found;
  }
  std::vector<pb::AttemptEnded> sent_ends() const {
    std::vector<pb::AttemptEnded> found;
    for (const auto& r : sent_reports())
      if (r.has_ended()) found.push_back(r.ended());
    return found;
  }
  int hellos() const {
    int count = 0;
    for (const Send& send : all<Send>()) count += send.envelope.has_hello() ? 1 : 0;
    return count;
  }

  // The coordinator speaks.
  pb::Envelope from_coordinator() {
    pb::Envelope e;
    e.set_cluster_id("c");
    e.set_coordinator_epoch(coordinator_epoch_);
    e.set_node("n0");
    e.set_incarnation(3);
    e.set_sequence(++sequence_);
    return e;
  }
  void hear(pb::Envelope e) { give(FromCoordinator{.envelope = std::move(e)}); }
  void welcome() {
    pb::Envelope e = from_coordinator();
    e.mutable_welcome()->set_accepted(true);
    e.mutable_welcome()->set_store("/store");
    hear(std::move(e));
  }
  pb::Envelope start_message(const std::string& job, uint64_t epoch, uint32_t ranks = 1,
                             const std::string& lead = "n0") {
    pb::Envelope e = from_coordinator();
    pb::StartAttempt& start = *e.mutable_start_attempt();
    start.set_job(job);
    start.set_epoch(epoch);
    start.set_lead(lead);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      start.add_ranks()->set_rank(rank);
      start.mutable_ranks()->rbegin()->set_node("n0");
    }
    static const pb::JobSpec spec = load_spec(swax::test::minimal_text(), "test", {}).spec;
    *start.mutable_spec() = spec;
    return e;
  }
  void stop(const std::string& job, uint64_t epoch, pb::StopMode mode) {
    pb::Envelope e = from_coordinator();
    e.mutable_stop_attempt()->set_job(job);
    e.mutable_stop_attempt()->set_epoch(epoch);
    e.mutable_stop_attempt()->set_mode(mode);
    hear(std::move(e));
  }
  void want(const std::vector<std::pair<std::string, uint64_t>>& attempts) {
    pb::Envelope e = from_coordinator();
    e.mutable_heartbeat_reply();
    for (const auto& [job, epoch] : attempts) {
      e.mutable_heartbeat_reply()->add_wanted()->set_job(job);
      e.mutable_heartbeat_reply()->mutable_wanted()->rbegin()->set_epoch(epoch);
    }
    hear(std::move(e));
  }
  void acknowledge(uint64_t index, const std::string& ended_job = "", uint64_t epoch = 0) {
    pb::Envelope e = from_coordinator();
    e.mutable_reports_acknowledged()->set_index(index);
    if (!ended_job.empty()) {
      e.mutable_reports_acknowledged()->add_ended()->set_job(ended_job);
      e.mutable_reports_acknowledged()->mutable_ended(0)->set_epoch(epoch);
    }
    hear(std::move(e));
  }

  // Processes speak.
  void run(const std::string& job, uint64_t epoch, uint32_t ranks = 1) {
    hear(start_message(job, epoch, ranks));
    give(Prepared{.job = job, .epoch = epoch, .ok = true, .retry = false, .error = {}});
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      pb::RankMessage m;
      m.mutable_hello()->set_rank(rank);
      say(job, epoch, rank, m);
    }
  }
  void say(const std::string& job, uint64_t epoch, uint32_t rank, pb::RankMessage m) {
    give(RankSaid{.job = job, .epoch = epoch, .rank = rank, .message = std::move(m)});
  }
  void phase(const std::string& job, uint64_t epoch, uint32_t rank, const std::string& name) {
    pb::RankMessage m;
    m.set_phase(name);
    say(job, epoch, rank, m);
  }
  void train_step(const std::string& job, uint64_t epoch, uint32_t rank, uint64_t step,
                  uint32_t window = 8, int64_t ms = 1000) {
    pb::RankMessage m;
    m.mutable_step()->set_step(step);
    m.mutable_step()->set_window(window);
    m.mutable_step()->set_step_ns(ms * 1'000'000);
    say(job, epoch, rank, m);
  }
  void close(const std::string& job, uint64_t epoch, uint32_t rank, int code, int signal = 0) {
    give(RankClosed{.job = job, .epoch = epoch, .rank = rank, .exit_code = code, .signal = signal});
  }
  void launcher(const std::string& job, uint64_t epoch, int code) {
    give(LauncherExited{
        .job = job, .epoch = epoch, .exit_code = code, .signal = 0, .log_tail = "x"});
  }
  void sweep(const std::string& job, uint64_t epoch) { give(Swept{.job = job, .epoch = epoch}); }

  State state_;
  Config config_;
  int64_t now_ = 1000;
  uint64_t coordinator_epoch_ = 7, sequence_ = 0;

 private:
  std::vector<Command> commands_, all_;
};

}  // namespace swax::agent::test
