// dq = scale dS K from the dS that was kept. Two warpgroups own 128 of the 256 queries of a piece
// each; tiles of 64 keys pass by, with the four tiles of dS of these keys. Bound by the reading of
// dS: each tile comes once, and 256 queries share a tile of keys.
#include <algorithm>
#include <climits>

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/swa_backward.cuh"

namespace swax::cuda {
namespace {

using Params = SwaBackwardParams;

constexpr int kOwn = 2;                // query tiles of a warpgroup
constexpr int kQueryTiles = 2 * kOwn;  // of a piece
constexpr int kStages = 4;
constexpr int kKeyBytes = kSwaKeptTile * kTileColumns * 2;

struct Shared {
  unsigned char keys[kStages][kKeyBytes];
  unsigned char kept[kStages][kQueryTiles][kKeptBytes];
  uint64_t full[kStages];
  uint64_t empty[kStages];
};
static_assert(sizeof(Shared) <= kSharedMax);

// 256 queries of a head. The last ones see the most keys when the window is wide: they come first.
struct Piece {
  int head;        // of the launch
  int query_tile;  // first

  __host__ __device__ static int count(const Params& p) {
    constexpr int kQueries = kQueryTiles * kSwaKeptTile;
    return (p.band.tokens + kQueries - 1) / kQueries * p.kv_heads * p.group;
  }
  __device__ static Piece of(const Params& p, int piece) {
    const int heads = p.kv_heads * p.group;
    return {piece % heads, (count(p) / heads - 1 - piece / heads) * kQueryTiles};
  }
};

// Key tiles that a query tile has in memory: low .. itself; none behind the last token.
__device__ __forceinline__ int low_of(const Params& p, int query_tile) {
  const int query = query_tile * static_cast<int>(kSwaKeptTile);
  return query < p.band.tokens ? p.band.first(query) / static_cast<int>(kSwaKeptTile) : INT_MAX;
}

__device__ void produce(const Params& p, Shared& s) {
  const uint64_t policy = read_once();
  RingPlace<kStages> place;
  for (int n = 0; swa_piece(n) < Piece::count(p); ++n) {
    const Piece x = Piece::of(p, swa_piece(n));
    const int kv_head = p.kv_first + x.head / p.group;
    int low[kQueryTiles];
    int last = x.query_tile;
#pragma unroll
    for (int i = 0; i < kQueryTiles; ++i) {
      low[i] = low_of(p, x.query_tile + i);
      if (low[i] != INT_MAX) last = x.query_tile + i;
    }
    for (int key = low[0]; key <= last; ++key) {
      barrier_wait(&s.empty[place.stage], place.phase ^ 1U);
      uint64_t* full = &s.full[place.stage];
      uint32_t bytes = kKeyBytes;
#pragma unroll
      for (int i = 0; i < kQueryTiles; ++i) {
        bytes += low[i] <= key && key <= x.query_tile + i ? kKeptBytes : 0;
      }
      barrier_expect(full, bytes);
#pragma unroll
      for (int i = 0; i < kQueryTiles; ++i) {
        if (low[i] > key || key > x.query_tile + i) continue;
        bulk_load(s.kept[place.stage][i], p.kept.tile(x.head, x.query_tile + i, key), kKeptBytes,
                  full, policy);
      }
      load_tile(s.keys[place.stage], p.k_small, 0, kv_head, key * kSwaKeptTile, kSwaKeptTile, full);
      place.next();
    }
  }
}

// Adds what the keys of a stage give to the query tiles of this warpgroup.
__device__ __forceinline__ void add_keys(const Shared& s, int stage, int own,
                                         const int (&low)[kOwn], int key, int query_tile,
                                         float (&dq)[kOwn][64]) {
  const uint64_t keys = operand<Major::kMN>(shared_address(s.keys[stage]), kSwaKeptTile);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (low[i] > key || key > query_tile + i) continue;
    const uint64_t kept = operand<Major::kMN>(shared_address(s.kept[stage][own + i]), kSwaKeptTile);
    mma_fence();
#pragma unroll
    for (uint32_t k = 0; k < kSwaKeptTile / 16; ++k) {
      mma<Major::kMN, Major::kMN>(dq[i], further(kept, k * 2048), further(keys, k * 2048), 1);
    }
  }
  mma_fence();  // of a tile that was left out; the compiler would put it there and say so
  mma_commit();
}

__device__ void consume(const Params& p, Shared& s) {
  const int own = static_cast<int>(computing_part()) * kOwn;
  const int tiles = (p.band.tokens + kSwaKeptTile - 1) / kSwaKeptTile;
  RingPlace<kStages> place;
  for (int n = 0; swa_piece(n) < Piece::count(p); ++n) {
    const Piece x = Piece::of(p, swa_piece(n));
    const int query_tile = x.query_tile + own;
    int low[kOwn];
    float dq[kOwn][64];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      low[i] = uniform(low_of(p, query_tile + i));
#pragma unroll
      for (int e = 0; e < 64; ++e) dq[i][e] = 0.0F;
    }
    const int last = min(x.query_tile + kQueryTiles, tiles) - 1;
    int held = -1;  // stage whose products run
#pragma unroll 1
    for (int key = uniform(low_of(p, x.query_tile)); key <= last; ++key) {
      barrier_wait(&s.full[place.stage], place.phase);
      add_keys(s, place.stage, own, low, key, query_tile, dq);
      mma_wait<1>();
      if (held >= 0) release(&s.empty[held]);
      held = place.stage;
      place.next();
    }
    const int query = query_tile * static_cast<int>(kSwaKeptTile) + kept_query();
    __nv_bfloat16* to = p.dq + int64_t{p.kv_first * p.group + x.head} * kSwaSize;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int row = query + i * static_cast<int>(kSwaKeptTile);
      turn_back(p.turn, p.band.tokens, dq[i], {row, row + 2}, [&] {
        if (i > 0) return;
        mma_wait<0>();
        release(&s.empty[held]);
#pragma unroll
        for (float(&x)[64] : dq) mma_hold(x);
      });
      store_rows<2>(dq[i], to, p.dq_stride, row, p.band.tokens, p.scale, p.scale);
    }
  }
}

__global__ void __launch_bounds__(kRoleThreads, 1)
    kept_dq_kernel(const __grid_constant__ Params p) {
  Shared& s = shared_block<Shared>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&s.full[i], 1);
      barrier_init(&s.empty[i], kReleases<Release::kWarp>);
    }
    barrier_init_fence();
  }
  __syncthreads();
  run_roles(
      [&] {
        if (threadIdx.x == 0) produce(p, s);
      },
      [&] { consume(p, s); });
}

}  // namespace

Status launch_swa_kept_dq(CUstream_st* stream, const SwaBackwardParams& p) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(kSwaBlocks, Piece::count(p)));
  return launch("swa_backward", {blocks, kRoleThreads, sizeof(Shared), stream, kRoleRegisters},
                kept_dq_kernel, p);
}

}  // namespace swax::cuda
