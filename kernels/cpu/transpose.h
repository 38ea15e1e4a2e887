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

struct Transpose {
  const float* x;
  int64_t x_stride;
  int64_t rows;  // of x
  int64_t cols;
  float factor = 1.0F;
  float* out;
  int64_t out_stride;
  int64_t width;  // elements written in each row of out, >= rows; those beyond rows become 0
};
// out[c, r] = factor * x[r, c].
inline void transpose(const Transpose& a) {
  const F8 scale = splat(a.factor);
  for (int64_t r = 0; r < a.width; r += kLanes) {
    const int64_t present = std::clamp<int64_t>(a.rows - r, 0, kLanes);
    for (int64_t c = 0; c < a.cols; c += kLanes) {
      const int64_t lanes = std::min(kLanes, a.cols - c);
      F8 block[8];
      for (int64_t i = 0; i < kLanes; ++i) {
        block[i] = i < present ? scale * load(a.x + (r + i) * a.x_stride + c, lanes) : zero8();
      }
      transpose8(block);
      const int64_t written = std::min(kLanes, a.width - r);
      for (int64_t i = 0; i < lanes; ++i) {
        store(a.out + (c + i) * a.out_stride + r, block[i], written);
      }
    }
  }
}

}  // namespace swax::cpu
