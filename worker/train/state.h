// The state of a run is (step, tensors): names, initial values, digests and the list of pieces a
// rank owns. Pure but for the vectors. Tensor names in digests and checkpoints: "model/<tensor>",
// "adam_m/<tensor>", "adam_v/<tensor>"; ids are kind * tensors + index.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "jobs/layout.h"
#include "proto/base/hash.h"
#include "proto/checkpoint.pb.h"

namespace swax {

constexpr int kStateKinds = 3;  // model, adam_m, adam_v
const char* state_kind_name(int kind);
std::string state_tensor_name(const ModelShape& shape, int kind, int tensor);

// A run of elements of a tensor inside this rank's flat shard (all units), in rising (tensor,
// tensor_begin).
struct StatePiece {
  int tensor = 0;
  int64_t tensor_begin = 0;
  int64_t elements = 0;
  int64_t flat_begin = 0;  // offset in the rank's flat shard
};
std::vector<StatePiece> state_pieces(const Layout& layout, int rank);

// Two sums per state tensor: [kind * tensors + index].
struct DigestSums {
  uint64_t sum0 = 0;
  uint64_t sum1 = 0;
  bool operator==(const DigestSums&) const = default;
};

class StateTable {
 public:
  StateTable(const ModelShape& shape, const Layout& layout, int rank);
  const std::vector<StatePiece>& pieces() const { return pieces_; }
  int tensors() const { return static_cast<int>(hashes_.size()); }  // kinds * model tensors
  uint64_t name_hash(int id) const { return hashes_[id]; }
  const std::string& name(int id) const { return names_[id]; }
  const ModelShape& shape() const { return shape_; }
  // Adds this rank's part of every tensor; flats[kind] is the rank's flat shard in host memory.
  // `sums` has tensors() entries, zeroed here.
  void digest(std::array<const float*, kStateKinds> flats, std::span<DigestSums> sums) const;
  // XXH3-128 over (name, dtype, shape, sums) in id order, then the step.
  Hash128 run_digest(std::span<const DigestSums> sums, int64_t step) const;
  std::vector<pb::CheckpointTensor> manifest_tensors(std::span<const DigestSums> sums) const;

 private:
  const ModelShape& shape_;
  std::vector<StatePiece> pieces_;
  std::vector<uint64_t> hashes_;
  std::vector<std::string> names_;
};

}  // namespace swax
