// Small checkpoints of known values for the checkpoint tests: a value is a function of (step,
// tensor, element), so that any reader can check any part. Used by the tests and by the program
// that the crash tests kill.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "storage/checkpoint_store.h"

namespace swax::test {

// Shapes: one chunk and a bit, tiny, scalar, empty, a vector.
std::vector<pb::CheckpointTensor> fixture_tensors();
uint64_t elements_of(const pb::CheckpointTensor& tensor);
float value_at(uint64_t step, uint32_t tensor, uint64_t element);
// Elements [first, second) of a tensor that `rank` of `world` holds.
std::pair<uint64_t, uint64_t> part_of(uint64_t elements, uint32_t rank, uint32_t world);

// Values of one rank, kept alive beside the ranges that point into them.
struct RankData {
  RankData(uint64_t step, uint32_t rank, uint32_t world);
  std::vector<std::vector<float>> values;
  std::vector<ShardRange> ranges;
};

// The manifest that a coordinator would commit, digests computed from value_at.
pb::CheckpointManifest fixture_manifest(const CheckpointName& name,
                                        const std::vector<pb::RankShard>& ranks);
Result<pb::RankShard> write_rank(const std::string& root, const CheckpointName& name, uint32_t rank,
                                 uint32_t world, bool read_back = false);
// All ranks, then COMMITTED.
Status save(const std::string& root, const CheckpointName& name, uint32_t world);
// Reads every tensor in `readers` parts of uneven pieces and compares every value.
Status load_and_compare(const std::string& root, const CheckpointName& name, uint32_t readers);

// Lists "step-000000001.a1 good" or "... PROBLEM" per entry, newest first.
std::vector<std::string> good_checkpoints(const std::string& root);

}  // namespace swax::test
