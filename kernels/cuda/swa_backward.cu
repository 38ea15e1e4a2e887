// Backward of the tuned form in three kernels without atomics: delta = do . o; dq (a block owns 128
// queries, key tiles pass by); dk and dv (a block owns 128 keys of a key head, the query tiles of
// its group pass by, heads and tokens rising). Scores and dP are formed twice, which saves an f32
// buffer for dq and its conversion.
#include <algorithm>
#include <climits>
#include <cstddef>

#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/swa_tile.cuh"
#include "kernels/cuda/swa_tuned.h"

namespace swax::cuda {
namespace {

constexpr int kQueryTile = 64;  // of the second kernel
constexpr int kQueryTileBytes = kQueryTile * kSwaSize * 2;

struct Params {
  TensorMap q;  // boxes of 128 tokens, the other ones below of 64
  TensorMap k;
  TensorMap v;
  TensorMap d_o;
  TensorMap q64;
  TensorMap do64;
  SwaBand band;
  const float* lse;  // [T, H]
  float* delta;      // [T, H]
  const __nv_bfloat16* o;
  const __nv_bfloat16* d_o_rows;
  __nv_bfloat16* dq;
  __nv_bfloat16* dk;
  __nv_bfloat16* dv;
  int64_t o_stride, do_stride, dq_stride, dk_stride, dv_stride;
  int heads;
  int group;
  float scale;
};

__device__ __forceinline__ void release(uint64_t* empty) {
  if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

// A warp, one (token, head): 4 elements a lane.
__global__ void delta_kernel(const __grid_constant__ Params p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= static_cast<int64_t>(p.band.tokens) * p.heads) return;
  const int64_t t = row / p.heads;
  const int64_t column = row % p.heads * kSwaSize + threadIdx.x % 32 * 4;
  const uint2 a = *reinterpret_cast<const uint2*>(p.o + t * p.o_stride + column);
  const uint2 b = *reinterpret_cast<const uint2*>(p.d_o_rows + t * p.do_stride + column);
  const auto low = [](uint32_t x) { return __uint_as_float(x << 16); };
  const auto high = [](uint32_t x) { return __uint_as_float(x & 0xffff0000U); };
  float sum = low(a.x) * low(b.x);
  sum = fmaf(high(a.x), high(b.x), sum);
  sum = fmaf(low(a.y), low(b.y), sum);
  sum = fmaf(high(a.y), high(b.y), sum);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) p.delta[row] = sum;
}

// ---- dq ----

constexpr int kKeyStages = 2;
struct QueryShared {
  unsigned char q[kSwaTileBytes];
  unsigned char d_o[kSwaTileBytes];
  unsigned char k[kKeyStages][kSwaTileBytes];
  unsigned char v[kKeyStages][kSwaTileBytes];
  uint64_t own_full;
  uint64_t full[kKeyStages];
  uint64_t empty[kKeyStages];
};
constexpr size_t kQuerySharedBytes = sizeof(QueryShared) + 1024;

struct QueryTiles {
  int head;
  int query;
  int key_tile;
  int key_tiles;
};

__device__ void produce_keys(const Params& p, QueryShared& s, const QueryTiles& tiles) {
  barrier_expect(&s.own_full, 2 * kSwaTileBytes);
  swa_load(s.q, p.q, tiles.head, tiles.query, kSwaTile, &s.own_full);
  swa_load(s.d_o, p.d_o, tiles.head, tiles.query, kSwaTile, &s.own_full);
  for (int i = 0; i < tiles.key_tiles; ++i) {
    const int stage = i % kKeyStages;
    const int key = (tiles.key_tile + i) * kSwaTile;
    if (i >= kKeyStages) {
      barrier_wait(&s.empty[stage], static_cast<uint32_t>(i / kKeyStages + 1) % 2);
    }
    barrier_expect(&s.full[stage], 2 * kSwaTileBytes);
    swa_load(s.k[stage], p.k, tiles.head / p.group, key, kSwaTile, &s.full[stage]);
    swa_load(s.v[stage], p.v, tiles.head / p.group, key, kSwaTile, &s.full[stage]);
  }
}

// Statistics of the two queries of a thread.
struct QueryRows {
  int low[2];
  int last[2];
  float lse[2];  // times log2(e)
  float delta[2];
};

// Scores become P, then P (dP - delta). A query that sees itself alone has P = 1: its score has no
// gradient.
__device__ __forceinline__ void weights(float (&s)[64], const QueryRows& rows, int key, bool full,
                                        float scale) {
#pragma unroll
  for (int e = 0; e < 64; ++e) {
    const int half = e % 4 / 2;
    if (!full) {
      const int j = key + e / 4 * 8 + lane_column() + e % 2;
      s[e] = j >= rows.low[half] && j <= rows.last[half] ? s[e] : -INFINITY;
    }
    s[e] = exp2_fast(fmaf(s[e], scale, -rows.lse[half]));
  }
}
__device__ __forceinline__ void gradients(float (&s)[64], const float (&dp)[64],
                                          const QueryRows& rows, bool full) {
#pragma unroll
  for (int e = 0; e < 64; ++e) {
    const int half = e % 4 / 2;
    s[e] *= dp[e] - rows.delta[half];
    if (!full && rows.low[half] == rows.last[half]) s[e] *= 0.0F;
  }
}

__device__ void consume_keys(const Params& p, QueryShared& s, const QueryTiles& tiles) {
  const uint32_t part = (threadIdx.x / 128 - 1) * 64;
  const int begin = tiles.query + static_cast<int>(part);
  const int query = begin + lane_row();
  const int full_from = p.band.first(begin + 63);
  const float scale = p.scale * kLog2E;
  QueryRows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = query + half * 8;
    const int64_t index = static_cast<int64_t>(t) * p.heads + tiles.head;
    rows.low[half] = p.band.first(t);
    rows.last[half] = t;
    rows.lse[half] = t < p.band.tokens ? p.lse[index] * kLog2E : 0.0F;
    rows.delta[half] = t < p.band.tokens ? p.delta[index] : 0.0F;
  }
  float scores[64];
  float dp[64];
  float dq[64];
  uint32_t ds[8][4];
#pragma unroll
  for (int e = 0; e < 64; ++e) dq[e] = 0.0F;
  barrier_wait(&s.own_full, 0);
  for (int i = 0; i < tiles.key_tiles; ++i) {
    const int stage = i % kKeyStages;
    const int key = (tiles.key_tile + i) * kSwaTile;
    const bool full = key >= full_from && key + kSwaTile - 1 <= begin;
    const uint32_t k = shared_address(s.k[stage]);
    barrier_wait(&s.full[stage], static_cast<uint32_t>(i / kKeyStages) % 2);
    mma_fence();
    swa_rows_by_rows(scores, shared_address(s.q), kSwaTile, part, k, kSwaTile);
    mma_commit();
    swa_rows_by_rows(dp, shared_address(s.d_o), kSwaTile, part, shared_address(s.v[stage]),
                     kSwaTile);
    mma_commit();
    mma_wait<1>();
    mma_hold(scores);
    weights(scores, rows, key, full, scale);
    mma_wait<0>();
    mma_hold(dp);
    gradients(scores, dp, rows, full);
#pragma unroll
    for (int step = 0; step < 8; ++step) as_a(scores, step, ds[step]);
    mma_fence();
    swa_add_rows(dq, ds, k);
    mma_commit();
    mma_wait<0>();
    mma_hold(dq);
    release(&s.empty[stage]);
  }
  swa_store(dq, p.dq + tiles.head * kSwaSize, p.dq_stride, query, p.band.tokens, p.scale, p.scale);
}

__global__ void __launch_bounds__(kSwaThreads, 1) dq_kernel(const __grid_constant__ Params p) {
  extern __shared__ unsigned char shared[];
  QueryShared& s =
      *reinterpret_cast<QueryShared*>(shared + (1024 - shared_address(shared) % 1024) % 1024);
  const int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  QueryTiles tiles{};
  tiles.head = static_cast<int>(blockIdx.y);
  tiles.query = tile * kSwaTile;
  tiles.key_tile = p.band.first(tiles.query) / kSwaTile;
  tiles.key_tiles = tile + 1 - tiles.key_tile;
  if (threadIdx.x == 0) {
    barrier_init(&s.own_full, 1);
    for (int stage = 0; stage < kKeyStages; ++stage) {
      barrier_init(&s.full[stage], 1);
      barrier_init(&s.empty[stage], 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_shrink<24>();
    if (threadIdx.x == 0) produce_keys(p, s, tiles);
  } else {
    registers_grow<240>();
    consume_keys(p, s, tiles);
  }
}

// ---- dk, dv ----

constexpr int kQueryStages = 3;
struct Statistics {       // of the queries of a tile
  float lse[kQueryTile];  // times log2(e); +inf behind the last token, so that P is 0
  float delta[kQueryTile];
  int low[kQueryTile];
};
struct KeyShared {
  unsigned char k[kSwaTileBytes];
  unsigned char v[kSwaTileBytes];
  unsigned char q[kQueryStages][kQueryTileBytes];
  unsigned char d_o[kQueryStages][kQueryTileBytes];
  Statistics statistics[kQueryStages];
  uint64_t own_full;
  uint64_t full[kQueryStages];
  uint64_t empty[kQueryStages];
};
constexpr size_t kKeySharedBytes = sizeof(KeyShared) + 1024;

struct KeyTiles {
  int kv_head;
  int key;
  int query_tile;   // first
  int query_tiles;  // of each head of the group
};

// Thread 0 copies tiles, warp 1 fills the statistics.
__device__ void produce_queries(const Params& p, KeyShared& s, const KeyTiles& tiles) {
  const bool copies = threadIdx.x == 0;
  if (copies) {
    barrier_expect(&s.own_full, 2 * kSwaTileBytes);
    swa_load(s.k, p.k, tiles.kv_head, tiles.key, kSwaTile, &s.own_full);
    swa_load(s.v, p.v, tiles.kv_head, tiles.key, kSwaTile, &s.own_full);
  }
  for (int i = 0; i < tiles.query_tiles * p.group; ++i) {
    const int stage = i % kQueryStages;
    const int head = tiles.kv_head * p.group + i / tiles.query_tiles;
    const int query = (tiles.query_tile + i % tiles.query_tiles) * kQueryTile;
    if (i >= kQueryStages) {
      barrier_wait(&s.empty[stage], static_cast<uint32_t>(i / kQueryStages + 1) % 2);
    }
    if (copies) {
      barrier_expect(&s.full[stage], 2 * kQueryTileBytes);
      swa_load(s.q[stage], p.q64, head, query, kQueryTile, &s.full[stage]);
      swa_load(s.d_o[stage], p.do64, head, query, kQueryTile, &s.full[stage]);
      continue;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = static_cast<int>(threadIdx.x % 32) + half * 32;
      const int t = query + r;
      const int64_t index = static_cast<int64_t>(t) * p.heads + head;
      const bool real = t < p.band.tokens;
      s.statistics[stage].lse[r] = real ? p.lse[index] * kLog2E : INFINITY;
      s.statistics[stage].delta[r] = real ? p.delta[index] : 0.0F;
      s.statistics[stage].low[r] = real ? p.band.first(t) : INT_MAX;
    }
    barrier_arrive(&s.full[stage]);
  }
}

// Scores (keys x queries) become P and dP becomes P (dP - delta), 0 where the key is not seen.
__device__ __forceinline__ void key_weights(float (&s)[32], float (&dp)[32], const Statistics& x,
                                            int key, int query, bool full, float scale) {
#pragma unroll
  for (int e = 0; e < 32; ++e) {
    const int r = e / 4 * 8 + lane_column() + e % 2;
    if (!full) {
      const int j = key + e % 4 / 2 * 8;
      s[e] = j >= x.low[r] && j <= query + r ? s[e] : -INFINITY;
    }
    s[e] = exp2_fast(fmaf(s[e], scale, -x.lse[r]));
    dp[e] = s[e] * (dp[e] - x.delta[r]);
    if (!full && x.low[r] == query + r) dp[e] *= 0.0F;  // sees itself alone
  }
}

__device__ void consume_queries(const Params& p, KeyShared& s, const KeyTiles& tiles) {
  const uint32_t part = (threadIdx.x / 128 - 1) * 64;
  const int begin = tiles.key + static_cast<int>(part);
  const int key = begin + lane_row();
  const float scale = p.scale * kLog2E;
  float scores[32];
  float dp[32];
  float dk[64];
  float dv[64];
  uint32_t a[4][4];
  uint32_t b[4][4];
#pragma unroll
  for (int e = 0; e < 64; ++e) dk[e] = dv[e] = 0.0F;
  barrier_wait(&s.own_full, 0);
  for (int i = 0; i < tiles.query_tiles * p.group; ++i) {
    const int stage = i % kQueryStages;
    const int query = (tiles.query_tile + i % tiles.query_tiles) * kQueryTile;
    const Statistics& x = s.statistics[stage];
    const uint32_t q = shared_address(s.q[stage]);
    const uint32_t d_o = shared_address(s.d_o[stage]);
    barrier_wait(&s.full[stage], static_cast<uint32_t>(i / kQueryStages) % 2);
    mma_fence();
    swa_rows_by_rows(scores, shared_address(s.k), kSwaTile, part, q, kQueryTile);
    mma_commit();
    swa_rows_by_rows(dp, shared_address(s.v), kSwaTile, part, d_o, kQueryTile);
    mma_commit();
    mma_wait<0>();
    mma_hold(scores);
    mma_hold(dp);
    const bool full = begin + 63 <= query && begin >= x.low[kQueryTile - 1];
    key_weights(scores, dp, x, key, query, full, scale);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      as_a(scores, step, a[step]);
      as_a(dp, step, b[step]);
    }
    mma_fence();
    swa_add_rows(dv, a, d_o);
    swa_add_rows(dk, b, q);
    mma_commit();
    mma_wait<0>();
    mma_hold(dv);
    mma_hold(dk);
    release(&s.empty[stage]);
  }
  const int64_t column = static_cast<int64_t>(tiles.kv_head) * kSwaSize;
  swa_store(dk, p.dk + column, p.dk_stride, key, p.band.tokens, p.scale, p.scale);
  swa_store(dv, p.dv + column, p.dv_stride, key, p.band.tokens, 1.0F, 1.0F);
}

// Query tiles that see a key of the block: the first visible key rises with the query.
__device__ int count_query_tiles(const SwaBand& band, int query_tile, int last_key) {
  int tiles = 0;
  for (int found = kSwaThreads; found == kSwaThreads; tiles += found) {
    const int64_t query =
        (static_cast<int64_t>(query_tile) + tiles + static_cast<int>(threadIdx.x)) * kQueryTile;
    const bool sees = query < band.tokens && band.first(static_cast<int>(query)) <= last_key;
    found = __syncthreads_count(sees ? 1 : 0);
  }
  return tiles;
}

__global__ void __launch_bounds__(kSwaThreads, 1) dk_dv_kernel(const __grid_constant__ Params p) {
  extern __shared__ unsigned char shared[];
  KeyShared& s =
      *reinterpret_cast<KeyShared*>(shared + (1024 - shared_address(shared) % 1024) % 1024);
  KeyTiles tiles{};
  tiles.kv_head = static_cast<int>(blockIdx.y);
  tiles.key = static_cast<int>(blockIdx.x) * kSwaTile;
  tiles.query_tile = tiles.key / kQueryTile;
  const int last_key = min(tiles.key + kSwaTile, p.band.tokens) - 1;
  tiles.query_tiles = count_query_tiles(p.band, tiles.query_tile, last_key);
  if (threadIdx.x == 0) {
    barrier_init(&s.own_full, 1);
    for (int stage = 0; stage < kQueryStages; ++stage) {
      barrier_init(&s.full[stage], 1 + 32);  // copies and a warp of statistics
      barrier_init(&s.empty[stage], 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_shrink<24>();
    if (threadIdx.x == 0 || threadIdx.x / 32 == 1) produce_queries(p, s, tiles);
  } else {
    registers_grow<240>();
    consume_queries(p, s, tiles);
  }
}

Status params_of(const SwaBackwardArgs& a, Params* p) {
  constexpr const char* kOp = "swa_backward";
  SWAX_TRY(tile_map(kOp, a.q_THE, kSwaTile, &p->q));
  SWAX_TRY(tile_map(kOp, a.k_TGE, kSwaTile, &p->k));
  SWAX_TRY(tile_map(kOp, a.v_TGE, kSwaTile, &p->v));
  SWAX_TRY(tile_map(kOp, a.do_THE, kSwaTile, &p->d_o));
  SWAX_TRY(tile_map(kOp, a.q_THE, kQueryTile, &p->q64));
  SWAX_TRY(tile_map(kOp, a.do_THE, kQueryTile, &p->do64));
  p->band = {static_cast<const int32_t*>(a.doc_start_T.data), static_cast<int>(a.q_THE.dims[0]),
             static_cast<int>(std::min(a.window, a.q_THE.dims[0]))};
  p->lse = a.lse_TH.f32();
  p->delta = a.scratch.f32();
  p->o = static_cast<const __nv_bfloat16*>(a.o_THE.data);
  p->d_o_rows = static_cast<const __nv_bfloat16*>(a.do_THE.data);
  p->dq = static_cast<__nv_bfloat16*>(a.dq_THE.data);
  p->dk = static_cast<__nv_bfloat16*>(a.dk_TGE.data);
  p->dv = static_cast<__nv_bfloat16*>(a.dv_TGE.data);
  p->o_stride = a.o_THE.row_stride;
  p->do_stride = a.do_THE.row_stride;
  p->dq_stride = a.dq_THE.row_stride;
  p->dk_stride = a.dk_TGE.row_stride;
  p->dv_stride = a.dv_TGE.row_stride;
  p->heads = static_cast<int>(a.q_THE.dims[1]);
  p->group = static_cast<int>(a.q_THE.dims[1] / a.k_TGE.dims[1]);
  p->scale = a.scale;
  return ok();
}

}  // namespace

bool swa_tuned_takes(const SwaBackwardArgs& a) {
  const SwaArgs forward{a.q_THE, a.k_TGE, a.v_TGE, {}, a.o_THE, {}, a.window, a.scale};
  return swa_tuned_takes(forward) && has_tile_map(a.do_THE) && has_tile_map(a.dq_THE) &&
         has_tile_map(a.dk_TGE) && has_tile_map(a.dv_TGE);
}

Status launch_swa_backward_tuned(CUstream_st* stream, const SwaBackwardArgs& a) {
  Params p{};
  SWAX_TRY(params_of(a, &p));
  const int64_t rows = a.q_THE.dims[0] * a.q_THE.dims[1];
  constexpr int kWarps = 8;
  const Launch each_row{dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)), kWarps * 32, 0,
                        stream};
  SWAX_TRY(launch("swa_backward", each_row, delta_kernel, p));
  const auto tiles = static_cast<unsigned>((a.q_THE.dims[0] + kSwaTile - 1) / kSwaTile);
  const Launch queries{dim3(tiles, static_cast<unsigned>(p.heads)), kSwaThreads, kQuerySharedBytes,
                       stream};
  SWAX_TRY(launch("swa_backward", queries, dq_kernel, p));
  const Launch keys{dim3(tiles, static_cast<unsigned>(a.k_TGE.dims[1])), kSwaThreads,
                    kKeySharedBytes, stream};
  return launch("swa_backward", keys, dk_dv_kernel, p);
}

}  // namespace swax::cuda
