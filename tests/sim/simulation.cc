#include "tests/sim/simulation.h"

#include <algorithm>
#include <array>
#include <memory>

#include "proto/base/text.h"
#include "tests/sim/clients.h"
#include "tests/sim/cluster.h"
#include "tests/sim/coordinator_host.h"

namespace swax::sim {
namespace {

constexpr uint32_t kSlots = 2;
constexpr int kStrikeTries = 240;
constexpr int64_t kSubmitMs = kSafetyMs - 8 * 60'000;

class Simulation {
 public:
  Simulation(uint64_t seed, Canary canary, bool trace)
      : world_(seed, canary, trace),
        swarm_(draw_swarm(world_)),
        jobs_(draw_jobs(world_, swarm_.jobs, kSubmitMs)),
        oracle_(world_, swarm_, jobs_, kSlots),
        store_(oracle_),
        network_(world_, swarm_),
        cluster_(world_, swarm_, jobs_, store_, oracle_),
        coordinator_(world_, swarm_, network_, store_, oracle_),
        clients_(world_, network_, oracle_, jobs_) {
    network_.set_coordinator(
        [this](uint64_t peer, const pb::Envelope& e) { coordinator_.deliver(peer, e); });
    for (int i = 0; i < swarm_.agents; ++i) {
      agents_.push_back(
          std::make_unique<AgentHost>(world_, network_, oracle_, cluster_, i, kSlots));
      cluster_.add_agent(agents_.back().get());
    }
    impostor_ = network_.add_endpoint([](const pb::Envelope&) {});
  }

  RunResult run() {
    coordinator_.start();
    for (const auto& agent : agents_)
      world_.after(world_.between(0, 3000), [&agent] { agent->start(); });
    clients_.start();
    plan_faults();
    world_.run_until(kSafetyMs, [] { return false; });
    world_.stop_faults();
    network_.heal();
    world_.run_until(kSafetyMs + kLivenessMs, [this] { return at_rest(); });
    if (!world_.violated() && !at_rest()) world_.violation("convergence", unrest());
    if (!world_.violated()) oracle_.at_end();
    return {.hash = world_.hash(),
            .counts = world_.counts(),
            .checker = world_.checker(),
            .violation = world_.violation_text(),
            .events = world_.events(),
            .attempts = oracle_.attempts(),
            .commits = oracle_.commits(),
            .growths = oracle_.growths(),
            .jobs = jobs_.size(),
            .rest_ms = world_.now() - kSafetyMs};
  }

 private:
  AgentHost& random_agent() { return *agents_[world_.below(agents_.size())]; }

  // One whose ranks run, when there is one.
  AgentHost* busy_agent() {
    std::vector<AgentHost*> busy;
    for (const auto& agent : agents_) {
      const auto& attempts = agent->state().attempts;
      const bool runs = std::any_of(attempts.begin(), attempts.end(), [](const auto& attempt) {
        return attempt.second.phase == agent::Phase::kRunning;
      });
      if (agent->alive() && runs) busy.push_back(agent.get());
    }
    return busy.empty() ? nullptr : busy[world_.below(busy.size())];
  }

  void every(int64_t mean_ms, const std::function<void()>& strike) {
    if (mean_ms == 0) return;
    world_.after(world_.between(mean_ms / 2, mean_ms * 3 / 2), [this, mean_ms, strike] {
      if (!world_.faults_on()) return;
      strike();
      every(mean_ms, strike);
    });
  }

  void plan_faults() {
    plan_coordinator_faults();
    plan_network_faults();
    every(swarm_.agent_crash_ms, [this] {
      world_.fired(Fault::kAgentCrash);
      random_agent().crash(world_.between(500, world_.chance(0.3) ? 60'000 : 4000));
    });
    every(swarm_.agent_crash_at_ms, [this] {
      constexpr std::array<Fault, 7> kPoints = {
          Fault::kAgentCrashReceive, Fault::kAgentCrashJournal, Fault::kAgentCrashJournal,
          Fault::kAgentCrashSynced,  Fault::kAgentCrashSynced,  Fault::kAgentCrashSend,
          Fault::kAgentCrashSent};
      random_agent().crash_at(kPoints[world_.below(kPoints.size())]);
    });
    every(swarm_.agent_pause_ms, [this] {
      world_.fired(Fault::kAgentPause);
      random_agent().pause(world_.between(500, 20'000));
    });
    every(swarm_.agent_stop_ms, [this] {
      world_.fired(Fault::kAgentStop);
      random_agent().handle(agent::StopSignal{.checkpoint = world_.chance(0.7)});
    });
    every(swarm_.rank_crash_ms, [this] { strike_rank(Fault::kRankCrash, kStrikeTries); });
    every(swarm_.rank_crash_at_ms, [this] {
      constexpr std::array<Fault, 4> kPoints = {Fault::kRankCrashReceive, Fault::kRankCrashReceive,
                                                Fault::kRankCrashJournal, Fault::kRankCrashSend};
      const Fault point = kPoints[world_.below(kPoints.size())];
      cluster_.crash_at(point);
      if (point == Fault::kRankCrashReceive) tell_ranks(kStrikeTries);
    });
    every(swarm_.rank_exit_ms, [this] { strike_rank(Fault::kRankExit, kStrikeTries); });
    every(swarm_.rank_hang_ms, [this] { strike_rank(Fault::kRankHang, kStrikeTries); });
    every(swarm_.impostor_ms, [this] { claim_a_name(); });
    every(swarm_.outage_ms, [this] { cut_power(); });
  }

  // Of all but one or two: what asks for more goes on with fewer ranks, and grows back.
  void cut_power() {
    world_.fired(Fault::kOutage);
    const size_t first = world_.below(agents_.size()), spared = 1 + world_.below(2);
    for (size_t i = spared; i < agents_.size(); ++i)
      agents_[(first + i) % agents_.size()]->crash(world_.between(20'000, 60'000));
  }

  // Waits a while for ranks that train.
  void strike_rank(Fault fault, int tries) {
    if (!world_.faults_on() || cluster_.strike(fault) || tries <= 1) return;
    world_.after(1000, [this, fault, tries] { strike_rank(fault, tries - 1); });
  }

  // All that ranks ever hear while they train is that they should leave.
  void tell_ranks(int tries) {
    if (!world_.faults_on()) return;
    if (AgentHost* agent = busy_agent()) return agent->handle(agent::StopSignal{});
    if (tries > 1) world_.after(1000, [this, tries] { tell_ranks(tries - 1); });
  }

  void plan_coordinator_faults() {
    every(swarm_.coordinator_crash_ms, [this] {
      constexpr std::array<Fault, 4> kPoints = {Fault::kCrashReceive, Fault::kCrashJournal,
                                                Fault::kCrashJournal, Fault::kCrashSend};
      coordinator_.crash_at(kPoints[world_.below(kPoints.size())]);
    });
    every(swarm_.coordinator_pause_ms, [this] {
      world_.fired(Fault::kCoordinatorPause);
      coordinator_.pause(world_.between(500, 60'000));
    });
    every(swarm_.clock_jump_ms, [this] {
      world_.fired(Fault::kClockJump);
      world_.jump_wall(world_.between(-3'600'000, 3'600'000));
    });
  }

  void plan_network_faults() {
    every(swarm_.partition_one_way_ms, [this] {
      world_.fired(Fault::kPartitionOneWay);
      const bool up = world_.chance(0.5);
      network_.cut(random_agent().endpoint(), up, !up, world_.between(1000, 60'000));
    });
    every(swarm_.partition_full_ms, [this] {
      world_.fired(Fault::kPartitionFull);
      const int64_t for_ms = world_.between(1000, 60'000);
      if (world_.chance(0.2)) {  // the coordinator is the one that is cut off
        for (const auto& agent : agents_) network_.cut(agent->endpoint(), true, true, for_ms);
      } else {
        network_.cut(random_agent().endpoint(), true, true, for_ms);
      }
    });
  }

  // A second worker, with a state folder of its own, under a name that is taken.
  void claim_a_name() {
    world_.fired(Fault::kImpostor);
    pb::Envelope e;
    e.set_node(random_agent().node());
    e.set_incarnation(1 + world_.below(100));
    e.set_sequence(1);
    e.mutable_hello()->set_state_id("impostor");
    e.mutable_hello()->set_slots(kSlots);
    e.mutable_hello()->set_store_nonce(kNonce);
    network_.reconnect(impostor_);
    network_.send_to_coordinator(impostor_, std::move(e));
  }

  bool at_rest() const {
    const bool jobs = std::all_of(jobs_.begin(), jobs_.end(),
                                  [this](const auto& job) { return oracle_.ended(job.first); });
    const bool agents = std::all_of(agents_.begin(), agents_.end(),
                                    [](const auto& agent) { return agent->idle(); });
    return jobs && agents && clients_.satisfied() && coordinator_.alive() &&
           oracle_.ranks_running() == 0;
  }

  std::string unrest() const {
    std::string text = "not at rest:";
    for (const auto& [name, job] : jobs_)
      if (!oracle_.ended(name)) text += " " + name + " " + oracle_.state(name);
    for (const auto& agent : agents_)
      if (!agent->idle()) text += " " + agent->node() + (agent->alive() ? " is busy" : " is dead");
    if (!clients_.satisfied()) text += " a client has no answer";
    return text + ", " + to_text(uint64_t{oracle_.ranks_running()}) + " ranks run";
  }

  World world_;
  const Swarm swarm_;
  const SimJobs jobs_;
  Oracle oracle_;
  Store store_;
  Network network_;
  Cluster cluster_;
  CoordinatorHost coordinator_;
  Clients clients_;
  std::vector<std::unique_ptr<AgentHost>> agents_;
  size_t impostor_ = 0;
};

}  // namespace

const char* canary_name(Canary canary) {
  constexpr std::array<const char*, kCanaries> kNames = {"none",
                                                         "send_before_sync",
                                                         "old_epoch_accepted",
                                                         "commit_rank_missing",
                                                         "command_not_repeated",
                                                         "retention_before_commit",
                                                         "budget_reset_by_hello",
                                                         "agent_not_synced"};
  return kNames[static_cast<size_t>(canary)];
}

RunResult simulate(uint64_t seed, Canary canary, bool trace) {
  return Simulation(seed, canary, trace).run();
}

std::string repeat_line(uint64_t seed, Canary canary) {
  std::string line = "swax_sim --seed " + to_text(seed) + " --runs 1 --trace";
  if (canary != Canary::kNone) line += std::string(" --canary ") + canary_name(canary);
  return line;
}

}  // namespace swax::sim
