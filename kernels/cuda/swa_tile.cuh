// What the tuned forms of sliding-window attention share: the band of a query, pieces of work. Head
// size 128, bf16. Internal to kernels/cuda.
#pragma once

#include <algorithm>

#include "kernels/cuda/hopper_ring.cuh"

namespace swax::cuda {

constexpr int kSwaSize = 128;  // head size
// A block stays for many pieces, so that the tiles of the next are copied while this one runs. One
// block for each multiprocessor of an H100 or H200; any other number gives the same bits.
constexpr int64_t kSwaBlocks = 132;
inline unsigned swa_blocks(int64_t tokens, int64_t heads) {
  return static_cast<unsigned>(std::min(kSwaBlocks, (tokens + kTileRows - 1) / kTileRows * heads));
}
// The n-th piece of this block; behind the last one only in its last round. Pieces are listed with
// the long ones first and rounds run forth and back: who had a long piece gets a short one next.
__device__ __forceinline__ int swa_piece(int n) {
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  return n * blocks + (n % 2 == 0 ? block : blocks - 1 - block);
}

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

// Of a tile of 128 keys the 64 queries from `begin` on see both halves, or one alone at the ends of
// their band.
struct SwaHalves {
  bool low, high;

  __device__ static SwaHalves of(const SwaBand& band, int begin, int key) {
    return {band.first(begin) < key + kTileRows / 2, key + kTileRows / 2 < begin + 64};
  }
  __device__ bool both() const { return low && high; }
  __device__ int row() const { return low ? 0 : kTileRows / 2; }  // of the half that is seen
};

// A block's own tile of 128 queries of one head and the key tiles they see. The last queries see
// the most keys when the window is wide: they come first.
struct SwaQueries {
  int head;
  int query;     // first of the tile
  int key_tile;  // first
  int key_tiles;

  __device__ static int pieces(const SwaBand& band, int heads) {
    return (band.tokens + kTileRows - 1) / kTileRows * heads;
  }
  __device__ static SwaQueries of(const SwaBand& band, int heads, int piece) {
    const int tile = (band.tokens + kTileRows - 1) / kTileRows - 1 - piece / heads;
    const int first = band.first(tile * kTileRows) / kTileRows;
    return {piece % heads, tile * kTileRows, first, tile + 1 - first};
  }
  __device__ int key(int i) const { return (key_tile + i) * kTileRows; }
};

}  // namespace swax::cuda
