#include <algorithm>

#include "coordinator/core/internal.h"
#include "proto/base/check.h"

namespace swax::coord {

void record(Context& ctx, const std::string& job, pb::JobRecord r) {
  Durable& durable = ctx.state.durable;
  const auto it = durable.jobs.find(job);
  r.set_job(job);
  r.set_number(it == durable.jobs.end() ? 1 : it->second.records + 1);
  r.set_wall_ms(ctx.event.wall_ms);
  const auto problem = apply_record(durable, r);
  SWAX_CHECK(!problem);
  ctx.out.records.push_back(std::move(r));
}

void note(Context& ctx, const std::string& job, std::string kind, uint64_t step, std::string text) {
  const Job* j = find_job(ctx.state, job);
  if (j == nullptr) return;
  AttemptLive* live = find_live(ctx.state, job);
  if (live != nullptr && ++live->noted > ctx.config.noted_max) return;
  pb::JobRecord r;
  pb::EventNoted& noted = *r.mutable_noted();
  noted.set_kind(std::move(kind));
  noted.set_epoch(j->epoch);
  noted.set_step(step);
  noted.set_text(std::move(text));
  record(ctx, job, std::move(r));
}

Job* find_job(State& state, const std::string& name) {
  if (state.durable.held.contains(name)) return nullptr;
  const auto it = state.durable.jobs.find(name);
  return it == state.durable.jobs.end() ? nullptr : &it->second;
}

AttemptLive* find_live(State& state, const std::string& job) {
  const auto it = state.vol.live.find(job);
  return it == state.vol.live.end() ? nullptr : &it->second;
}

void address(State& state, const Config& config, const Worker& worker, pb::Envelope* envelope) {
  envelope->set_cluster_id(config.cluster_id);
  envelope->set_coordinator_epoch(state.durable.coordinator_epoch);
  envelope->set_node(worker.node);
  envelope->set_incarnation(worker.incarnation);
  envelope->set_sequence(++state.vol.sequence);
}

void send_to(Context& ctx, const Worker& worker, pb::Envelope envelope) {
  address(ctx.state, ctx.config, worker, &envelope);
  ctx.out.commands.emplace_back(Send{.peer = worker.peer, .envelope = std::move(envelope)});
}

std::set<std::string> nodes_of(const Job& job) {
  std::set<std::string> nodes;
  for (const pb::RankPlacement& rank : job.ranks) nodes.insert(rank.node());
  return nodes;
}

bool hosts(const Job& job, std::string_view node) {
  return std::any_of(job.ranks.begin(), job.ranks.end(),
                     [node](const pb::RankPlacement& r) { return r.node() == node; });
}

bool reports(const Worker& worker, const std::string& job, uint64_t epoch) {
  const auto it = worker.attempts.find({job, epoch});
  return it != worker.attempts.end() && it->second.phase() != "ended";
}

bool may_return(const Context& ctx, const std::string& node) {
  const Volatile& vol = ctx.state.vol;
  const auto it = vol.workers.find(node);
  if (it == vol.workers.end()) return ctx.now() < vol.return_by_ms;
  return it->second.away && ctx.now() < it->second.return_by_ms;
}

bool wanted(const State& state, const Job& job, const std::string& node) {
  if (!job.attempt_live || !hosts(job, node)) return false;
  if (job.stop && job.stop->now()) return false;
  const auto live = state.vol.live.find(job.name);
  return live == state.vol.live.end() || live->second.bad_end_ms < 0;
}

}  // namespace swax::coord
