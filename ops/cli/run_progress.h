// What `run`, `watch` and `submit --wait` show on stderr: on a terminal one redrawn line below the
// messages, elsewhere a plain line now and then. Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/base/clock.h"
#include "proto/record.pb.h"

namespace swax {

struct AttemptProgress {
  std::optional<pb::StepRecord> step;  // newest
  double step_ns = 0.0;                // mean of the newest steps; 0: unknown
  double tokens_per_s = 0.0;
  uint64_t committed_step = 0;  // newest checkpoint
  int64_t committed_wall_ms = 0;
};

class RunProgress {
 public:
  RunProgress(bool terminal, uint64_t total_steps, Clock& clock);
  ~RunProgress();  // leaves the cursor on a fresh line
  RunProgress(const RunProgress&) = delete;
  RunProgress& operator=(const RunProgress&) = delete;

  // A line of its own that stays.
  void say(const std::string& line);
  void event(const pb::EventRecord& event);
  // Whether update() would show this step now.
  bool due(uint64_t step) const { return due(step, clock_.monotonic_ms()); }
  void update(const AttemptProgress& progress);
  // The line without its time-dependent frequency; for tests.
  std::string line(const AttemptProgress& progress) const;

 private:
  bool due(uint64_t step, int64_t now_ms) const;
  void clear();

  bool terminal_;
  uint64_t total_steps_;
  Clock& clock_;
  int64_t started_ms_;
  int64_t shown_ms_ = 0;
  uint64_t shown_step_ = 0;
  bool drawn_ = false;
};

}  // namespace swax
