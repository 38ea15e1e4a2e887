// A job that runs on fewer ranks than it asks for, because slots were missing, goes back to more.
//   When     There is room for a larger allowed number, its own slots counted as free, for
//            grow_after_ms in a row, and no other job waits that the live workers could run. Then
//            its attempt is told to save and leave (reconcile repeats it), the room is kept from
//            all jobs behind it, and the next attempt is placed at once; it costs no budget.
//   How often  Each growth doubles the time that the next one waits, up to 64-fold; a grown attempt
//            that has run that long begins anew. One that ends badly and without progress gives the
//            ranks back: a bad node must not cost a job that runs without it.
//   Whether  At best (twice the ranks, half the time) it must save more than two of the longest
//            starts known, one of them for the save, before the job ends or the workers are taken
//            away. Never where nothing is saved, or when the newest save failed.
#include <algorithm>

#include "coordinator/core/internal.h"
#include "jobs/schedule.h"
#include "jobs/spec.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

constexpr uint64_t kDoublingsMax = 6;

int64_t pause_ms(const Context& ctx, uint64_t times) {
  return ctx.config.grow_after_ms << std::min(times, kDoublingsMax);
}

bool is_small(const Job& job, const AttemptLive& live) {
  return job.state == JobState::kRunning && live.grow_to == 0 && live.ends.empty() &&
         job.ranks.size() < ranks_asked(job);
}

// An attempt whose spec was changed under it does not know: that it saves is shown by a commit.
bool saves(const Job& job, const AttemptLive& live) {
  const bool known = job.changed_epoch != job.epoch || job.progress_epoch == job.epoch;
  return known && job.spec.checkpoint().enable() && !live.save_failed && !commit_pending(live);
}

// In BACKOFF too: it will want its slots back in a moment.
bool others_wait(const State& state) {
  const auto& active = state.durable.active;
  return std::any_of(active.begin(), active.end(), [&state](const std::string& name) {
    const Job& job = state.durable.jobs.at(name);
    return !job.attempt_live && !job.stop && could_run(state, job);
  });
}

// Needs that go down to what is left.
void give_back(const TakenByNode& needs, TakenByNode* taken) {
  for (const auto& [node, had] : needs) {
    Taken& here = (*taken)[node];
    here.slots -= std::min(here.slots, had.slots);
    here.bytes -= std::min(here.bytes, had.bytes);
  }
}

std::vector<pb::RankPlacement> find_larger_place(const Context& ctx, Floor floor, const Job& job) {
  give_back(needs_of(job, job.ranks), &floor.taken);
  std::vector<int> allowed = allowed_ranks(job.spec);
  std::reverse(allowed.begin(), allowed.end());
  for (const int number : allowed) {
    const auto ranks = static_cast<uint64_t>(number);
    if (ranks > ranks_asked(job)) continue;
    if (ranks <= job.ranks.size()) break;
    auto places = find_place(ctx, floor, job, ranks);
    if (!places.empty()) return places;
  }
  return {};
}

// Whether there was room for that many all the time.
bool room_lasted(const Context& ctx, AttemptLive& live, uint64_t ranks, uint64_t times) {
  if (ranks > live.room_ranks) live.room_since_ms = ctx.now();
  live.room_ranks = ranks;
  return ranks > 0 && ctx.now() - live.room_since_ms >= pause_ms(ctx, times);
}

bool worth_it(const Context& ctx, const Job& job, const AttemptLive& live, uint64_t ranks) {
  const int64_t steps = total_steps(job.spec) - static_cast<int64_t>(live.step);
  const double step_ms = static_cast<double>(live.last_step.step_ns()) / 1e6;
  const double left_ms = std::min(static_cast<double>(steps) * step_ms,
                                  static_cast<double>(ctx.config.leave_at_ms - ctx.now()));
  const double share = 1.0 - static_cast<double>(job.ranks.size()) / static_cast<double>(ranks);
  const int64_t startup_ms = std::max(ctx.config.startup_ms, ctx.state.vol.startup_ms);
  return left_ms * share > 2.0 * static_cast<double>(startup_ms);
}

void ask_to_leave(Context& ctx, const Job& job, AttemptLive& live,
                  std::vector<pb::RankPlacement> places) {
  live.grow_to = places.size();
  Growth& growth = ctx.state.vol.growths[job.name];
  ++growth.times;
  growth.from = job.ranks.size();
  growth.failed = false;
  growth.places = std::move(places);
  note(ctx, job.name, "growing", live.step,
       to_text(uint64_t{job.ranks.size()}) + " of " + to_text(ranks_asked(job)) +
           " ranks: room for " + to_text(live.grow_to));
  for (const std::string& node : nodes_of(job))
    for (Command& command : reconcile(ctx.state, ctx.config, node))
      ctx.out.commands.push_back(std::move(command));
}

// A larger gang that runs for as long as the next growth would wait.
void forget_proven(Context& ctx) {
  const State& state = ctx.state;
  std::erase_if(ctx.state.vol.growths, [&](const auto& entry) {
    const auto& [name, growth] = entry;
    const auto live = state.vol.live.find(name);
    if (live == state.vol.live.end()) return false;
    const Job& job = state.durable.jobs.at(name);
    return job.state == JobState::kRunning && job.ranks.size() > growth.from &&
           ctx.now() - live->second.started_ms >= pause_ms(ctx, growth.times);
  });
}

}  // namespace

void tick_growth(Context& ctx) {
  forget_proven(ctx);
  const State& state = ctx.state;
  std::vector<const Job*> smaller;
  for (const auto& [name, live] : state.vol.live) {
    const Job& job = state.durable.jobs.at(name);
    if (is_small(job, live)) smaller.push_back(&job);
  }
  if (smaller.empty()) return;
  std::sort(smaller.begin(), smaller.end(),
            [](const Job* a, const Job* b) { return comes_before(*a, *b); });
  const bool crowded = others_wait(state);
  Floor floor = look_around(ctx);
  for (const auto& [name, growth] : state.vol.growths)
    keep_room(state, state.durable.jobs.at(name), &floor.taken);
  for (const Job* job : smaller) {
    AttemptLive& live = ctx.state.vol.live.at(job->name);
    const Growth* before = find_growth(state, job->name);
    auto places = crowded ? std::vector<pb::RankPlacement>() : find_larger_place(ctx, floor, *job);
    const uint64_t ranks = places.size();
    if (!room_lasted(ctx, live, ranks, before == nullptr ? 0 : before->times)) continue;
    if (!saves(*job, live) || !worth_it(ctx, *job, live, ranks)) continue;
    ask_to_leave(ctx, *job, live, std::move(places));
    keep_room(state, *job, &floor.taken);
  }
}

const Growth* find_growth(const State& state, const std::string& job) {
  const auto it = state.vol.growths.find(job);
  return it == state.vol.growths.end() ? nullptr : &it->second;
}

void keep_room(const State& state, const Job& job, TakenByNode* taken) {
  const Growth* growth = find_growth(state, job.name);
  if (growth == nullptr || growth->places.empty() || job.stop) return;
  TakenByNode needs = needs_of(job, growth->places);
  if (job.attempt_live) give_back(needs_of(job, job.ranks), &needs);
  take(needs, taken);
}

void end_growth(Context& ctx, const Job& job, const AttemptLive& live, std::string_view result,
                bool progressed) {
  const auto it = ctx.state.vol.growths.find(job.name);
  if (it == ctx.state.vol.growths.end()) return;
  Growth& growth = it->second;
  if (result != "stopped") growth.places.clear();
  if (progressed) growth.failed = false;
  if (progressed || live.grow_to > 0 || result == "stopped") return;
  growth.failed = growth.failed || job.ranks.size() > growth.from;
}

}  // namespace swax::coord
