#include "coordinator/core/internal.h"

namespace swax::coord {
namespace {

pb::StartAttempt start_attempt(const State& state, const Job& job) {
  pb::StartAttempt start;
  start.set_job(job.name);
  start.set_epoch(job.epoch);
  start.set_lead(job.lead);
  for (const pb::RankPlacement& rank : job.ranks) {
    pb::RankPlace& place = *start.add_ranks();
    place.set_rank(rank.rank());
    place.set_node(rank.node());
    const auto worker = state.vol.workers.find(rank.node());
    if (worker != state.vol.workers.end()) place.set_host(worker->second.host);
  }
  *start.mutable_spec() = job.spec;
  return start;
}

pb::StopAttempt stop_attempt(const Job& job, pb::StopMode mode) {
  pb::StopAttempt stop;
  stop.set_job(job.name);
  stop.set_epoch(job.epoch);
  stop.set_mode(mode);
  return stop;
}

// One message for one node of a live attempt, or none when nothing is to be said.
bool fill_message(const State& state, const Job& job, const Worker& worker, pb::Envelope* e) {
  const auto live = state.vol.live.find(job.name);
  const bool known = live != state.vol.live.end();
  if (known && live->second.ends.contains(worker.node)) return false;
  const bool grows = known && live->second.grow_to > 0;
  if (!wanted(state, job, worker.node)) {
    *e->mutable_stop_attempt() = stop_attempt(job, pb::STOP_KILL);
  } else if (job.stop || grows) {
    *e->mutable_stop_attempt() = stop_attempt(job, pb::STOP_CHECKPOINT);
  } else if (!reports(worker, job.name, job.epoch)) {
    *e->mutable_start_attempt() = start_attempt(state, job);
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::vector<Command> reconcile(State& state, const Config& config, const std::string& node) {
  std::vector<Command> commands;
  for (const std::string& name : state.durable.active) {
    const Job& job = state.durable.jobs.at(name);
    if (!job.attempt_live) continue;
    for (const std::string& place : nodes_of(job)) {
      if (!node.empty() && place != node) continue;
      const auto worker = state.vol.workers.find(place);
      if (worker == state.vol.workers.end() || worker->second.lost) continue;
      pb::Envelope e;
      if (!fill_message(state, job, worker->second, &e)) continue;
      address(state, config, worker->second, &e);
      commands.emplace_back(Send{.peer = worker->second.peer, .envelope = std::move(e)});
    }
  }
  return commands;
}

}  // namespace swax::coord
