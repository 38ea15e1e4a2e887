// The bits of each step as attempts recorded them. A step that a later attempt makes again must
// have the same bits: a difference is a hardware fault (or a bug), found for free. Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/cli/state_dir.h"
#include "proto/record.pb.h"

namespace swax {

struct Divergence {
  uint64_t step = 0, earlier_epoch = 0, later_epoch = 0;
  std::string text;  // what differs, with both values
};

class StepBits {
 public:
  // Steps above steps_max are ignored: a run never makes them.
  explicit StepBits(uint64_t steps_max) : steps_max_(steps_max) {}

  // Takes the records of all attempts before `epoch`. A damaged or torn log counts as far as it can
  // be read; what is wrong with it is returned, one line a log.
  std::vector<std::string> load_before(const StateDir& state, uint64_t epoch);

  // Remembers the first record of a step and compares each later one with it.
  std::optional<Divergence> add(const pb::StepRecord& record);

 private:
  struct Bits {
    uint64_t epoch = 0;  // 0: no record
    uint64_t loss = 0, norm = 0;
    uint64_t digests_epoch = 0;  // 0: no digests
    uint64_t digests = 0;        // hash over all tensors' digests
  };
  uint64_t steps_max_ = 0;
  std::vector<Bits> steps_;
};

}  // namespace swax
