#include "tests/storage/checkpoint_fixture.h"

#include <algorithm>
#include <bit>

#include "proto/base/hash.h"
#include "proto/base/text.h"

namespace swax::test {

std::vector<pb::CheckpointTensor> fixture_tensors() {
  const struct {
    const char* name;
    std::vector<uint64_t> shape;
  } table[] = {
      {"model/wide", {1100, 1024}}, {"model/tiny", {3, 7}},  {"model/scalar", {}},
      {"model/empty", {0, 5}},      {"adam_m/row", {40001}},
  };
  std::vector<pb::CheckpointTensor> tensors;
  for (const auto& row : table) {
    pb::CheckpointTensor tensor;
    tensor.set_id(static_cast<uint32_t>(tensors.size()));
    tensor.set_name(row.name);
    tensor.set_dtype("f32");
    for (const uint64_t extent : row.shape) tensor.add_shape(extent);
    tensors.push_back(tensor);
  }
  return tensors;
}

uint64_t elements_of(const pb::CheckpointTensor& tensor) {
  uint64_t count = 1;
  for (const uint64_t extent : tensor.shape()) count *= extent;
  return count;
}

float value_at(uint64_t step, uint32_t tensor, uint64_t element) {
  // Any 24 bits: exact as a float, different for every argument that a mix-up would swap.
  return static_cast<float>(mix_bits(step << 40 ^ uint64_t{tensor} << 32 ^ element) >> 40) - 8e6F;
}

std::pair<uint64_t, uint64_t> part_of(uint64_t elements, uint32_t rank, uint32_t world) {
  return {elements * rank / world, elements * (rank + 1) / world};
}

RankData::RankData(uint64_t step, uint32_t rank, uint32_t world) {
  for (const pb::CheckpointTensor& tensor : fixture_tensors()) {
    const auto [begin, end] = part_of(elements_of(tensor), rank, world);
    std::vector<float>& part = values.emplace_back();
    for (uint64_t i = begin; i < end; ++i) part.push_back(value_at(step, tensor.id(), i));
    ranges.push_back({.tensor_id = tensor.id(), .begin = begin, .data = part});
  }
}

pb::CheckpointManifest fixture_manifest(const CheckpointName& name,
                                        const std::vector<pb::RankShard>& ranks) {
  pb::CheckpointManifest manifest;
  manifest.set_job("test");
  manifest.set_step(name.step);
  manifest.set_epoch(name.epoch);
  manifest.set_world_size(static_cast<uint32_t>(ranks.size()));
  manifest.set_committed_ms(1700000000000);
  for (pb::CheckpointTensor tensor : fixture_tensors()) {
    const uint64_t name_hash = xxh3_64(tensor.name());
    uint64_t sums[2] = {0, 0};
    for (uint64_t i = 0; i < elements_of(tensor); ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(value_at(name.step, tensor.id(), i));
      for (int k = 0; k < 2; ++k) sums[k] += digest_mix(k, name_hash, i, bits);
    }
    tensor.set_digest0(sums[0]);
    tensor.set_digest1(sums[1]);
    *manifest.add_tensors() = tensor;
  }
  for (const pb::RankShard& rank : ranks) *manifest.add_ranks() = rank;
  return manifest;
}

Result<pb::RankShard> write_rank(const std::string& root, const CheckpointName& name, uint32_t rank,
                                 uint32_t world, bool read_back) {
  const RankData data(name.step, rank, world);
  return write_shard(
      {.ckpt_root = root, .name = name, .rank = rank, .world_size = world, .read_back = read_back},
      data.ranges);
}

Status save(const std::string& root, const CheckpointName& name, uint32_t world) {
  std::vector<pb::RankShard> ranks;
  for (uint32_t rank = 0; rank < world; ++rank) {
    SWAX_ASSIGN(ranks.emplace_back(), write_rank(root, name, rank, world));
  }
  return commit_checkpoint(root, fixture_manifest(name, ranks));
}

Status load_and_compare(const std::string& root, const CheckpointName& name, uint32_t readers) {
  for (uint32_t rank = 0; rank < readers; ++rank) {
    SWAX_ASSIGN(const auto reader, CheckpointReader::open(root, name));
    for (const pb::CheckpointTensor& tensor : fixture_tensors()) {
      const int id = reader->tensor_id(tensor.name());
      if (id != static_cast<int>(tensor.id())) return data_loss("id of " + tensor.name());
      const auto [begin, end] = part_of(elements_of(tensor), rank, readers);
      uint64_t piece = 1;  // 1, 8, 64, ... : many small reads, then reads over chunk borders
      for (uint64_t at = begin; at < end;) {
        std::vector<float> out(std::min(piece, end - at), -1.0F);
        SWAX_TRY(reader->read(tensor.id(), at, out));
        for (size_t i = 0; i < out.size(); ++i) {
          if (out[i] != value_at(name.step, tensor.id(), at + i)) {
            return data_loss(tensor.name() + " element " + to_text(at + i));
          }
        }
        at += out.size();
        piece = std::min<uint64_t>(piece * 8, 1 << 20);
      }
    }
  }
  return ok();
}

std::vector<std::string> good_checkpoints(const std::string& root) {
  std::vector<std::string> lines;
  const auto entries = list_checkpoints(root);
  if (!entries.ok()) return {entries.status().to_string()};
  for (const CheckpointEntry& entry : *entries) {
    if (entry.committed && entry.problem.empty()) lines.push_back(entry.name.folder());
  }
  return lines;
}

}  // namespace swax::test
