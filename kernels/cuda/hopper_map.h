// Tensor maps: what the tile copies of hopper.cuh need to know of a tensor in device memory. Host
// code. Threads: any.
#pragma once

#include <cuda.h>

#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax::cuda {

// Map of a bf16 tensor [T, H, E] whose boxes are `rows` tokens of one head, 64 elements wide, in
// the 128-byte swizzle; coordinates are (element, head, token). kInvalidArgument when the address
// or the row stride is not a multiple of 16 bytes.
Status tile_map(const char* op, const Tensor& t, int rows, CUtensorMap* map);
// Whether tile_map takes the tensor.
bool has_tile_map(const Tensor& t);

// Map of a bf16 tensor [T, D], D a multiple of 64, whose boxes are `rows` rows of `columns` columns
// as a tile in the 128-byte swizzle; coordinates are (0, row, column / 64), what lies outside is 0.
// The address and the row stride are multiples of 16 bytes (vector_rows).
Status rows_map(const char* op, const Tensor& t, int rows, int columns, CUtensorMap* map);

}  // namespace swax::cuda
