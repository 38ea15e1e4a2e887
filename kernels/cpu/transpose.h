// Transposed copies of small tiles, so that products of rows by rows become products that run over
// contiguous columns. Threads: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/vec.h"

namespace swax::cpu {

// Rows r[0..7] become columns.
inline void transpose8(F8 (&r)[8]) {
  F8 t[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  F8 u[8];
  for (int i = 0; i < 2; ++i) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// out[c, r] = factor * x[r, c] for r < rows, c < cols; columns rows..padded-1 of out become 0.
// padded is a multiple of the lanes and the row length of out.
inline void transpose_tile(const float* x, int64_t x_stride, int64_t rows, int64_t cols,
                           float factor, float* out, int64_t padded) {
  const F8 scale = splat(factor);
  for (int64_t r = 0; r < padded; r += kLanes) {
    const int64_t present = std::clamp<int64_t>(rows - r, 0, kLanes);
    for (int64_t c = 0; c < cols; c += kLanes) {
      const int64_t lanes = std::min(kLanes, cols - c);
      F8 block[8];
      for (int64_t i = 0; i < kLanes; ++i) {
        block[i] = i < present ? scale * load(x + (r + i) * x_stride + c, lanes) : zero8();
      }
      transpose8(block);
      for (int64_t i = 0; i < lanes; ++i) store(out + (c + i) * padded + r, block[i]);
    }
  }
}

}  // namespace swax::cpu
