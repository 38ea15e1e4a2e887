#include "tests/sim/swarm.h"

namespace swax::sim {
namespace {

constexpr int64_t kMinute = 60'000;

int64_t maybe(World& world, double p, int64_t low_ms, int64_t high_ms) {
  const bool on = world.chance(p);
  const int64_t mean = world.between(low_ms, high_ms);
  return on ? mean : 0;
}

double maybe_rate(World& world, double p, double most) {
  const bool on = world.chance(p);
  const double rate = most * unit_open_closed(world.word());
  return on ? rate : 0.0;
}

}  // namespace

Swarm draw_swarm(World& world) {
  Swarm s;
  s.agents = static_cast<int>(world.between(6, 8));
  s.jobs = static_cast<int>(world.between(14, 28));
  s.delay_max_ms = world.between(2, 60);
  const uint64_t mood = world.below(10);
  if (mood == 0) {  // calm
    s.workers_calm = true;
    return s;
  }
  s.coordinator_crash_ms = maybe(world, 0.8, kMinute, 6 * kMinute);
  s.coordinator_pause_ms = maybe(world, 0.5, 3 * kMinute, 15 * kMinute);
  s.clock_jump_ms = maybe(world, 0.5, 5 * kMinute, 20 * kMinute);
  if (mood == 1) {
    s.workers_calm = true;
    return s;
  }
  s.commit_failed = maybe_rate(world, 0.4, 0.2);
  s.save_failed = maybe_rate(world, 0.4, 0.1);
  s.drop = maybe_rate(world, 0.6, 0.15);
  s.duplicate = maybe_rate(world, 0.6, 0.2);
  s.reorder = maybe_rate(world, 0.6, 0.2);
  s.partition_one_way_ms = maybe(world, 0.5, 4 * kMinute, 20 * kMinute);
  s.partition_full_ms = maybe(world, 0.5, 4 * kMinute, 20 * kMinute);
  s.agent_crash_ms = maybe(world, 0.6, 4 * kMinute, 20 * kMinute);
  s.agent_crash_at_ms = maybe(world, 0.6, kMinute, 6 * kMinute);
  s.agent_pause_ms = maybe(world, 0.5, 4 * kMinute, 20 * kMinute);
  s.agent_stop_ms = maybe(world, 0.5, 6 * kMinute, 20 * kMinute);
  s.rank_crash_ms = maybe(world, 0.7, 3 * kMinute, 12 * kMinute);
  s.rank_crash_at_ms = maybe(world, 0.6, 3 * kMinute, 10 * kMinute);
  s.rank_exit_ms = maybe(world, 0.6, 4 * kMinute, 15 * kMinute);
  s.rank_hang_ms = maybe(world, 0.6, 4 * kMinute, 15 * kMinute);
  s.impostor_ms = maybe(world, 0.3, 5 * kMinute, 20 * kMinute);
  s.outage_ms = maybe(world, 0.6, 3 * kMinute, 10 * kMinute);
  return s;
}

}  // namespace swax::sim
