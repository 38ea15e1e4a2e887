// What the tuned forms of sliding-window attention share: the band of a query, the turns of the
// computing warpgroups, pieces of work. Head size 128, bf16. Internal to kernels/cuda.
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

// The two computing warpgroups issue their products in turns: one computes weights while products
// of the other run. Uses the barriers 1 and 2 of the block.
struct SwaTurns {
  int own;

  __device__ __forceinline__ static SwaTurns begin() {
    const SwaTurns turns{static_cast<int>(threadIdx.x / 128 - 1)};
    if (turns.own == 1) named_arrive(1, 256);  // the first warpgroup begins
    return turns;
  }
  __device__ __forceinline__ void wait() const { named_barrier(1 + own, 256); }
  __device__ __forceinline__ void pass() const { named_arrive(2 - own, 256); }
  __device__ __forceinline__ void end() const {
    if (own == 0) named_barrier(1, 256);  // the last turn of the other
  }
};

}  // namespace swax::cuda
