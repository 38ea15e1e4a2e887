#include "ops/cli/run_budget.h"

#include <algorithm>

#include "proto/base/text.h"

namespace swax {

BudgetVerdict count_attempt(const AttemptFacts& facts, pb::RunRecord* run) {
  const pb::FaultTolerance& limits = run->spec().fault_tolerance();
  const bool by_signal = facts.kind == GangEnd::Kind::kSignal || facts.kind == GangEnd::Kind::kLeft;
  const bool own = facts.hang || !by_signal;
  if (facts.progressed) run->set_no_progress(0);
  if (own && !facts.progressed) run->set_no_progress(run->no_progress() + 1);
  BudgetVerdict verdict;
  if (own && run->no_progress() >= limits.max_no_progress()) {
    verdict.exhausted =
        "fault_tolerance.max_no_progress=" + to_text(uint64_t{limits.max_no_progress()}) +
        " attempts in a row made no progress";
    return verdict;
  }
  if (run->restarts_since_commit() >= limits.max_restarts()) {
    verdict.exhausted = "fault_tolerance.max_restarts=" + to_text(uint64_t{limits.max_restarts()}) +
                        " restarts since the last committed checkpoint are used up";
    return verdict;
  }
  run->set_restarts_since_commit(run->restarts_since_commit() + 1);
  verdict.again = true;
  if (own) {
    const uint64_t doublings = run->no_progress() > 0 ? run->no_progress() - 1 : 0;
    verdict.wait_ms = std::min(kRetryWaitMsMax, kRetryWaitMs << std::min<uint64_t>(doublings, 6));
  }
  return verdict;
}

}  // namespace swax
