// Writes reports to the attempt's record log (storage/record_log) on a thread of its own. The queue
// between is bounded and preallocated: the compute thread waits only when 256 steps are unwritten.
// Threads: step() and validation() from the compute thread; event(), hello() and done() from any.
#pragma once

#include <memory>
#include <string>

#include "proto/record.pb.h"
#include "worker/train/reports.h"

namespace swax {

class RecordReporter final : public ReportSink {
 public:
  static Result<std::unique_ptr<RecordReporter>> create(const std::string& path, uint64_t epoch,
                                                        int world_size,
                                                        std::vector<std::string> state_names);
  ~RecordReporter() override;  // writes what is queued
  void step(const StepReport& report) override;
  void validation(const ValidationReport& report) override;
  void event(std::string_view kind, int64_t step, std::string_view text) override;
  void write(const pb::RankReport& report);  // waits for the queue, then writes and syncs

 private:
  struct Impl;
  explicit RecordReporter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace swax
