// The coordinator core with workers that are only voices: events are given one by one, everything
// that comes out is kept. Each record is also folded into a second Durable, as a replay would.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/core/core.h"

namespace swax::coord::test {

pb::JobSpec small_spec(const std::string& name, uint32_t ranks = 1);

class CoreRig : public ::testing::Test {
 public:
  CoreRig();

  // Events.
  void give(EventBody body);
  void pass(int64_t ms);  // ticks every 200 ms
  void tell(uint64_t peer, pb::Envelope envelope);
  // HELLO of a worker with its nonce; peer = number + 1.
  void join(int number, uint32_t slots = 2, uint64_t incarnation = 1,
            const std::string& state_id = "");
  void beat(int number, const std::vector<pb::RunningAttempt>& attempts = {});
  // Beats of workers 0..count-1 every second, with what they should run, for `ms`.
  void live(int count, int64_t ms);
  pb::Reply ask(const pb::Request& request, const std::string& id = "");
  pb::Reply submit(const pb::JobSpec& spec, const std::string& id = "", int32_t priority = 0);
  pb::Reply cancel(const std::string& job, bool now);
  // Reports of one worker, with rising indexes; returns the index acknowledged.
  uint64_t report(int number, std::vector<pb::AttemptReport> reports);
  uint64_t report_from(int number, uint64_t after, const std::vector<pb::AttemptReport>& reports);
  void restart();  // the process: what was recorded stays

  // What came out of the newest event.
  const Output& out() const { return out_; }
  template <typename T>
  std::vector<T> commands() const {
    std::vector<T> found;
    for (const Command& command : out_.commands)
      if (const T* c = std::get_if<T>(&command)) found.push_back(*c);
    return found;
  }
  std::vector<pb::Envelope> sent_to(int number) const;  // since the last clear()
  std::vector<pb::StartAttempt> starts(const std::string& job) const;
  std::vector<pb::StopAttempt> stops(const std::string& job) const;
  // How many attempts each HEARTBEAT_REPLY of the newest event names.
  std::vector<int> wanted_counts() const {
    std::vector<int> counts;
    for (const Send& send : commands<Send>())
      if (send.envelope.has_heartbeat_reply())
        counts.push_back(send.envelope.heartbeat_reply().wanted_size());
    return counts;
  }
  void clear() { sent_.clear(); }
  const Job& job(const std::string& name) { return state_.durable.jobs.at(name); }
  std::vector<pb::JobRecord> records_of(const std::string& job) const;
  std::string kinds_of(const std::string& job) const;  // of its history, one word each

  static std::string node(int number) { return "node-" + std::to_string(number); }
  pb::RunningAttempt running(const std::string& job, const std::string& phase = "train");
  pb::AttemptReport about(const std::string& job) const;  // job and newest epoch filled in
  pb::AttemptReport ended(const std::string& job, const std::string& result, uint64_t step = 0);
  pb::AttemptReport durable(const std::string& job, uint64_t step, uint32_t rank);
  pb::AttemptReport step(const std::string& job, uint64_t step);
  pb::AttemptReport done(const std::string& job, uint64_t step);
  void committed(const std::string& job, uint64_t step, bool ok = true);

  State state_;
  Config config_;
  int64_t now_ = 1000;
  Durable replayed_;

 private:
  Output out_;
  std::vector<pb::JobRecord> journal_;
  std::vector<RequestAnswer> answers_;
  std::vector<ReportsTaken> taken_;
  std::vector<std::pair<uint64_t, pb::Envelope>> sent_;
  std::map<int, uint64_t> sequence_, incarnation_, index_;
  uint64_t request_ = 0;
};

}  // namespace swax::coord::test
