#include "tests/sim/cluster.h"

#include <algorithm>

#include "tests/sim/gang.h"

namespace swax::sim {

Cluster::Cluster(World& world, const Swarm& swarm, const SimJobs& jobs, Store& store,
                 Oracle& oracle)
    : world_(world), swarm_(swarm), jobs_(jobs), store_(store), oracle_(oracle) {}
Cluster::~Cluster() = default;

void Cluster::add_agent(AgentHost* agent) { agents_[agent->node()] = agent; }

void Cluster::launch(AgentHost&, const pb::StartAttempt& start) {
  std::erase_if(gangs_, [](const auto& entry) { return entry.second->over(); });
  const auto gang = std::make_shared<Gang>(Gang::Parts{.world = world_,
                                                       .swarm = swarm_,
                                                       .job = jobs_.at(start.job()),
                                                       .store = store_,
                                                       .oracle = oracle_,
                                                       .agents = agents_,
                                                       .crash_at = crash_at_},
                                           start);
  gangs_[{start.job(), start.epoch()}] = gang;
  gang->begin();
}

void Cluster::run_remote(AgentHost& member, const pb::LaunchRemote& launch) {
  const auto it = gangs_.find({launch.job(), launch.epoch()});
  if (it == gangs_.end()) return;
  it->second->daemon_started(member.node(), launch.proxy());
  world_.after(world_.between(300, 1500),
               [gang = it->second, agent = &member, process = member.process()] {
                 if (agent->alive() && agent->process() == process)
                   gang->start_ranks(agent->node());
               });
}

void Cluster::kill(AgentHost& agent, const std::string& job, uint64_t epoch) {
  const auto it = gangs_.find({job, epoch});
  if (it != gangs_.end()) it->second->node_killed(agent.node());
}

void Cluster::tell(AgentHost&, const agent::TellRank& tell) {
  const auto it = gangs_.find({tell.job, tell.epoch});
  if (it == gangs_.end()) return;
  const auto gang = it->second;
  if (tell.message.has_stop()) gang->ask_stop();
  if (tell.message.has_refused())
    world_.after(1, [gang, rank = static_cast<uint32_t>(tell.rank)] {
      if (!gang->over()) gang->refuse(rank);
    });
}

void Cluster::node_died(const std::string& node) {
  for (const auto& [key, gang] : std::map<Key, std::shared_ptr<Gang>>(gangs_))
    gang->node_killed(node);
}

bool Cluster::strike(Fault fault) {
  std::vector<Gang*> targets;
  for (const auto& [key, gang] : gangs_)
    if (!gang->over() && gang->training()) targets.push_back(gang.get());
  if (targets.empty()) return false;
  Gang& gang = *targets[world_.below(targets.size())];
  const auto rank = static_cast<uint32_t>(world_.below(gang.size()));
  world_.fired(fault);
  if (fault == Fault::kRankCrash) gang.crash_rank(rank);
  if (fault == Fault::kRankExit) gang.exit_rank(rank, 1, "assertion failed");
  if (fault == Fault::kRankHang) gang.hang();
  return true;
}

}  // namespace swax::sim
