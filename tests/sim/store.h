// The store that all nodes see: shards and COMMITTED files of every job.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/types.h"
#include "tests/sim/oracle.h"

namespace swax::sim {

class Store {
 public:
  explicit Store(Oracle& oracle) : oracle_(oracle) {}
  void write_shard(const std::string& job, coord::SaveKey key, uint32_t rank, uint64_t bits);
  // COMMITTED over what lies there. Again: nothing changes.
  void commit(const std::string& job, coord::SaveKey key, uint32_t world_size);
  struct Loaded {
    uint64_t step = 0, bits = 0;
  };
  std::optional<Loaded> newest(const std::string& job) const;
  // With the number of ranks that wrote it.
  std::map<coord::SaveKey, uint32_t> committed(const std::string& job) const;
  std::vector<coord::SaveKey> retire(const std::string& job, int keep, int keep_promised);

 private:
  struct Save {
    std::map<uint32_t, uint64_t> shards;
    bool committed = false;
  };
  Oracle& oracle_;
  std::map<std::string, std::map<coord::SaveKey, Save>> saves_;
};

}  // namespace swax::sim
