// What an end of an attempt means for its job: one table.
//   result         budget                      next attempt
//   stopped        none                        at once
//   signal, killed, node_lost                  at once            restarts_since_commit + 1
//   launch_failed                              after 1 s * 2^k    restarts_since_commit + 1
//   user_error, hang (and done in disorder)    after 1 s * 2^k    restarts + 1, no_progress + 1
//   numeric, config_error                      none: the job fails, another attempt does the same
// k counts attempts in a row: without progress, or that failed to launch.
#include <algorithm>
#include <array>

#include "coordinator/core/internal.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

constexpr int64_t kRetryMs = 1000, kRetryMsMax = 60000;

struct Rule {
  std::string_view result;
  bool fatal, restart, own;  // own: by its own exit code, a NaN or a hang
};
constexpr std::array<Rule, 9> kRules = {{
    {"stopped", false, false, false},
    {"signal", false, true, false},
    {"killed", false, true, false},
    {"node_lost", false, true, false},
    {"launch_failed", false, true, false},
    {"user_error", false, true, true},
    {"hang", false, true, true},
    {"numeric", true, false, true},
    {"config_error", true, false, false},
}};

Rule rule_of(std::string_view result) {
  for (const Rule& rule : kRules)
    if (rule.result == result) return rule;
  return {result, false, true, true};
}

int64_t delay_ms(uint64_t doublings) {
  return std::min(kRetryMsMax, kRetryMs << std::min<uint64_t>(doublings, 6));
}

void fail(Verdict* verdict, std::string reason) {
  verdict->job_end = "FAILED";
  verdict->reason = std::move(reason);
  verdict->delay_ms = 0;
}

}  // namespace

Verdict judge_end(const Job& job, std::string_view result, std::string_view why, bool progressed) {
  const pb::FaultTolerance& limits = job.spec.fault_tolerance();
  const Rule rule = rule_of(result);
  Verdict verdict;
  verdict.restarts_since_commit = job.restarts_since_commit;
  verdict.no_progress = progressed ? 0 : job.no_progress + (rule.own ? 1 : 0);
  if (job.stop) {
    verdict.job_end = job.stop->outcome();
    verdict.reason = "cancelled";
    return verdict;
  }
  if (rule.fatal) {
    fail(&verdict, std::string(result) + ": " + std::string(why));
    return verdict;
  }
  if (rule.own && verdict.no_progress >= limits.max_no_progress()) {
    fail(&verdict,
         "fault_tolerance.max_no_progress=" + to_text(uint64_t{limits.max_no_progress()}) +
             " attempts in a row made no progress; the last one ended with " + std::string(result) +
             ": " + std::string(why));
    return verdict;
  }
  if (rule.restart && job.restarts_since_commit >= limits.max_restarts()) {
    fail(&verdict, "fault_tolerance.max_restarts=" + to_text(uint64_t{limits.max_restarts()}) +
                       " restarts since the last committed checkpoint are used up; the last " +
                       "attempt ended with " + std::string(result) + ": " + std::string(why));
    return verdict;
  }
  if (rule.restart) ++verdict.restarts_since_commit;
  if (rule.own) verdict.delay_ms = delay_ms(verdict.no_progress > 0 ? verdict.no_progress - 1 : 0);
  if (result == "launch_failed") verdict.delay_ms = delay_ms(job.launch_failures);
  return verdict;
}

}  // namespace swax::coord
