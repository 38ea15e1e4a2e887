#include "jobs/layout.h"

#include <algorithm>
#include <numeric>

#include "proto/base/check.h"
#include "proto/base/ids.h"

namespace swax {
namespace {

// Places the tensors of a unit one after the other and cuts the buffer into `ranks` shards.
UnitLayout place_unit(const ModelShape& model, const std::vector<int>& tensors, int ranks) {
  UnitLayout unit;
  int64_t end = 0;
  int64_t rows_lcm = 1;
  for (const int index : tensors) {
    const TensorInfo& t = model.tensors[static_cast<size_t>(index)];
    const int64_t begin = round_up(end, t.row_elements());
    unit.places.push_back({.tensor = index, .begin = begin, .elements = t.elements()});
    end = begin + t.elements();
    rows_lcm = std::lcm(rows_lcm, t.row_elements());
  }
  unit.shard_elements = round_up(div_ceil(end, ranks), rows_lcm);
  unit.flat_elements = unit.shard_elements * ranks;
  unit.pieces.resize(static_cast<size_t>(ranks));
  return unit;
}

// Intersects every tensor with every shard it touches. Both ends of a cut are row borders because
// the tensor's begin and S are multiples of its row length.
void cut_unit(const ModelShape& model, UnitLayout* unit) {
  for (const TensorPlace& place : unit->places) {
    const int64_t row = model.tensors[static_cast<size_t>(place.tensor)].row_elements();
    const int64_t end = place.begin + place.elements;
    for (int64_t from = place.begin; from < end;) {
      const int64_t rank = from / unit->shard_elements;
      const int64_t to = std::min(end, (rank + 1) * unit->shard_elements);
      unit->pieces[static_cast<size_t>(rank)].push_back(
          {.tensor = place.tensor,
           .tensor_begin = from - place.begin,
           .elements = to - from,
           .shard_begin = from - rank * unit->shard_elements,
           .row_elements = row,
           .first_row = 0});
      from = to;
    }
  }
}

// Numbers the rows of each rank over all units in buffer order.
int64_t number_rows(Layout* layout) {
  int64_t rows_max = 0;
  for (int rank = 0; rank < layout->ranks; ++rank) {
    int64_t rows = 0;
    for (UnitLayout& unit : layout->units) {
      for (ShardPiece& piece : unit.pieces[static_cast<size_t>(rank)]) {
        piece.first_row = rows;
        rows += exact_div(piece.elements, piece.row_elements);
      }
    }
    rows_max = std::max(rows_max, rows);
  }
  return rows_max;
}

std::vector<int64_t> order_rows(const ModelShape& model, const Layout& layout) {
  std::vector<int64_t> first_table_row;  // per tensor
  int64_t rows = 0;
  for (const TensorInfo& t : model.tensors) {
    first_table_row.push_back(rows);
    rows += t.rows();
  }
  std::vector<int64_t> order(static_cast<size_t>(rows));
  for (const UnitLayout& unit : layout.units) {
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const int64_t base = rank * layout.rows_per_rank_max;
      for (const ShardPiece& piece : unit.pieces[static_cast<size_t>(rank)]) {
        const int64_t table_row = first_table_row[static_cast<size_t>(piece.tensor)] +
                                  piece.tensor_begin / piece.row_elements;
        const int64_t count = piece.elements / piece.row_elements;
        for (int64_t i = 0; i < count; ++i)
          order[static_cast<size_t>(table_row + i)] = base + piece.first_row + i;
      }
    }
  }
  return order;
}

}  // namespace

int64_t Layout::shard_elements_total() const {
  int64_t sum = 0;
  for (const UnitLayout& unit : units) sum += unit.shard_elements;
  return sum;
}

int64_t Layout::flat_elements_max() const {
  int64_t most = 0;
  for (const UnitLayout& unit : units) most = std::max(most, unit.flat_elements);
  return most;
}

int64_t Layout::shard_elements_max() const {
  int64_t most = 0;
  for (const UnitLayout& unit : units) most = std::max(most, unit.shard_elements);
  return most;
}

Layout make_layout(const ModelShape& model, int ranks) {
  SWAX_CHECK(ranks >= 1);
  Layout layout;
  layout.ranks = ranks;
  for (int u = 0; u < model.units(); ++u) {
    layout.units.push_back(place_unit(model, model.unit_tensors(u), ranks));
    cut_unit(model, &layout.units.back());
  }
  layout.rows_per_rank_max = number_rows(&layout);
  layout.row_order = order_rows(model, layout);
  return layout;
}

}  // namespace swax
