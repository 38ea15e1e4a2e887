#include "worker/train/state.h"

#include <algorithm>
#include <bit>

#include "jobs/state_digest.h"

namespace swax {

const char* state_kind_name(int kind) {
  constexpr const char* kNames[kStateKinds] = {"model", "adam_m", "adam_v"};
  return kNames[kind];
}

std::string state_tensor_name(const ModelShape& shape, int kind, int tensor) {
  return std::string(state_kind_name(kind)) + "/" + shape.tensors[tensor].name;
}

std::vector<StatePiece> state_pieces(const Layout& layout, int rank) {
  std::vector<StatePiece> pieces;
  int64_t unit_begin = 0;
  for (const UnitLayout& unit : layout.units) {
    for (const ShardPiece& piece : unit.pieces[rank])
      pieces.push_back({.tensor = piece.tensor,
                        .tensor_begin = piece.tensor_begin,
                        .elements = piece.elements,
                        .flat_begin = unit_begin + piece.shard_begin});
    unit_begin += unit.shard_elements;
  }
  std::sort(pieces.begin(), pieces.end(), [](const StatePiece& a, const StatePiece& b) {
    return a.tensor != b.tensor ? a.tensor < b.tensor : a.tensor_begin < b.tensor_begin;
  });
  return pieces;
}

StateTable::StateTable(const ModelShape& shape, const Layout& layout, int rank)
    : shape_(shape), pieces_(state_pieces(layout, rank)) {
  for (int kind = 0; kind < kStateKinds; ++kind) {
    for (size_t tensor = 0; tensor < shape.tensors.size(); ++tensor) {
      names_.push_back(state_tensor_name(shape, kind, static_cast<int>(tensor)));
      hashes_.push_back(xxh3_64(names_.back()));
    }
  }
}

void StateTable::digest(std::array<const float*, kStateKinds> flats,
                        std::span<DigestSums> sums) const {
  SWAX_CHECK(static_cast<int>(sums.size()) == tensors());
  std::fill(sums.begin(), sums.end(), DigestSums{});
  const int count = static_cast<int>(shape_.tensors.size());
  for (int kind = 0; kind < kStateKinds; ++kind) {
    for (const StatePiece& piece : pieces_) {
      const int id = kind * count + piece.tensor;
      const float* values = flats[kind] + piece.flat_begin;
      DigestSums part;
      for (int64_t i = 0; i < piece.elements; ++i) {
        const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
        const uint64_t element = static_cast<uint64_t>(piece.tensor_begin + i);
        part.sum0 += digest_mix(0, hashes_[id], element, bits);
        part.sum1 += digest_mix(1, hashes_[id], element, bits);
      }
      sums[id].sum0 += part.sum0;
      sums[id].sum1 += part.sum1;
    }
  }
}

Hash128 StateTable::run_digest(std::span<const DigestSums> sums, int64_t step) const {
  StateDigest digest;
  const size_t count = shape_.tensors.size();
  for (size_t id = 0; id < names_.size(); ++id)
    digest.add(names_[id], shape_.tensors[id % count].shape, sums[id].sum0, sums[id].sum1);
  return digest.finish(step);
}

std::vector<pb::CheckpointTensor> StateTable::manifest_tensors(
    std::span<const DigestSums> sums) const {
  std::vector<pb::CheckpointTensor> table;
  const size_t count = shape_.tensors.size();
  for (size_t id = 0; id < names_.size(); ++id) {
    pb::CheckpointTensor& t = table.emplace_back();
    t.set_id(static_cast<uint32_t>(id));
    t.set_name(names_[id]);
    t.set_dtype("f32");
    for (const int64_t dim : shape_.tensors[id % count].shape)
      t.add_shape(static_cast<uint64_t>(dim));
    t.set_digest0(sums[id].sum0);
    t.set_digest1(sums[id].sum1);
  }
  return table;
}

}  // namespace swax
