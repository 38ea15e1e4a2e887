// Disks of the simulated processes: logs of batches as bytes with checksums. What is not synced
// when the process is killed with its machine may be lost or torn; reading stops at the first
// broken batch.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/types.h"
#include "tests/sim/world.h"
#include "worker/agent/core/types.h"

namespace swax::sim {

class Log {
 public:
  Log(World& world, Fault lost, Fault torn) : world_(world), lost_(lost), torn_(torn) {}
  void write(const std::string& payload);
  void sync() { synced_ = bytes_.size(); }
  void crash();
  std::vector<std::string> read();  // and cuts off what is broken

 private:
  World& world_;
  const Fault lost_, torn_;  // counted as these
  std::string bytes_;
  size_t synced_ = 0;
};

struct Batch {
  std::vector<pb::JobRecord> records;
  std::vector<coord::RequestAnswer> answers;
  std::vector<coord::ReportsTaken> taken;
  uint64_t coordinator_epoch = 0;  // not 0: a process begins
};

class Disk {  // the coordinator's journal
 public:
  explicit Disk(World& world) : log_(world, Fault::kWriteLost, Fault::kWriteTorn) {}
  void write(const Batch& batch);
  void sync() { log_.sync(); }
  void crash() { log_.crash(); }
  std::vector<Batch> read();

 private:
  Log log_;
};

class AgentDisk {  // a worker's state folder
 public:
  explicit AgentDisk(World& world) : log_(world, Fault::kAgentWriteLost, Fault::kAgentWriteTorn) {}
  void write(const agent::SaveOutbox& save);
  void sync() { log_.sync(); }
  void crash() { log_.crash(); }
  void load(agent::State* state);  // the durable parts

 private:
  Log log_;
};

}  // namespace swax::sim
