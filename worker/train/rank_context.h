// What one rank works with. No globals: several of these may live in one process and on one GPU.
#pragma once

#include "kernels/backend.h"
#include "worker/comm/collectives.h"
#include "worker/model/arena.h"

namespace swax {

struct RankContext {
  Backend& backend;
  Stream& compute;
  Stream& comm;
  Arena& arena;
  Collectives& shard;    // ranks that share one copy of the state
  Collectives& replica;  // ranks with equal shards; size 1 until replicas exist
};

}  // namespace swax
