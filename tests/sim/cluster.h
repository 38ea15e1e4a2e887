// mpirun and ranks that train: they start on the nodes that let them, load the newest committed
// checkpoint, step together, save, and end; and they crash, exit, hang, and fall with their
// launcher.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/agent_host.h"
#include "tests/sim/store.h"

namespace swax::sim {

class Gang;

class Cluster {
 public:
  Cluster(World& world, const Swarm& swarm, const SimJobs& jobs, Store& store, Oracle& oracle);
  ~Cluster();
  void add_agent(AgentHost* agent);

  void launch(AgentHost& lead, const pb::StartAttempt& start);
  void run_remote(AgentHost& member, const pb::LaunchRemote& launch);
  void kill(AgentHost& agent, const std::string& job, uint64_t epoch);
  void tell(AgentHost& agent, const agent::TellRank& tell);
  void node_died(const std::string& node);

  // Strikes a random training rank; false: none is there.
  bool strike(Fault fault);
  // The next rank that comes to that point dies there.
  void crash_at(Fault point) { crash_at_.insert(point); }

 private:
  using Key = std::pair<std::string, uint64_t>;
  World& world_;
  const Swarm& swarm_;
  const SimJobs& jobs_;
  Store& store_;
  Oracle& oracle_;
  std::map<std::string, AgentHost*> agents_;
  std::map<Key, std::shared_ptr<Gang>> gangs_;
  std::set<Fault> crash_at_;
};

}  // namespace swax::sim
