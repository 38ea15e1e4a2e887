// The coordinator's disk: a log of batches as bytes with checksums. What is not synced when the
// process is killed with its machine may be lost or torn; reading stops at the first broken batch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/core/types.h"
#include "tests/sim/world.h"

namespace swax::sim {

struct Batch {
  std::vector<pb::JobRecord> records;
  std::vector<coord::RequestAnswer> answers;
  std::vector<coord::ReportsTaken> taken;
  uint64_t coordinator_epoch = 0;  // not 0: a process begins
};

class Disk {
 public:
  explicit Disk(World& world) : world_(world) {}
  void write(const Batch& batch);
  void sync() { synced_ = log_.size(); }
  void crash();
  std::vector<Batch> read();  // and cuts off what is broken

 private:
  World& world_;
  std::string log_;
  size_t synced_ = 0;
};

}  // namespace swax::sim
