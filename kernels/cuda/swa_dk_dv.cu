// dk and dv. Two warpgroups own 64 of the 128 keys of a piece each; tiles of 64 queries pass by.
// dS, which the product of dk takes from registers, can be kept in memory for dq.
#include <algorithm>
#include <climits>

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/swa_backward.cuh"

namespace swax::cuda {
namespace {

using Params = SwaBackwardParams;

constexpr int kStages = 3;
// The statistics of a stage and `seen` are ordinary memory.
constexpr Release kBy = Release::kLane;
using Reader = RingReader<kStages, kBy>;
using Writer = RingWriter<kStages, kBy>;
constexpr int kHalfTile = kTileBytes / 2;  // a stage holds 64 rows of q, then 64 of do
static_assert(kSwaQueryTile * 2 == kTileRows);

struct Statistics {          // of the queries of a tile
  float lse[kSwaQueryTile];  // times log2(e); +inf behind the last token, so that P is 0
  float delta[kSwaQueryTile];
  int low[kSwaQueryTile];
};
struct Shared {
  unsigned char k[2][kTileBytes];
  unsigned char v[2][kTileBytes];
  TileRing<kStages, kBy> ring;
  Statistics statistics[kStages];
  OwnTiles<2, kBy> own;
  int seen[2][2];  // query tiles seen by the keys of the first warpgroup, and by any of the piece
};
static_assert(sizeof(Shared) <= kSharedMax);

// 128 keys of a key head. The first keys are seen by the most queries when the window is wide. A
// block takes every gridDim.x-th: in rounds forth and back (swa_piece) this kernel is 3 % slower on
// an H200, although they share the work more evenly.
struct Piece {
  int kv_head;
  int key;

  __device__ static int count(const Params& p) {
    return (p.band.tokens + kTileRows - 1) / kTileRows * p.kv_heads;
  }
  __device__ static Piece of(const Params& p, int piece) {
    return {p.kv_first + piece % p.kv_heads, piece / p.kv_heads * kTileRows};
  }
  __device__ int query_tile() const { return key / kSwaQueryTile; }  // first
};

// How many query tiles from the first of the piece see a key up to last_key: the first key that a
// query sees rises with the query. For a whole warp.
__device__ int count_tiles(const SwaBand& band, const Piece& x, int last_key) {
  int tiles = 0;
  for (int found = 32; found == 32; tiles += found) {
    const int64_t query =
        (int64_t{x.query_tile()} + tiles + static_cast<int>(threadIdx.x % 32)) * kSwaQueryTile;
    const bool sees = query < band.tokens && band.first(static_cast<int>(query)) <= last_key;
    found = __popc(__ballot_sync(0xffffffffU, sees));
  }
  return tiles;
}
__device__ int count_tiles(const Params& p, const Piece& x) {
  return count_tiles(p.band, x, min(x.key + kTileRows, p.band.tokens) - 1);
}

// One warp copies tiles.
__device__ void produce(const Params& p, Shared& s) {
  Writer ring{s.ring};
  int n = 0;
  for (int piece = static_cast<int>(blockIdx.x); piece < Piece::count(p); piece += gridDim.x) {
    const Piece x = Piece::of(p, piece);
    const int tiles = count_tiles(p, x);
    const int early = count_tiles(p.band, x, min(x.key + 64, p.band.tokens) - 1);
    if (threadIdx.x == 0) {
      barrier_wait(&s.own.empty[n % 2], static_cast<uint32_t>(n / 2 + 1) % 2);
      s.seen[n % 2][0] = early;
      s.seen[n % 2][1] = tiles;
      uint64_t* full = s.own.expect(n, 2 * kTileBytes);
      load_tile(s.k[n % 2], p.k, 0, x.kv_head, x.key, kTileRows, full);
      load_tile(s.v[n % 2], p.v, 0, x.kv_head, x.key, kTileRows, full);
      for (int i = 0; i < tiles * p.group; ++i) {
        const int head = x.kv_head * p.group + i / tiles;
        const int query = (x.query_tile() + i % tiles) * kSwaQueryTile;
        const int stage = ring.room();
        uint64_t* arrived = &s.ring.full[stage];
        barrier_expect(arrived, kTileBytes);
        load_tile(s.ring.tile[stage], p.q_small, 0, head, query, kSwaQueryTile, arrived);
        load_tile(s.ring.tile[stage] + kHalfTile, p.do_small, 0, head, query, kSwaQueryTile,
                  arrived);
        ring.place.next();
      }
    }
    __syncwarp();
    ++n;
  }
}

// Another warp brings the statistics of the queries.
__device__ void describe(const Params& p, Shared& s) {
  Writer ring{s.ring};
  for (int piece = static_cast<int>(blockIdx.x); piece < Piece::count(p); piece += gridDim.x) {
    const Piece x = Piece::of(p, piece);
    const int tiles = count_tiles(p, x);
    for (int i = 0; i < tiles * p.group; ++i) {
      const int head = x.kv_head * p.group + i / tiles;
      const int query = (x.query_tile() + i % tiles) * kSwaQueryTile;
      const int stage = ring.room();
      Statistics& out = s.statistics[stage];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = static_cast<int>(threadIdx.x % 32) + half * 32;
        const int t = query + r;
        const int64_t index = static_cast<int64_t>(t) * p.heads + head;
        const bool real = t < p.band.tokens;
        out.lse[r] = real ? p.lse[index] * kLog2E : INFINITY;
        out.delta[r] = real ? p.delta[index] : 0.0F;
        out.low[r] = real ? p.band.first(t) : INT_MAX;
      }
      barrier_arrive(&s.ring.full[stage]);
      ring.place.next();
    }
  }
}

// Scores (keys x queries) become P, 0 where the key is not seen. The mask is a branch of its own:
// in the loop over P it would become a choice for each element of every tile.
__device__ __forceinline__ void weigh(float (&s)[32], const Statistics& x, int key, int query,
                                      bool full, float scale) {
  if (!full) {
#pragma unroll
    for (int e = 0; e < 32; ++e) {
      const int r = e / 4 * 8 + lane_column() + e % 2;
      const int j = key + e % 4 / 2 * 8;
      s[e] = j >= x.low[r] && j <= query + r ? s[e] : -INFINITY;
    }
  }
#pragma unroll
  for (int e = 0; e < 32; ++e) {
    s[e] = exp2_fast(fmaf(s[e], scale, -x.lse[e / 4 * 8 + lane_column() + e % 2]));
  }
}
// dP becomes P (dP - delta). A query that sees itself alone has P = 1: its score has no gradient.
__device__ __forceinline__ void differentiate(const float (&s)[32], float (&dp)[32],
                                              const Statistics& x, int query, bool full) {
#pragma unroll
  for (int e = 0; e < 32; ++e) {
    dp[e] = s[e] * (dp[e] - x.delta[e / 4 * 8 + lane_column() + e % 2]);
  }
  if (full) return;
#pragma unroll
  for (int e = 0; e < 32; ++e) {
    const int r = e / 4 * 8 + lane_column() + e % 2;
    if (x.low[r] == query + r) dp[e] *= 0.0F;
  }
}

// One tile of dS, out of the way of q and do in the L2 cache.
__device__ __forceinline__ void keep(unsigned char* tile, const uint32_t (&ds)[4][4],
                                     uint64_t policy) {
  const uint32_t place = kept_place();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const uint32_t(&a)[4] = ds[2 * part];
      const uint32_t(&b)[4] = ds[2 * part + 1];
      unsigned char* to = tile + (place ^ (part * 64U)) + half * 1024;
      asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to),
                   "r"(a[half]), "r"(a[2 + half]), "r"(b[half]), "r"(b[2 + half]), "l"(policy)
                   : "memory");
    }
  }
}

struct Gradients {
  float dk[64];
  float dv[64];
};

// Adds what the queries of the next tile give to the 64 keys from `begin` on; k and v: their rows;
// kept: where dS goes.
template <bool kKeep>
__device__ __forceinline__ void add_tile(const Params& p, const Statistics* statistics, uint32_t k,
                                         uint32_t v, int begin, int query, unsigned char* kept,
                                         Reader& ring, Gradients& out) {
  const int key = begin + lane_row();
  const Statistics& x = statistics[ring.taken.stage];
  float scores[32];
  float dp[32];
  uint32_t weights[4][4];
  uint32_t ds[4][4];
  const uint32_t q = ring.take();
  const uint32_t d_o = q + kHalfTile;
  rows_by_rows(scores, k, kTileRows, 0, q, kSwaQueryTile);
  mma_commit();
  rows_by_rows(dp, v, kTileRows, 0, d_o, kSwaQueryTile);
  mma_commit();
  const bool full = begin + 63 <= query && begin >= x.low[kSwaQueryTile - 1];
  mma_wait<1>();
  mma_hold(scores);
  weigh(scores, x, key, query, full, p.scale * kLog2E);
#pragma unroll
  for (int step = 0; step < 4; ++step) as_a(scores, step, weights[step]);
  mma_fence();
  add_rows(out.dv, weights, d_o);
  mma_commit();
  mma_wait<1>();
  mma_hold(dp);
  differentiate(scores, dp, x, query, full);
#pragma unroll
  for (int step = 0; step < 4; ++step) as_a(dp, step, ds[step]);
  mma_fence();
  add_rows(out.dk, ds, q);
  mma_commit();
  if constexpr (kKeep) keep(kept, ds, read_once());
  mma_wait<0>();
  mma_hold(out.dv);
  mma_hold(out.dk);
  ring.give();
}

template <bool kKeep>
__device__ void consume(const Params& p, Shared& s) {
  const int part = static_cast<int>(computing_part());
  Reader ring{s.ring};
  int n = 0;
  for (int piece = static_cast<int>(blockIdx.x); piece < Piece::count(p); piece += gridDim.x) {
    const Piece x = Piece::of(p, piece);
    const int begin = x.key + part * 64;
    Gradients out;
#pragma unroll
    for (int e = 0; e < 64; ++e) out.dk[e] = out.dv[e] = 0.0F;
    s.own.wait(n);
    const int tiles = uniform(s.seen[n % 2][1]);
    // The second 64 keys are not seen by the first 64 queries.
    const int from = min(part, tiles);
    const int to = part == 0 ? uniform(s.seen[n % 2][0]) : tiles;
    const uint32_t own_rows =
        static_cast<uint32_t>(part) * 64 * 128;  // bytes before them in a block of the tile
    const uint32_t k = shared_address(s.k[n % 2]) + own_rows;
    const uint32_t v = shared_address(s.v[n % 2]) + own_rows;
#pragma unroll 1
    for (int head = 0; head < p.group; ++head) {
      ring.skip(from);
      const int64_t row = int64_t{x.kv_head - p.kv_first} * p.group + head;
      unsigned char* kept =
          kKeep ? p.kept.tile(row, x.query_tile() + from, begin / kSwaKeptTile) : nullptr;
#pragma unroll 1
      for (int i = from; i < to; ++i) {
        const int tile = x.query_tile() + i;
        add_tile<kKeep>(p, s.statistics, k, v, begin, tile * kSwaQueryTile, kept, ring, out);
        if constexpr (kKeep) kept += p.kept.next_queries(tile);
      }
      ring.skip(tiles - to);
    }
    s.own.done(n);
    const int64_t column = static_cast<int64_t>(x.kv_head) * kSwaSize;
    const int key = begin + lane_row();
    turn_back(p.turn, p.band.tokens, out.dk, {key, key + 8}, [&] {
      store_rows(out.dv, p.dv + column, p.dv_stride, key, p.band.tokens, 1.0F, 1.0F);
    });
    store_rows(out.dk, p.dk + column, p.dk_stride, key, p.band.tokens, p.scale, p.scale);
    ++n;
  }
}

template <bool kKeep>
__global__ void __launch_bounds__(kRoleThreads, 1) dk_dv_kernel(const __grid_constant__ Params p) {
  Shared& s = shared_block<Shared>();
  if (threadIdx.x == 0) {
    s.ring.init(1 + 32);  // copies and a warp of statistics
    s.own.init();
    barrier_init_fence();
  }
  __syncthreads();
  run_roles(
      [&] {
        if (threadIdx.x / 32 == 0) produce(p, s);
        if (threadIdx.x / 32 == 1) describe(p, s);
      },
      [&] { consume<kKeep>(p, s); });
}

}  // namespace

Status launch_swa_dk_dv(CUstream_st* stream, const SwaBackwardParams& p) {
  const Launch l{swa_blocks(p.band.tokens, p.kv_heads), kRoleThreads, sizeof(Shared), stream,
                 kRoleRegisters};
  return p.kept.tiles == nullptr ? launch("swa_backward", l, dk_dv_kernel<false>, p)
                                 : launch("swa_backward", l, dk_dv_kernel<true>, p);
}

}  // namespace swax::cuda
