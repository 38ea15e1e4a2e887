// The real agent core in a simulated process on one node: inbox, disk, crash points, pauses. What
// it synced survives it; its ranks do not.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

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
  // The next event of that kind is the last one of this process.
  void crash_at(Fault point) { crash_at_ = point; }
  void pause(int64_t for_ms);
  void handle(agent::EventBody body);  // dropped while dead, kept while paused

 private:
  void later(int64_t delay_ms, std::function<void()> run);
  void tick();
  void process_event(agent::EventBody body);
  bool crashes(Fault point, bool matters);
  void end(int64_t down_ms);  // of the process and of its ranks
  void run(agent::Command& command);
  void run_send(agent::Send& send);
  void run_save(const agent::SaveOutbox& save);
  void leave(const agent::Exit& exit);

  World& world_;
  Network& network_;
  Oracle& oracle_;
  Cluster& cluster_;
  agent::Config config_;
  size_t endpoint_;
  std::unique_ptr<agent::State> state_;
  AgentDisk disk_;
  bool alive_ = false;
  int64_t paused_until_ = 0;
  std::deque<agent::EventBody> inbox_;
  std::optional<Fault> crash_at_;
};

}  // namespace swax::sim
