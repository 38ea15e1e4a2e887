// The real agent core in a simulated process on one node. Its outbox and accepted epochs survive
// it; its ranks do not.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "tests/sim/network.h"
#include "tests/sim/oracle.h"
#include "worker/agent/core/core.h"

namespace swax::sim {

class Cluster;

class AgentHost {
 public:
  AgentHost(World& world, Network& network, Oracle& oracle, Cluster& cluster, int number,
            uint32_t slots);
  const std::string& node() const { return config_.node; }
  uint64_t process() const { return config_.incarnation; }  // counts starts
  bool alive() const { return alive_; }
  bool idle() const { return alive_ && state_->attempts.empty() && state_->outbox.empty(); }
  const agent::State& state() const { return *state_; }
  size_t endpoint() const { return endpoint_; }

  void start();
  void crash(int64_t down_ms);
  void pause(int64_t for_ms);
  void handle(agent::EventBody body);  // dropped while dead, kept while paused

 private:
  void later(int64_t delay_ms, std::function<void()> run);
  void tick();
  void process_event(agent::EventBody body);
  void run(agent::Command& command);
  void save(const agent::SaveOutbox& save);
  void leave(const agent::Exit& exit);

  World& world_;
  Network& network_;
  Oracle& oracle_;
  Cluster& cluster_;
  agent::Config config_;
  size_t endpoint_;
  std::unique_ptr<agent::State> state_;
  agent::State disk_;  // its durable parts only
  bool alive_ = false;
  int64_t paused_until_ = 0;
  std::deque<agent::EventBody> inbox_;
};

}  // namespace swax::sim
