// Synthetic state folders: a run of a few small tensors whose values are functions of (tensor,
// element, step), with records, events and checkpoints as a real run leaves them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/cli/state_dir.h"
#include "proto/base/status.h"
#include "proto/record.pb.h"

namespace swax::test {

struct PlantedBit {
  int64_t step = 0;  // from this step on; 0: never
  int tensor = 0;    // index in state_tensors()
  int64_t element = 0;
};

struct StateOptions {
  int64_t steps = 40;
  int64_t digests_every = 1;  // 0: never
  std::vector<int64_t> checkpoints = {20, 40};
  PlantedBit planted{};
  bool planted_in_records = true;  // false: only the checkpoints differ
  double lr = 3e-3;
};

struct StateTensor {
  std::string name;
  std::vector<uint64_t> shape;
  int64_t elements() const;
};
const std::vector<StateTensor>& state_tensors();
float state_value(const StateOptions& options, int tensor, int64_t element, int64_t step);

pb::JobSpec state_spec(const StateOptions& options);
// Appends records of the job; their numbers, job and time are filled in. Nobody may have it open.
Status add_records(const StateDir& state, std::vector<pb::JobRecord> records);
// Makes the job's record of that number unreadable.
void damage_record(const StateDir& state, uint64_t number);
// Writes the whole folder; it must not exist.
Status make_state(const std::string& folder, const StateOptions& options);

}  // namespace swax::test
