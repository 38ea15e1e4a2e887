// Bounded queue of step reports that the compute thread fills without allocating, and the messages
// made of them on another thread. Full: the oldest report is dropped and counted (AgentLink) or the
// caller waits (RecordReporter); the owner's mutex guards it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/record.pb.h"
#include "worker/train/reports.h"

namespace swax {

class StepQueue {
 public:
  static constexpr size_t kItems = 256;
  struct Item {
    StepReport report;
    int64_t wall_ms = 0;
    std::vector<DigestSums> digests;  // empty when the step has none
  };
  StepQueue() : items_(kItems) {}
  // Makes room for digests once, before the first push that carries them.
  void size_digests(size_t tensors);
  bool full() const { return count_ == kItems; }
  bool empty() const { return count_ == 0; }
  void push(const StepReport& report, int64_t wall_ms);  // drops the oldest when full
  bool pop(Item* out);
  int64_t dropped() const { return dropped_; }

 private:
  std::vector<Item> items_;
  size_t head_ = 0, count_ = 0;
  int64_t dropped_ = 0;
};

pb::StepRecord step_record(const StepReport& report, const std::vector<DigestSums>& digests,
                           const std::vector<std::string>& state_names, uint64_t epoch,
                           int world_size, int64_t wall_ms);
pb::ValidationRecord validation_record(const ValidationReport& report, uint64_t epoch);

}  // namespace swax
