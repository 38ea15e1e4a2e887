// Goal: the sum over slots is the stated tree and fold to the bit; the digest of a state depends on
// names, values and the step alone, whoever holds which part, and keeps its golden value.
#include <cmath>

#include "jobs/slot_plan.h"
#include "kernels/backend.h"
#include "tests/support/tensor_check.h"
#include "tests/worker/train_support.h"
#include "worker/train/slot_sum.h"
#include "worker/train/state.h"

namespace swax::test {
namespace {

pb::Model tiny_model() {
  pb::JobSpec spec;
  pb::Model& m = *spec.mutable_model();
  m.set_pattern("SM");
  m.set_layers(2);
  m.set_dim(12);
  m.set_vocab_size(19);
  m.set_heads(3);
  m.set_kv_heads(1);
  m.set_head_dim(4);
  m.set_mlstm_heads(2);
  m.set_mlstm_qk_dim(3);
  m.set_mlstm_v_dim(5);
  m.set_ff_dim(7);
  m.set_mlstm_chunk(4);
  m.set_norm_eps(1e-6);
  m.set_rope_base(1e4);
  return m;
}
ModelShape tiny_model_shape() {
  auto shape = model_shape(tiny_model());
  SWAX_CHECK(shape.ok());
  return std::move(shape).value();
}

// The definition: the binary tree over slots [begin, begin + size) that exist. -0 is not 0: an
// absent slot is skipped, never added.
std::vector<float> tree(const std::vector<std::vector<float>>& slots, size_t begin, size_t size) {
  if (begin >= slots.size()) return {};
  if (size == 1) return slots[begin];
  std::vector<float> left = tree(slots, begin, size / 2);
  const std::vector<float> right = tree(slots, begin + size / 2, size / 2);
  for (size_t i = 0; i < right.size(); ++i) left[i] = left[i] + right[i];
  return left;
}
std::vector<float> definition(const std::vector<std::vector<float>>& slots, size_t lanes) {
  std::vector<float> sum;
  for (size_t begin = 0; begin < slots.size(); begin += lanes) {
    const std::vector<float> group = tree(slots, begin, lanes);
    if (begin == 0) {
      sum = group;
      continue;
    }
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + group[i];
  }
  return sum;
}

// The pieces of micro-step `j` for one unit, as the exchange brings them.
std::vector<SlotPiece> arrived(const SlotPlan& plan, int64_t j,
                               std::vector<std::vector<float>>* pieces, int64_t begin,
                               int64_t count) {
  std::vector<SlotPiece> out;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const int64_t slot = slot_of(plan, j, rank);
    if (slot == kNoSlot) continue;
    float* data = (*pieces)[static_cast<size_t>(slot)].data() + begin;
    out.push_back({slot, Tensor::of(data, DType::kF32, {count})});
  }
  return out;
}

TEST(SlotSum, IsTheDefinitionToTheBit) {
  const ModelShape shape = tiny_model_shape();
  const Layout layout = make_layout(shape, 3);
  const auto backend = open_backend({});
  ASSERT_TRUE(backend.ok());
  const auto stream = (*backend)->make_stream();
  ASSERT_TRUE(stream.ok());
  const int64_t total = layout.shard_elements_total();
  for (const int ranks : {1, 2, 3, 4, 5, 8, 16, 24}) {
    for (const int lanes : {1, 2, 4, 8}) {
      for (const int64_t batch : {1, 2, 3, 5, 7, 8, 9, 13, 16, 23}) {
        const SlotPlan plan{.slots = batch, .ranks = ranks, .lanes = lanes};
        auto sum = SlotSum::create(**backend, layout, plan);
        ASSERT_TRUE(sum.ok());
        std::vector<std::vector<float>> slots;
        for (int64_t slot = 0; slot < batch; ++slot) {
          slots.push_back(random_normal(31, "slot" + std::to_string(slot), total));
          slots.back()[0] = -0.0F;
        }
        EXPECT_EQ(sum->bytes(), (1 + levels_waiting(plan)) * total * 4);
        // Two steps in a row: the second begins anew.
        for (int step = 0; step < 2; ++step) {
          std::vector<std::vector<float>> pieces = slots;
          for (int64_t j = 0; j < micro_steps(plan); ++j) {
            int64_t begin = 0;
            for (int unit = 0; unit < shape.units(); ++unit) {
              const int64_t count = layout.units[static_cast<size_t>(unit)].shard_elements;
              const auto batch_of_pieces = arrived(plan, j, &pieces, begin, count);
              ASSERT_TRUE(sum->add(**backend, **stream, unit, batch_of_pieces).ok());
              begin += count;
            }
            // The memory of a micro-step's pieces is that of the next one's.
            for (int rank = 0; rank < ranks; ++rank) {
              const int64_t slot = slot_of(plan, j, rank);
              if (slot != kNoSlot) pieces[static_cast<size_t>(slot)].assign(total, std::nanf(""));
            }
          }
          const float* got = sum->accumulator().f32();
          EXPECT_TRUE(same_bits("sum", {got, static_cast<size_t>(total)},
                                definition(slots, static_cast<size_t>(lanes))))
              << "ranks " << ranks << ", lanes " << lanes << ", batch " << batch;
        }
      }
    }
  }
}

// Values of a state as a function of (tensor, element), cut into the shards of `ranks` ranks.
float state_value(int id, int64_t element) {
  return static_cast<float>(id + 1) * 0.25F + static_cast<float>(element) * 0.001953125F;
}
std::vector<DigestSums> summed(const ModelShape& shape, int ranks, int wrong_element = -1) {
  const Layout layout = make_layout(shape, ranks);
  const int count = static_cast<int>(shape.tensors.size());
  std::vector<DigestSums> total(static_cast<size_t>(kStateKinds * count));
  for (int rank = 0; rank < ranks; ++rank) {
    const StateTable table(shape, layout, rank);
    const auto elements = static_cast<size_t>(layout.shard_elements_total());
    // Padding is poisoned: it must not be seen.
    std::vector<float> flats[kStateKinds];
    for (int kind = 0; kind < kStateKinds; ++kind) {
      flats[kind].assign(elements, std::nanf(""));
      for (const StatePiece& piece : table.pieces()) {
        for (int64_t i = 0; i < piece.elements; ++i) {
          const int64_t element = piece.tensor_begin + i;
          float value = state_value(kind * count + piece.tensor, element);
          if (kind == 1 && piece.tensor == 2 && element == wrong_element) value += 1.0F;
          flats[kind][static_cast<size_t>(piece.flat_begin + i)] = value;
        }
      }
    }
    std::vector<DigestSums> part(total.size());
    table.digest({flats[0].data(), flats[1].data(), flats[2].data()}, part);
    for (size_t i = 0; i < total.size(); ++i) {
      total[i].sum0 += part[i].sum0;
      total[i].sum1 += part[i].sum1;
    }
  }
  return total;
}

TEST(StateDigest, DoesNotDependOnRanks) {
  const ModelShape shape = tiny_model_shape();
  const std::vector<DigestSums> one = summed(shape, 1);
  for (int ranks = 2; ranks <= 9; ++ranks) EXPECT_EQ(summed(shape, ranks), one) << ranks;
  EXPECT_NE(summed(shape, 1, 0), one);
  EXPECT_NE(summed(shape, 4, 7), one);
}

TEST(StateDigest, GoldenValue) {
  const ModelShape shape = tiny_model_shape();
  const Layout layout = make_layout(shape, 1);
  const StateTable table(shape, layout, 0);
  const std::vector<DigestSums> sums = summed(shape, 1);
  // Stored checkpoints and results carry this digest: it may never change.
  EXPECT_EQ(table.run_digest(sums, 7).hex(), "5f69c154a9b9d5e2abbb8d28acf18d64");
  EXPECT_EQ(table.run_digest(sums, 8).hex(), "3cd879d64e85e647aa14d3873d6c546f");
}

TEST(StateDigest, SeesNamesAndOrderOfTensors) {
  const ModelShape shape = tiny_model_shape();
  const Layout layout = make_layout(shape, 1);
  const StateTable table(shape, layout, 0);
  std::vector<DigestSums> sums = summed(shape, 1);
  const Hash128 digest = table.run_digest(sums, 7);
  std::swap(sums[0], sums[1]);
  EXPECT_NE(table.run_digest(sums, 7), digest);
}

TEST(StatePieces, CoverEveryTensorOnceAndNeverCutARow) {
  const ModelShape shape = tiny_model_shape();
  for (const int ranks : {1, 2, 3, 8, 64}) {
    const Layout layout = make_layout(shape, ranks);
    std::vector<std::vector<int>> seen;
    for (const TensorInfo& info : shape.tensors)
      seen.emplace_back(static_cast<size_t>(info.elements()), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      for (const StatePiece& piece : state_pieces(layout, rank)) {
        const TensorInfo& info = shape.tensors[static_cast<size_t>(piece.tensor)];
        EXPECT_EQ(piece.tensor_begin % info.row_elements(), 0) << info.name;
        EXPECT_EQ(piece.elements % info.row_elements(), 0) << info.name;
        for (int64_t i = 0; i < piece.elements; ++i)
          ++seen[static_cast<size_t>(piece.tensor)][static_cast<size_t>(piece.tensor_begin + i)];
      }
    }
    for (size_t t = 0; t < seen.size(); ++t)
      EXPECT_EQ(seen[t], std::vector<int>(seen[t].size(), 1)) << shape.tensors[t].name;
  }
}

}  // namespace
}  // namespace swax::test
