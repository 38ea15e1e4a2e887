// Follows the record log of one attempt: events go into the journal, steps are compared with
// earlier attempts, and what a person wants to see is kept.
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ops/cli/run_history.h"
#include "ops/cli/run_journal.h"
#include "ops/cli/state_dir.h"
#include "proto/base/clock.h"
#include "storage/record_log.h"

namespace swax {

struct AttemptProgress {
  std::optional<pb::HelloReport> hello;
  std::optional<pb::StepRecord> step;  // newest
  std::optional<pb::DoneReport> done;
  double step_ns = 0.0;  // mean of the newest steps; 0: unknown
  double tokens_per_s = 0.0;
  int64_t slowest_step_ms = 0;
  uint64_t committed_step = 0;  // newest checkpoint of this attempt
  int64_t committed_wall_ms = 0;
  bool progressed = false;  // a step above every step before, or a commit
  uint64_t divergences = 0;
  int64_t heard_ms = 0;  // monotonic time of the newest report
};

class ReportFollower {
 public:
  // on_event sees each event once it is in the journal (not yet on disk). What the journal already
  // has of this attempt is passed over silently.
  ReportFollower(const StateDir& state, uint64_t epoch, RunJournal& journal, StepBits& bits,
                 Clock& clock, std::function<void(const pb::EventRecord&)> on_event);
  // Takes over what has been written since. Events reach the disk before the call returns.
  void poll();
  const AttemptProgress& progress() const { return progress_; }

 private:
  void take(const pb::RankReport& report);
  void take_step(const pb::StepRecord& step);
  void take_validation(const pb::ValidationRecord& validation);
  void add_event(const pb::EventRecord& event);

  std::string path_;
  uint64_t epoch_;
  RunJournal& journal_;
  StepBits& bits_;
  Clock& clock_;
  std::function<void(const pb::EventRecord&)> on_event_;
  std::optional<RecordLogReader> reader_;
  bool damaged_ = false;
  bool fresh_events_ = false;
  uint64_t known_bytes_ = 0;  // of the log, in the journal since before
  int64_t written_ms_ = 0;
  AttemptProgress progress_;
};

}  // namespace swax
