// dS kept in memory between the kernels of the backward pass: 64 x 64 tiles of bf16 that the one of
// dk and dv writes and the one of dq reads. Internal to kernels/cuda.
//
// A tile is 64 rows of 128 bytes, a row is a key. What a thread holds of a row (an accumulator of
// keys x queries) are queries 8j + 2c and the next, j < 8, c its lane in the quad; it writes them
// as two pieces of 16 bytes, so that a quad fills 64 bytes at a time: query 8j + 2c + e is element
// 32 (j / 4) + 8c + 2 (j % 4) + e. Pieces lie in the 128-byte swizzle: piece x of row r at x ^ r %
// 8. So a plain copy of a tile is an operand of a matrix product, and rows of dq leave that product
// in the order of the elements.
#pragma once

#include "kernels/cuda/hopper_tile.cuh"
#include "kernels/spec/swa.h"

namespace swax::cuda {

constexpr int kKeptBytes = kSwaKeptTile * kSwaKeptTile * 2;

// Tiles of a head: for each 64 queries those of the keys that the window lets them see, keys
// rising. Tiles that no query of theirs sees (document borders) are neither written nor read.
struct SwaKept {
  unsigned char* tiles;  // of the first head; null: not kept
  int64_t head_tiles;
  int seen_max;  // key tiles of a query tile

  __device__ __forceinline__ int first(int query_tile) const {
    return query_tile < seen_max ? 0 : query_tile - seen_max + 1;
  }
  // Of (query tile, key tile) in a head: full triangle, then rows of seen_max.
  __device__ __forceinline__ int64_t index(int query_tile, int key_tile) const {
    const int64_t n = query_tile, m = seen_max;
    const int64_t before = n <= m ? n * (n + 1) / 2 : m * (m + 1) / 2 + (n - m) * m;
    return before + key_tile - first(query_tile);
  }
  __device__ __forceinline__ unsigned char* tile(int64_t head, int query_tile, int key_tile) const {
    return tiles + (head * head_tiles + index(query_tile, key_tile)) * kKeptBytes;
  }
  // Bytes from (query tile, key tile) to (the next query tile, key tile).
  __device__ __forceinline__ int64_t next_queries(int query_tile) const {
    return static_cast<int64_t>(min(query_tile + 1, seen_max - 1)) * kKeptBytes;
  }
};

// Where this thread's pieces of its first row begin in a tile; those of the other half of the
// queries lie at this ^ 64, those of its second row 1024 bytes further.
__device__ __forceinline__ uint32_t kept_place() {
  const uint32_t lane = threadIdx.x % 32;
  return static_cast<uint32_t>(lane_row()) * 128 + ((lane % 4) ^ (lane / 4)) * 16;
}
// Query of the first row of this thread in the product with a tile; the second is 2 further.
__device__ __forceinline__ int kept_query() {
  const auto warp = static_cast<int>(threadIdx.x % 128 / 32);
  const auto row = static_cast<int>(threadIdx.x % 32 / 4);
  return warp / 2 * 32 + row / 2 * 8 + warp % 2 * 4 + row % 2;
}

}  // namespace swax::cuda
