// The real coordinator core in a simulated process: inbox, journal, crash points, pauses. Planted
// bugs of the shell live here.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>

#include "coordinator/core/core.h"
#include "tests/sim/network.h"
#include "tests/sim/oracle.h"
#include "tests/sim/store.h"

namespace swax::sim {

constexpr const char* kNonce = "nonce";

class CoordinatorHost {
 public:
  CoordinatorHost(World& world, const Swarm& swarm, Network& network, Store& store, Oracle& oracle);
  void start();
  void deliver(uint64_t peer, const pb::Envelope& envelope);
  // The next event of that kind is the last one of this process.
  void crash_at(Fault point) { crash_at_ = point; }
  void pause(int64_t for_ms);
  bool alive() const { return alive_; }
  const coord::State& state() const { return *state_; }

 private:
  void later(int64_t delay_ms, std::function<void()> run);  // of this process only
  void tick();
  void handle(coord::EventBody body);
  void process(coord::EventBody body);
  bool crashes(Fault point, bool matters);
  void crash();
  void replay();
  void journal(const coord::Output& out);
  void execute(coord::Output& out, size_t limit);
  void run(coord::Command& command);
  void run_send(coord::Send& send);
  void run_commit(const coord::WriteCommitted& write);
  void run_retire(const coord::Retire& retire);
  void run_find(const coord::FindCommitted& find);
  void plant_before(const coord::EventBody& body);

  World& world_;
  const Swarm& swarm_;
  Network& network_;
  Store& store_;
  Oracle& oracle_;
  coord::Config config_;
  Disk disk_;
  std::unique_ptr<coord::State> state_;
  bool alive_ = false;
  uint64_t process_ = 0;     // counts starts
  size_t batches_seen_ = 0;  // by the oracle
  int64_t paused_until_ = 0;
  std::deque<coord::EventBody> inbox_;  // during a pause
  std::optional<Fault> crash_at_;
  std::set<std::string> commands_sent_;  // canary
};

}  // namespace swax::sim
