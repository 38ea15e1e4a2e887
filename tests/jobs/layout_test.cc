// Goal: every element of every tensor has exactly one owner, no row is cut, and the gathered
// tensors are contiguous. Method: properties over the presets and over many drawn shapes, for 1..64
// ranks.
#include "jobs/layout.h"

#include <gtest/gtest.h>

#include <numeric>

#include "proto/base/ids.h"
#include "proto/base/rng.h"
#include "tests/jobs/job_specs.h"

namespace swax {
namespace {

ModelShape shape_of(const pb::Model& model) {
  auto shape = model_shape(model);
  EXPECT_TRUE(shape.ok()) << shape.status().to_string();
  return *shape;
}

// Small shapes with awkward factors: primes, widths below the number of ranks, uneven heads.
pb::Model drawn_model(uint64_t seed) {
  uint64_t draws = 0;
  const auto draw = [&](uint32_t low, uint32_t high) {
    return low + random_block(seed, Purpose::kTest, draws++)[0] % (high - low + 1);
  };
  pb::Model m;
  constexpr const char* kPatterns[] = {"SM", "S", "M", "SSM"};
  m.set_pattern(kPatterns[draw(0, 3)]);
  m.set_layers(draw(1, 3));
  m.set_dim(draw(2, 40));
  m.set_vocab_size(draw(2, 70));
  m.set_heads(draw(1, 4));
  m.set_kv_heads(draw(0, 1) == 0 ? 1 : m.heads());
  m.set_head_dim(2 * draw(1, 6));
  m.set_mlstm_heads(draw(1, 3));
  m.set_mlstm_qk_dim(draw(1, 9));
  m.set_mlstm_v_dim(draw(1, 11));
  m.set_ff_dim(draw(1, 50));
  m.set_mlstm_chunk(16);
  return m;
}

void expect_places(const ModelShape& model, const UnitLayout& unit, int index, int ranks) {
  ASSERT_EQ(unit.flat_elements, unit.shard_elements * ranks);
  int64_t rows_lcm = 1;
  int64_t end = 0;
  std::vector<int> tensors;
  for (const TensorPlace& place : unit.places) {
    const TensorInfo& t = model.tensors[static_cast<size_t>(place.tensor)];
    rows_lcm = std::lcm(rows_lcm, t.row_elements());
    EXPECT_EQ(place.begin % t.row_elements(), 0) << t.name;
    EXPECT_GE(place.begin, end) << t.name;                     // no overlap
    EXPECT_LT(place.begin - end, t.row_elements()) << t.name;  // padding below one row
    EXPECT_EQ(place.elements, t.elements()) << t.name;
    end = place.begin + place.elements;
    tensors.push_back(place.tensor);
  }
  EXPECT_EQ(tensors, model.unit_tensors(index));
  EXPECT_LE(end, unit.flat_elements);
  EXPECT_EQ(unit.shard_elements % rows_lcm, 0);
  EXPECT_LT(unit.shard_elements, div_ceil(end, ranks) + rows_lcm);  // no more padding than needed
}

// Marks what the pieces cover in the flat buffer: each element of a tensor once, padding never.
void expect_one_owner(const ModelShape& model, const UnitLayout& unit, int ranks) {
  std::vector<int> owner(static_cast<size_t>(unit.flat_elements), -1);
  for (int rank = 0; rank < ranks; ++rank) {
    int64_t end = 0;
    for (const ShardPiece& piece : unit.pieces[static_cast<size_t>(rank)]) {
      const TensorInfo& t = model.tensors[static_cast<size_t>(piece.tensor)];
      ASSERT_EQ(piece.row_elements, t.row_elements());
      ASSERT_GT(piece.elements, 0);
      ASSERT_EQ(piece.elements % piece.row_elements, 0) << t.name << " row cut";
      ASSERT_EQ(piece.tensor_begin % piece.row_elements, 0) << t.name << " row cut";
      ASSERT_GE(piece.shard_begin, end);
      end = piece.shard_begin + piece.elements;
      ASSERT_LE(end, unit.shard_elements);
      for (int64_t i = 0; i < piece.elements; ++i) {
        int& mark = owner[static_cast<size_t>(rank * unit.shard_elements + piece.shard_begin + i)];
        ASSERT_EQ(mark, -1) << t.name << " owned twice";
        mark = piece.tensor;
      }
    }
  }
  for (const TensorPlace& place : unit.places) {
    for (int64_t i = 0; i < place.elements; ++i) {
      int& mark = owner[static_cast<size_t>(place.begin + i)];
      ASSERT_EQ(mark, place.tensor);  // the gathered tensor is one contiguous run
      mark = -1;
    }
  }
  for (const int mark : owner) ASSERT_EQ(mark, -1);  // nothing stands in the padding
}

// row_order sends each row of the table to the place where its owner keeps it, and nowhere twice.
void expect_rows(const ModelShape& model, const Layout& layout) {
  int64_t rows = 0;
  for (const TensorInfo& t : model.tensors) rows += t.rows();
  ASSERT_EQ(static_cast<int64_t>(layout.row_order.size()), rows);
  std::vector<int> seen(static_cast<size_t>(layout.ranks * layout.rows_per_rank_max), 0);
  for (const int64_t position : layout.row_order)
    ASSERT_EQ(seen[static_cast<size_t>(position)]++, 0);
  int64_t fullest = 0;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    int64_t next = 0;
    for (const UnitLayout& unit : layout.units) {
      for (const ShardPiece& piece : unit.pieces[static_cast<size_t>(rank)]) {
        ASSERT_EQ(piece.first_row, next);
        int64_t table_row = piece.tensor_begin / piece.row_elements;
        for (int t = 0; t < piece.tensor; ++t)
          table_row += model.tensors[static_cast<size_t>(t)].rows();
        const int64_t count = piece.elements / piece.row_elements;
        for (int64_t i : {int64_t{0}, count - 1})
          ASSERT_EQ(layout.row_order[static_cast<size_t>(table_row + i)],
                    rank * layout.rows_per_rank_max + next + i);
        next += count;
      }
    }
    fullest = std::max(fullest, next);
  }
  EXPECT_EQ(fullest, layout.rows_per_rank_max);
}

void expect_layout(const ModelShape& model, int ranks) {
  const Layout layout = make_layout(model, ranks);
  ASSERT_EQ(layout.ranks, ranks);
  ASSERT_EQ(static_cast<int>(layout.units.size()), model.units());
  int64_t shard_sum = 0;
  int64_t shard_max = 0;
  for (int u = 0; u < model.units(); ++u) {
    const UnitLayout& unit = layout.units[static_cast<size_t>(u)];
    expect_places(model, unit, u, ranks);
    expect_one_owner(model, unit, ranks);
    shard_sum += unit.shard_elements;
    shard_max = std::max(shard_max, unit.shard_elements);
  }
  EXPECT_EQ(layout.shard_elements_total(), shard_sum);
  EXPECT_EQ(layout.shard_elements_max(), shard_max);
  EXPECT_EQ(layout.flat_elements_max(), shard_max * ranks);
  expect_rows(model, layout);
}

TEST(Layout, DrawnShapesForOneToSixtyFourRanks) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const ModelShape model = shape_of(drawn_model(seed));
    for (int ranks = 1; ranks <= 64; ++ranks) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " ranks " << ranks);
      ASSERT_NO_FATAL_FAILURE(expect_layout(model, ranks));
    }
  }
}

TEST(Layout, MicroForOneToEightRanks) {
  const ModelShape model = shape_of(test::preset("micro").model());
  for (int ranks = 1; ranks <= 8; ++ranks) ASSERT_NO_FATAL_FAILURE(expect_layout(model, ranks));
}

TEST(Layout, OneRankOwnsThePlainTable) {
  const ModelShape model = shape_of(test::preset("micro").model());
  const Layout layout = make_layout(model, 1);
  for (size_t i = 0; i < layout.row_order.size(); ++i)
    ASSERT_EQ(layout.row_order[i], static_cast<int64_t>(i));
}

// Padding is small for the shapes people train: below 1 % of the parameters on 8 ranks.
TEST(Layout, PresetsWasteLittle) {
  for (const char* name : {"nano", "125m", "swax-1.4b", "swax-7b"}) {
    const ModelShape model = shape_of(test::preset(name).model());
    const Layout layout = make_layout(model, 8);
    const double held = static_cast<double>(layout.shard_elements_total() * 8);
    EXPECT_LT(held / static_cast<double>(model.parameters()), 1.01) << name;
  }
}

}  // namespace
}  // namespace swax
