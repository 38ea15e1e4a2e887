#include "tests/reference/rope.h"

#include <cmath>

namespace swax::reference {
namespace {

Vec rotate(const RopeSizes& s, View x_THK, double direction) {
  SWAX_CHECK(length(x_THK) == s.tokens * s.heads * s.dim);
  const RopeTables tables = rope_tables(s);
  const int64_t half = s.dim / 2;
  Vec y_THK = zeros(length(x_THK));
  for (int64_t row = 0; row < s.tokens * s.heads; ++row) {
    for (int64_t j = 0; j < half; ++j) {
      const double c = at(tables.cos_TK, row / s.heads * half + j);
      const double n = at(tables.sin_TK, row / s.heads * half + j) * direction;
      const double a = at(x_THK, row * s.dim + j);
      const double b = at(x_THK, row * s.dim + half + j);
      at(y_THK, row * s.dim + j) = a * c - b * n;
      at(y_THK, row * s.dim + half + j) = b * c + a * n;
    }
  }
  return y_THK;
}

}  // namespace

RopeTables rope_tables(const RopeSizes& s) {
  SWAX_CHECK(s.dim % 2 == 0);
  const int64_t half = s.dim / 2;
  RopeTables tables{.cos_TK = zeros(s.tokens * half), .sin_TK = zeros(s.tokens * half)};
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t j = 0; j < half; ++j) {
      const double frequency =
          std::pow(s.base, -2.0 * static_cast<double>(j) / static_cast<double>(s.dim));
      const double angle = static_cast<double>(s.first_position + t) * frequency;
      at(tables.cos_TK, t * half + j) = std::cos(angle);
      at(tables.sin_TK, t * half + j) = std::sin(angle);
    }
  }
  return tables;
}

Vec rope(const RopeSizes& s, View x_THK) { return rotate(s, x_THK, 1.0); }

Vec rope_inverse(const RopeSizes& s, View y_THK) { return rotate(s, y_THK, -1.0); }

}  // namespace swax::reference
