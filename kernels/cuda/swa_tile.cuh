// What the tuned forms of sliding-window attention share: the band of a query, row-wise access to
// accumulators, stores. Head size 128, bf16. Internal to kernels/cuda.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kernel_launch.cuh"

namespace swax::cuda {

constexpr int kSwaSize = 128;  // head size
constexpr int kSwaTile = 128;  // rows of a block's own tile
constexpr int kSwaTileBytes = kSwaTile * kSwaSize * 2;
constexpr int kSwaThreads = 3 * 128;  // one warpgroup copies, two compute
constexpr float kLog2E = 1.44269504088896341F;

// Which keys a query sees: first(t) .. t.
struct SwaBand {
  const int32_t* doc_start;  // null: no borders
  int tokens;
  int window;  // at most tokens

  __device__ int first(int t) const {
    const int low = t - window + 1;
    const int border = doc_start == nullptr ? 0 : doc_start[t < tokens ? t : tokens - 1];
    return low > border ? low : border;
  }
};

// A [128 or 64 rows, 128] tile as two blocks of 64 columns.
__device__ __forceinline__ void swa_load(unsigned char* to, const TensorMap& map, int head,
                                         int token, int rows, uint64_t* full) {
  tile_load(to, map, 0, head, token, full);
  tile_load(to + rows * 128, map, 64, head, token, full);
}

// d (+)= X Y^T over the 128 columns: X 64 rows at row `row` of a tile of x_rows, Y a tile of
// y_rows.
template <int kCount>
__device__ __forceinline__ void swa_rows_by_rows(float (&d)[kCount], uint32_t x, uint32_t x_rows,
                                                 uint32_t row, uint32_t y, uint32_t y_rows) {
#pragma unroll
  for (uint32_t k = 0; k < kSwaSize / 16; ++k) {
    const uint32_t inside = k % 4 * 32;
    mma<Major::kK, Major::kK>(
        d, operand<Major::kK>(x + k / 4 * x_rows * 128 + row * 128 + inside, x_rows),
        operand<Major::kK>(y + k / 4 * y_rows * 128 + inside, y_rows), k != 0);
  }
}

// d += A Y: A in registers, its columns are the rows of the tile Y.
template <int kSteps>
__device__ __forceinline__ void swa_add_rows(float (&d)[64], const uint32_t (&a)[kSteps][4],
                                             uint32_t y) {
#pragma unroll
  for (uint32_t k = 0; k < kSteps; ++k) {
    mma<Major::kMN>(d, a[k], operand<Major::kMN>(y + k * 2048, kSteps * 16), 1);
  }
}

// Row (first of the two) of this thread's accumulator inside the warpgroup's 64, and its column in
// a group of 8.
__device__ __forceinline__ int lane_row() {
  return static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
}
__device__ __forceinline__ int lane_column() { return static_cast<int>(threadIdx.x % 4 * 2); }

// Writes both rows of a 64 x 128 accumulator times their factors; rows at or behind `tokens` stay.
__device__ __forceinline__ void swa_store(const float (&d)[64], __nv_bfloat16* to, int64_t stride,
                                          int token, int tokens, float factor0, float factor1) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = token + half * 8;
    if (t >= tokens) continue;
    const float factor = half == 0 ? factor0 : factor1;
    __nv_bfloat16* row = to + t * stride + lane_column();
#pragma unroll
    for (int g = 0; g < 16; ++g) {
      *reinterpret_cast<uint32_t*>(row + 8 * g) =
          pack_bf16(d[4 * g + 2 * half] * factor, d[4 * g + 2 * half + 1] * factor);
    }
  }
}

}  // namespace swax::cuda
