// Rotary embedding in place, half-split pairs (i, i + E/2), angle = position * base^(-2i/E).
// Source: arXiv 2104.09864, pairing of model-spec 4. x_THE[t] is rotated by row t of the tables
// cos_TP, sin_TP (P = E/2), which the host computes in double with proto/base/math and rounds once
// to f32. inverse rotates by the negative angle (the backward pass). f32. Bound: K = 2, c = 2 (the
// table entries are rounded once each).
#pragma once

#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax {

struct RopeArgs {
  Tensor x_THE;
  Tensor cos_TP;
  Tensor sin_TP;
  bool inverse = false;
};
Status validate(const RopeArgs& a);

// Fills row `row` of the tables for `position`. Host function; the same bits on every machine.
void rope_table_row(int64_t position, double base, Tensor cos_TP, Tensor sin_TP, int64_t row);

}  // namespace swax
