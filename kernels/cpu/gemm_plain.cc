// The product in plain loops: blocks of rows x 16 columns live in registers over a stretch of K,
// and each element is one chain of fused multiply-adds over rising k whatever the blocking is.
#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vec.h"

namespace swax::cpu {
namespace {

constexpr int64_t kStripCols = 16;
constexpr int64_t kStripDepth = 256;  // 16 KiB of packed b
constexpr int64_t kBlockRows = 6;

struct Block {
  const float* a;  // element (row, k) at a[row * row_step + k * k_step]
  int64_t row_step;
  int64_t k_step;
  const float* strip;  // [depth, 16], packed, columns beyond the end are 0
  float* c;
  int64_t c_stride;
  int64_t depth;
  int64_t cols;
  bool from_c;
};

template <int kRows>
void block_product(const Block& x) {
  F8 acc[kRows][2];
  const int64_t left = std::min(x.cols, kLanes);
  const int64_t right = x.cols - left;
  for (int r = 0; r < kRows; ++r) {
    const float* c = x.c + r * x.c_stride;
    acc[r][0] = x.from_c ? load(c, left) : zero8();
    acc[r][1] = x.from_c && right > 0 ? load(c + kLanes, right) : zero8();
  }
  for (int64_t k = 0; k < x.depth; ++k) {
    const F8 b0 = load(x.strip + k * kStripCols);
    const F8 b1 = load(x.strip + k * kStripCols + kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const F8 a = splat(x.a[r * x.row_step + k * x.k_step]);
      acc[r][0] = fma(a, b0, acc[r][0]);
      acc[r][1] = fma(a, b1, acc[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* c = x.c + r * x.c_stride;
    store(c, acc[r][0], left);
    if (right > 0) store(c + kLanes, acc[r][1], right);
  }
}

void any_block(const Block& x, int64_t rows) {
  switch (rows) {
    case 1:
      return block_product<1>(x);
    case 2:
      return block_product<2>(x);
    case 3:
      return block_product<3>(x);
    case 4:
      return block_product<4>(x);
    case 5:
      return block_product<5>(x);
    default:
      return block_product<6>(x);
  }
}

// Rows [k0, k0 + depth), columns [col, col + cols) of op(b).
void pack_strip(const MatMul& x, int64_t k0, int64_t depth, int64_t col, int64_t cols,
                float* strip) {
  if (!x.trans_b) {
    for (int64_t k = 0; k < depth; ++k) {
      const float* from = x.b + (k0 + k) * x.b_stride + col;
      const int64_t left = std::min(cols, kLanes);
      store(strip + k * kStripCols, load(from, left));
      store(strip + k * kStripCols + kLanes,
            cols > kLanes ? load(from + kLanes, cols - kLanes) : zero8());
    }
    return;
  }
  for (int64_t j = 0; j < kStripCols; ++j) {
    const float* from = x.b + (col + j) * x.b_stride + k0;
    for (int64_t k = 0; k < depth; ++k) strip[k * kStripCols + j] = j < cols ? from[k] : 0.0F;
  }
}

}  // namespace

void matmul_plain(const MatMul& x) {
  alignas(64) float strip[kStripDepth * kStripCols];
  for (int64_t k0 = 0; k0 < x.k; k0 += kStripDepth) {
    const int64_t depth = std::min(kStripDepth, x.k - k0);
    for (int64_t col = 0; col < x.n; col += kStripCols) {
      const int64_t cols = std::min(kStripCols, x.n - col);
      pack_strip(x, k0, depth, col, cols, strip);
      for (int64_t row = 0; row < x.m; row += kBlockRows) {
        Block b;
        b.row_step = x.trans_a ? 1 : x.a_stride;
        b.k_step = x.trans_a ? x.a_stride : 1;
        b.a = x.a + row * b.row_step + k0 * b.k_step;
        b.strip = strip;
        b.c = x.c + row * x.c_stride + col;
        b.c_stride = x.c_stride;
        b.depth = depth;
        b.cols = cols;
        b.from_c = x.accumulate || k0 > 0;
        any_block(b, std::min(kBlockRows, x.m - row));
      }
    }
  }
}

}  // namespace swax::cpu
