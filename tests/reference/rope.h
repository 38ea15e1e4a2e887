// Rotary positions, half-split pairs (j, j + K/2), angle = position * base^(-2j/K). Position =
// index in the packed sequence + first_position; it does not restart at a document.
#pragma once

#include "tests/reference/types.h"

namespace swax::reference {

struct RopeSizes {
  int64_t tokens, heads, dim;
  double base = 10000.0;
  int64_t first_position = 0;
};
struct RopeTables {
  Vec cos_TK;  // [T, K/2]
  Vec sin_TK;
};
RopeTables rope_tables(const RopeSizes& s);
Vec rope(const RopeSizes& s, View x_THK);
Vec rope_inverse(const RopeSizes& s, View y_THK);  // also the backward of rope

}  // namespace swax::reference
