// Tiles of 128 columns between shared memory and accumulators: copies, products along or across
// their rows, access to the two rows of a thread, stores. Internal to kernels/cuda.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kernel_launch.cuh"

namespace swax::cuda {

constexpr int kTileColumns = 128;
constexpr int kTileRows = 128;
constexpr int kTileBytes = kTileRows * kTileColumns * 2;
constexpr int kRoleThreads = 3 * 128;  // one warpgroup copies, two compute
constexpr int kRoleRegisters = 168;    // of a thread, before they are shared out
constexpr float kLog2E = 1.44269504088896341F;

// A [128 or 64 rows, 128] tile as two blocks of 64 columns.
__device__ __forceinline__ void load_tile(unsigned char* to, const TensorMap& map, int column,
                                          int head, int token, int rows, uint64_t* full) {
  tile_load(to, map, column, head, token, full);
  tile_load(to + rows * 128, map, column + 64, head, token, full);
}

// A warp of a computing warpgroup has done with a tile: all its lanes, before one says so.
__device__ __forceinline__ void release(uint64_t* empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

// d = X Y^T over 128 columns, or with `add` d += it: X 64 rows from row `row` of a tile of x_rows,
// Y a tile of y_rows.
template <int kCount>
__device__ __forceinline__ void rows_by_rows(float (&d)[kCount], uint32_t x, uint32_t x_rows,
                                             uint32_t row, uint32_t y, uint32_t y_rows,
                                             bool add = false) {
  const uint64_t a = operand<Major::kK>(x + row * 128, x_rows);
  const uint64_t b = operand<Major::kK>(y, y_rows);
#pragma unroll
  for (uint32_t k = 0; k < kTileColumns / 16; ++k) {
    const uint32_t inside = k % 4 * 32;
    mma<Major::kK, Major::kK>(d, further(a, k / 4 * x_rows * 128 + inside),
                              further(b, k / 4 * y_rows * 128 + inside), add || k != 0 ? 1 : 0);
  }
}

// d = X Y, or with `add` d += it: X as above in a tile of 128 rows, its columns are the 128 rows of
// Y.
__device__ __forceinline__ void rows_by_columns(float (&d)[64], uint32_t x, uint32_t row,
                                                uint32_t y, bool add) {
  const uint64_t a = operand<Major::kK>(x + row * 128, kTileRows);
  const uint64_t b = operand<Major::kMN>(y, kTileRows);
#pragma unroll
  for (uint32_t k = 0; k < kTileColumns / 16; ++k) {
    mma<Major::kK, Major::kMN>(d, further(a, k / 4 * kTileBytes / 2 + k % 4 * 32),
                               further(b, k * 2048), add || k != 0 ? 1 : 0);
  }
}

// d += A Y: A in registers, its columns are the rows of Y, all of a tile or the next ones from y on
// in a tile of y_rows.
template <int kSteps>
__device__ __forceinline__ void add_rows(float (&d)[64], const uint32_t (&a)[kSteps][4], uint32_t y,
                                         uint32_t y_rows = kSteps * 16) {
  const uint64_t b = operand<Major::kMN>(y, y_rows);
#pragma unroll
  for (uint32_t k = 0; k < kSteps; ++k) mma<Major::kMN>(d, a[k], further(b, k * 2048), 1);
}

// Row (first of the two) of this thread's accumulator inside the warpgroup's 64, and its column in
// a group of 8.
__device__ __forceinline__ int lane_row() {
  return static_cast<int>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4);
}
__device__ __forceinline__ int lane_column() { return static_cast<int>(threadIdx.x % 4 * 2); }

// Word i of a lane becomes word (lane of its quad) of lane i: a group of 8 columns, spread over the
// quad, comes to one lane.
__device__ __forceinline__ void quad_transpose(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x % 2 != 0;
  const bool high = threadIdx.x % 4 >= 2;
  uint32_t x = __shfl_xor_sync(0xffffffffU, odd ? w[0] : w[1], 1);
  uint32_t y = __shfl_xor_sync(0xffffffffU, odd ? w[2] : w[3], 1);
  w[0] = odd ? x : w[0];
  w[1] = odd ? w[1] : x;
  w[2] = odd ? y : w[2];
  w[3] = odd ? w[3] : y;
  x = __shfl_xor_sync(0xffffffffU, high ? w[0] : w[2], 2);
  y = __shfl_xor_sync(0xffffffffU, high ? w[1] : w[3], 2);
  w[0] = high ? x : w[0];
  w[2] = high ? w[2] : x;
  w[1] = high ? y : w[1];
  w[3] = high ? w[3] : y;
}

// Writes both rows (token and token + kApart) of an accumulator times their factors, 16 bytes a
// lane; `to` is row 0 at the first column. Rows at or behind `tokens` stay as they are.
template <int kApart = 8, int kCount>
__device__ __forceinline__ void store_rows(const float (&d)[kCount], __nv_bfloat16* to,
                                           int64_t stride, int token, int tokens, float factor0,
                                           float factor1) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor = half == 0 ? factor0 : factor1;
#pragma unroll
    for (int g = 0; g < kCount / 4; g += 4) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int e = 4 * (g + i) + 2 * half;
        w[i] = pack_bf16(d[e] * factor, d[e + 1] * factor);
      }
      quad_transpose(w);
      if (token + half * kApart < tokens) {
        const int column = 8 * (g + static_cast<int>(threadIdx.x % 4));
        __nv_bfloat16* row = to + static_cast<int64_t>(token + half * kApart) * stride;
        *reinterpret_cast<uint4*>(row + column) = make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
  }
}

}  // namespace swax::cuda
