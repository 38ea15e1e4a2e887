// Whether a run whose attempt ended starts another one, and when. Pure: the counters live in the
// RunRecord and are durable with it.
#pragma once

#include <cstdint>
#include <string>

#include "proto/record.pb.h"
#include "worker/agent/gang.h"

namespace swax {

constexpr int64_t kRetryWaitMs = 1000;  // the first wait, doubled by each further one
constexpr int64_t kRetryWaitMsMax = 60000;

struct AttemptFacts {
  GangEnd::Kind kind = GangEnd::Kind::kExit;
  bool hang = false;        // ended by us because no report came
  bool progressed = false;  // a step above every step before, or a commit
};

struct BudgetVerdict {
  bool again = false;
  int64_t wait_ms = 0;
  std::string exhausted;  // why not, when a budget is used up: "max_restarts=20 ..."
};

// For ends that another attempt may answer (not kDone, kNotFinite, kBadInput). Counts in `run`:
// no_progress goes up for attempts that ended by their own exit code or a hang without progress;
// restarts_since_commit for every restart. Ends by a signal are answered at once.
BudgetVerdict count_attempt(const AttemptFacts& facts, pb::RunRecord* run);

}  // namespace swax
