// The jobs of a world and what must come out of each: a run's bits after s steps follow from its
// spec alone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "proto/job.pb.h"
#include "tests/sim/swarm.h"

namespace swax::sim {

enum class JobKind { kNormal, kNumeric, kBadData, kCrashLoop };

struct SimJob {
  std::string name;
  JobKind kind = JobKind::kNormal;
  pb::JobSpec spec;
  int64_t step_ms = 2000;
  uint64_t fail_step = 0;  // kNumeric
  int64_t submit_ms = 0;
  int64_t cancel_ms = -1;  // -1: never
  bool cancel_now = false;
  int64_t resume_ms = -1;
  std::vector<uint64_t> bits;  // after s steps, s = 0..steps
  uint64_t steps() const { return bits.size() - 1; }
};
using SimJobs = std::map<std::string, SimJob>;

// Submitted over the first `span_ms`.
SimJobs draw_jobs(World& world, int count, int64_t span_ms);
std::string digest_text(uint64_t bits);

}  // namespace swax::sim
