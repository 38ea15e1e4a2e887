// Jobs by priority, then age. A gang is placed whole or not at all, on as few workers as possible.
// A job that does not fit now may be overtaken by smaller ones until it has waited
// reserve_after_ms; then slots are kept for it. When the live workers have too few slots for
// `ranks` for shrink_after_ms, fewer allowed ranks do.
#include <algorithm>

#include "coordinator/core/internal.h"
#include "jobs/spec.h"

namespace swax::coord {
namespace {

struct Room {
  const Worker* worker = nullptr;
  uint64_t free = 0;
  bool blamed = false;  // the job's last attempt ended badly there: taken last
};

bool usable(const Context& ctx, const Worker& worker) {
  return !worker.lost && ctx.now() - worker.heard_ms <= ctx.config.suspect_ms;
}

// A worker that runs what it should not gets nothing until that is gone: how many slots it takes is
// not known.
bool has_unwanted(const State& state, const Worker& worker) {
  for (const auto& [key, attempt] : worker.attempts) {
    if (attempt.phase() == "ended") continue;
    const auto job = state.durable.jobs.find(key.first);
    const bool current = job != state.durable.jobs.end() && job->second.attempt_live &&
                         job->second.epoch == key.second && hosts(job->second, worker.node);
    if (!current) return true;
  }
  return false;
}

std::set<std::string> builds(const State& state) {
  std::set<std::string> ids;
  for (const auto& [node, worker] : state.vol.workers) ids.insert(worker.build_id);
  return ids;
}

// What a held job runs there goes on, though nothing is live of it here. Workers whose attempt is
// not the one that its readable records tell of are left out as a whole: has_unwanted().
void take_held(const State& state, const Worker& worker, TakenByNode* taken) {
  for (const auto& [key, attempt] : worker.attempts) {
    if (attempt.phase() == "ended" || !state.durable.held.contains(key.first)) continue;
    const Job& job = state.durable.jobs.at(key.first);
    for (const pb::RankPlacement& rank : job.ranks) {
      if (rank.node() != worker.node) continue;
      Taken& here = (*taken)[worker.node];
      ++here.slots;
      here.bytes += planned_bytes(job, job.ranks.size());
    }
  }
}

// How many more ranks of `bytes` each the worker can take; 0 bytes: not known.
uint64_t free_for(const Worker& worker, const Taken& taken, uint64_t bytes) {
  const uint64_t slots = worker.slots - std::min<uint64_t>(worker.slots, taken.slots);
  if (bytes == 0 || worker.memory_bytes == 0) return slots;
  const uint64_t memory = worker.memory_bytes - std::min(worker.memory_bytes, taken.bytes);
  return std::min(slots, memory / bytes);
}

// One build only: ranks of different builds refuse to work together.
std::vector<Room> rooms_of(const Floor& floor, const std::string& build, const std::string& blamed,
                           uint64_t bytes) {
  std::vector<Room> rooms;
  for (const Worker* worker : floor.workers) {
    if (worker->build_id != build) continue;
    const auto it = floor.taken.find(worker->node);
    const uint64_t free = free_for(*worker, it == floor.taken.end() ? Taken{} : it->second, bytes);
    if (free > 0)
      rooms.push_back({.worker = worker, .free = free, .blamed = worker->node == blamed});
  }
  return rooms;
}

// The smallest single worker that has room for all, else the largest ones. Equal rooms by name.
std::vector<pb::RankPlacement> pack(std::vector<Room> rooms, uint64_t ranks) {
  std::stable_sort(rooms.begin(), rooms.end(), [ranks](const Room& a, const Room& b) {
    if (a.blamed != b.blamed) return b.blamed;
    const bool a_fits = a.free >= ranks, b_fits = b.free >= ranks;
    if (a_fits != b_fits) return a_fits;
    return a_fits ? a.free < b.free : a.free > b.free;
  });
  std::vector<pb::RankPlacement> places;
  for (const Room& room : rooms) {
    for (uint64_t i = 0; i < room.free && places.size() < ranks; ++i) {
      pb::RankPlacement place;
      place.set_rank(static_cast<uint32_t>(places.size()));
      place.set_node(room.worker->node);
      places.push_back(std::move(place));
    }
  }
  if (places.size() < ranks) places.clear();
  return places;
}

// The nodes of ranks that follow each other, with as many ranks on each of them; empty: not as
// many.
std::vector<std::string> even_nodes(const std::vector<pb::RankPlacement>& ranks, size_t each) {
  std::vector<std::string> nodes;
  for (size_t i = 0; i < ranks.size(); i += each) {
    for (size_t j = i; j < i + each; ++j)
      if (j >= ranks.size() || ranks[j].node() != ranks[i].node()) return {};
    nodes.push_back(ranks[i].node());
  }
  const std::set<std::string> distinct(nodes.begin(), nodes.end());
  return distinct.size() == nodes.size() ? nodes : std::vector<std::string>();
}

// Nodes that go on keep the numbers of their ranks, and who is new takes those that are free: what
// a spare replaces is one node's ranks, not a shift of all.
void keep_numbers(const Job& job, std::vector<pb::RankPlacement>* places) {
  const std::string& first = places->front().node();
  const auto each = static_cast<size_t>(
      std::count_if(places->begin(), places->end(),
                    [&first](const pb::RankPlacement& p) { return p.node() == first; }));
  const std::vector<std::string> old = even_nodes(job.ranks, each);
  const std::vector<std::string> nodes = even_nodes(*places, each);
  std::vector<std::string> order(nodes.size()), fresh;
  for (const std::string& node : nodes) {
    const auto index = static_cast<size_t>(std::find(old.begin(), old.end(), node) - old.begin());
    if (index < old.size() && index < order.size()) {
      order[index] = node;
    } else {
      fresh.push_back(node);
    }
  }
  auto next = fresh.begin();
  for (std::string& node : order)
    if (node.empty()) node = *next++;
  for (size_t i = 0; i < order.size() * each; ++i) (*places)[i].set_node(order[i / each]);
}

// Of one build, for ranks of `bytes` each, were nothing else running.
uint64_t slots_alive(const State& state, uint64_t bytes) {
  uint64_t best = 0;
  for (const std::string& build : builds(state)) {
    uint64_t slots = 0;
    for (const auto& [node, worker] : state.vol.workers)
      if (worker.build_id == build && !worker.lost) slots += free_for(worker, {}, bytes);
    best = std::max(best, slots);
  }
  return best;
}

bool too_few_slots(const State& state, const Job& job) {
  const uint64_t ranks = ranks_asked(job);
  return slots_alive(state, planned_bytes(job, ranks)) < ranks;
}

std::vector<pb::RankPlacement> find_smaller_place(const Context& ctx, const Floor& floor,
                                                  const Job& job) {
  std::vector<int> allowed = allowed_ranks(job.spec);
  std::reverse(allowed.begin(), allowed.end());
  for (const int ranks : allowed) {
    if (static_cast<uint64_t>(ranks) >= ranks_asked(job)) continue;
    auto places = find_place(ctx, floor, job, static_cast<uint64_t>(ranks));
    if (!places.empty()) return places;
  }
  return {};
}

void place(Context& ctx, const std::string& name, const std::vector<pb::RankPlacement>& places) {
  pb::JobRecord r;
  pb::AttemptPlaced& placed = *r.mutable_placed();
  placed.set_epoch(ctx.state.durable.jobs.at(name).epoch + 1);
  placed.set_lead(places.front().node());
  for (const pb::RankPlacement& rank : places) *placed.add_ranks() = rank;
  record(ctx, name, std::move(r));
  Volatile& vol = ctx.state.vol;
  AttemptLive live;
  live.started_ms = ctx.now();
  vol.live[name] = std::move(live);
  vol.retry_at_ms.erase(name);
  vol.waiting_since_ms.erase(name);
  const auto growth = vol.growths.find(name);
  if (growth != vol.growths.end()) growth->second.places.clear();
}

// Whether what is missing does not just need a moment to come up.
bool all_came(const Context& ctx) {
  return ctx.state.vol.workers.size() >= ctx.config.workers_expected ||
         ctx.now() >= ctx.config.expected_until_ms;
}

bool too_late(const State& state, const Config& config, int64_t now_ms) {
  return now_ms > config.leave_at_ms - std::max(config.startup_ms, state.vol.startup_ms);
}

// Jobs that want a place now, and those that leave for a larger one, in order.
std::vector<const Job*> queue(const State& state, int64_t now_ms) {
  std::vector<const Job*> jobs;
  for (const std::string& name : state.durable.active) {
    const Job& job = state.durable.jobs.at(name);
    if (job.stop || (job.attempt_live && state.vol.live.at(name).grow_to == 0)) continue;
    const auto retry = state.vol.retry_at_ms.find(name);
    if (retry != state.vol.retry_at_ms.end() && now_ms < retry->second) continue;
    jobs.push_back(&job);
  }
  std::sort(jobs.begin(), jobs.end(),
            [](const Job* a, const Job* b) { return comes_before(*a, *b); });
  return jobs;
}

// Who left for more ranks is content with the number that it left for; who came to nothing with
// them goes back to what it had.
std::vector<pb::RankPlacement> find_place_now(const Context& ctx, const Floor& floor,
                                              const Job& job) {
  const Growth* growth = find_growth(ctx.state, job.name);
  if (growth != nullptr && growth->failed) {
    auto places = find_place(ctx, floor, job, growth->from);
    if (!places.empty()) return places;
  }
  auto places = find_place(ctx, floor, job, ranks_asked(job));
  if (places.empty() && growth != nullptr && !growth->places.empty())
    places = find_place(ctx, floor, job, growth->places.size());
  return places;
}

}  // namespace

Floor look_around(const Context& ctx) {
  Floor floor;
  floor.builds = builds(ctx.state);
  for (const auto& [name, live] : ctx.state.vol.live) {
    const Job& job = ctx.state.durable.jobs.at(name);
    take(needs_of(job, job.ranks), &floor.taken);
  }
  for (const auto& [node, worker] : ctx.state.vol.workers) {
    if (!usable(ctx, worker) || has_unwanted(ctx.state, worker)) continue;
    floor.workers.push_back(&worker);
    take_held(ctx.state, worker, &floor.taken);
  }
  return floor;
}

std::vector<pb::RankPlacement> find_place(const Context& ctx, const Floor& floor, const Job& job,
                                          uint64_t ranks) {
  const auto it = ctx.state.vol.blamed.find(job.name);
  const std::string blamed = it == ctx.state.vol.blamed.end() ? "" : it->second;
  const uint64_t bytes = planned_bytes(job, ranks);
  for (const std::string& build : floor.builds) {
    auto places = pack(rooms_of(floor, build, blamed, bytes), ranks);
    if (places.empty()) continue;
    keep_numbers(job, &places);
    return places;
  }
  return {};
}

uint64_t ranks_asked(const Job& job) {
  return std::max<uint64_t>(1, job.spec.parallelism().ranks());
}

bool could_run(const State& state, const Job& job) {
  const std::vector<int> allowed = allowed_ranks(job.spec);
  return std::any_of(allowed.begin(), allowed.end(), [&](int number) {
    const auto ranks = static_cast<uint64_t>(number);
    return slots_alive(state, planned_bytes(job, ranks)) >= ranks;
  });
}

bool comes_before(const Job& a, const Job& b) {
  return a.priority != b.priority ? a.priority > b.priority : a.order < b.order;
}

uint64_t planned_bytes(const Job& job, uint64_t ranks) {
  const auto line = job.plan.find(ranks);
  return line == job.plan.end() ? 0 : line->second;
}

void take(const TakenByNode& needs, TakenByNode* taken) {
  for (const auto& [node, more] : needs) {
    Taken& here = (*taken)[node];
    here.slots += more.slots;
    here.bytes += more.bytes;
  }
}

TakenByNode needs_of(const Job& job, const std::vector<pb::RankPlacement>& ranks) {
  const uint64_t bytes = planned_bytes(job, ranks.size());
  TakenByNode needs;
  for (const pb::RankPlacement& rank : ranks) {
    Taken& here = needs[rank.node()];
    ++here.slots;
    here.bytes += bytes;
  }
  return needs;
}

void schedule(Context& ctx) {
  Volatile& vol = ctx.state.vol;
  std::vector<std::string> placed;
  Floor floor = look_around(ctx);
  vol.kept_for.clear();
  if (too_late(ctx.state, ctx.config, ctx.now())) return;
  for (const Job* job : queue(ctx.state, ctx.now())) {
    if (job->attempt_live) {
      keep_room(ctx.state, *job, &floor.taken);
      continue;
    }
    auto places = find_place_now(ctx, floor, *job);
    const int64_t since = vol.waiting_since_ms.try_emplace(job->name, ctx.now()).first->second;
    const bool patient = ctx.now() - since < ctx.config.shrink_after_ms;
    const Growth* growth = find_growth(ctx.state, job->name);
    const bool left_to_grow = growth != nullptr && !growth->places.empty();
    const bool too_small = too_few_slots(ctx.state, *job);
    if (places.empty() && (too_small || left_to_grow) && all_came(ctx) && !patient)
      places = find_smaller_place(ctx, floor, *job);
    if (!places.empty()) {
      placed.push_back(job->name);
      place(ctx, job->name, places);
      take(needs_of(*job, job->ranks), &floor.taken);
    } else if (left_to_grow && patient) {
      keep_room(ctx.state, *job, &floor.taken);
    } else if (!too_small && ctx.now() - since >= ctx.config.reserve_after_ms) {
      vol.kept_for = job->name;
      break;
    }
  }
  if (placed.empty()) return;
  for (Command& command : reconcile(ctx.state, ctx.config, "")) {
    const auto* send = std::get_if<Send>(&command);
    const bool fresh = send != nullptr && send->envelope.has_start_attempt() &&
                       std::find(placed.begin(), placed.end(),
                                 send->envelope.start_attempt().job()) != placed.end();
    if (fresh) ctx.out.commands.push_back(std::move(command));
  }
}

std::string waiting_reason(const State& state, const Config& config, const Job& job,
                           int64_t now_ms) {
  if (too_late(state, config, now_ms)) return "WaitingForTime";
  const auto retry = state.vol.retry_at_ms.find(job.name);
  if (retry != state.vol.retry_at_ms.end() && now_ms < retry->second) return "Backoff";
  if (too_few_slots(state, job)) return "WaitingForCapacity";
  const auto kept_for = state.durable.jobs.find(state.vol.kept_for);
  if (kept_for != state.durable.jobs.end() && comes_before(kept_for->second, job))
    return "HigherPriority";
  return "WaitingForSlots";
}

}  // namespace swax::coord
