// What one seed turns on: each seed draws which faults exist in its world and how often they
// strike, so that the seeds together see calm worlds, single faults and everything at once.
#pragma once

#include "tests/sim/world.h"

namespace swax::sim {

struct Swarm {
  int agents = 6;
  int jobs = 12;
  // Network, per message.
  double drop = 0, duplicate = 0, reorder = 0;
  int64_t delay_min_ms = 1, delay_max_ms = 20;
  // Mean time between strikes; 0: never.
  int64_t partition_one_way_ms = 0, partition_full_ms = 0;
  int64_t agent_crash_ms = 0, agent_crash_at_ms = 0, agent_pause_ms = 0, agent_stop_ms = 0;
  int64_t rank_crash_ms = 0, rank_crash_at_ms = 0, rank_exit_ms = 0, rank_hang_ms = 0;
  int64_t coordinator_crash_ms = 0, coordinator_pause_ms = 0;
  int64_t clock_jump_ms = 0, impostor_ms = 0, outage_ms = 0;
  double save_failed = 0, commit_failed = 0;
  // Nothing but the coordinator ever fails: no attempt may end because of that.
  bool workers_calm = false;
};
Swarm draw_swarm(World& world);

}  // namespace swax::sim
