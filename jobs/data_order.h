// Which tokens a slot of a step reads: a closed formula of (spec, sizes, g = step * B + slot). No
// loader state exists. Mixture: weights -> integers with sum kMixPeriod, a period table by largest
// deficit; order inside a source and epoch: a keyed Feistel permutation (6 rounds, >= 16-bit
// domain, cycle walking). Golden vectors in the test: changing it would reorder running jobs.
// Source: design 3, research storage-data 3.4. Threads: const after make_data_order.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/base/status.h"
#include "proto/job.pb.h"

namespace swax {

constexpr int64_t kMixPeriod = 4096;

struct SampleRef {
  int source = 0;  // index in spec.data.sources
  int64_t epoch = 0;
  int64_t window = 0;  // tokens [window * T, window * T + T + 1) of the source's training split
};

uint64_t feistel(uint64_t key, uint64_t n, uint64_t index);  // bijection of [0, n)
uint64_t feistel_inverse(uint64_t key, uint64_t n, uint64_t value);

class DataOrder {
 public:
  SampleRef at(uint64_t g) const;
  int64_t windows(int source) const { return windows_[source]; }
  const std::vector<int>& period() const { return period_; }

 private:
  friend Result<DataOrder> make_data_order(const pb::JobSpec&, const std::vector<int64_t>&);
  uint64_t seed_ = 0;
  bool permute_ = true;
  std::vector<int64_t> windows_;         // per source
  std::vector<int64_t> per_period_;      // per source: its samples in one period
  std::vector<int> period_;              // [kMixPeriod] source
  std::vector<int64_t> rank_in_period_;  // [kMixPeriod] earlier samples of the source in the period
};

// train_tokens[s]: tokens of the training split of source s. kInvalidArgument when a source has
// fewer than T + 1 tokens.
Result<DataOrder> make_data_order(const pb::JobSpec& spec,
                                  const std::vector<int64_t>& train_tokens);

}  // namespace swax
