// FSDP layout: where each tensor lies in the flat buffer of its unit and which rank owns which
// elements. Pure function of (model shape, ranks). Rules (design): the shard size S is a multiple
// of the lcm of the unit's row lengths; each tensor starts at a multiple of its row length; no cut
// falls inside a row; padding stands between tensors and at the end, in memory only.
#pragma once

#include <cstdint>
#include <vector>

#include "jobs/model_shape.h"

namespace swax {

struct TensorPlace {
  int tensor = 0;     // index in ModelShape::tensors
  int64_t begin = 0;  // element offset in the unit's flat buffer
  int64_t elements = 0;
};

// The part of one tensor inside one rank's shard: whole rows.
struct ShardPiece {
  int tensor = 0;
  int64_t tensor_begin = 0;  // first element inside the tensor
  int64_t elements = 0;
  int64_t shard_begin = 0;  // first element inside the shard
  int64_t row_elements = 0;
  int64_t first_row = 0;  // index among the rows of this rank (all units), for the gradient norm
};

struct UnitLayout {
  int64_t shard_elements = 0;                   // S
  int64_t flat_elements = 0;                    // W * S
  std::vector<TensorPlace> places;              // rising begin
  std::vector<std::vector<ShardPiece>> pieces;  // [rank], rising shard_begin
};

struct Layout {
  int ranks = 0;
  std::vector<UnitLayout> units;
  // Rows of the fullest rank; the row gather has this many doubles a rank.
  int64_t rows_per_rank_max = 0;
  // [rows of the whole table] position of table row i in the gathered [W * rows_per_rank_max].
  std::vector<int64_t> row_order;
  int64_t shard_elements_total() const;  // sum of S over units
  int64_t flat_elements_max() const;     // largest W * S
  int64_t shard_elements_max() const;
};

Layout make_layout(const ModelShape& model, int ranks);

}  // namespace swax
