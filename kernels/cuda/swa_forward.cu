// Forward of the tuned form. A block owns 128 queries of one head: one warp copies key and value
// tiles of 128 through two stages, two warpgroups own 64 queries each. The product of scores of the
// next tile runs while P V of this one does; softmax of one warpgroup hides behind the other.
#include <algorithm>
#include <cstddef>

#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/swa_tile.cuh"
#include "kernels/cuda/swa_tuned.h"

namespace swax::cuda {
namespace {

constexpr int kStages = 2;

struct Params {
  TensorMap q;
  TensorMap k;
  TensorMap v;
  SwaBand band;
  __nv_bfloat16* o;
  float* lse;
  int64_t o_stride;
  int heads;
  int group;
  float scale;
};

struct Shared {
  unsigned char q[kSwaTileBytes];
  unsigned char k[kStages][kSwaTileBytes];
  unsigned char v[kStages][kSwaTileBytes];
  uint64_t q_full;
  uint64_t k_full[kStages];
  uint64_t k_empty[kStages];
  uint64_t v_full[kStages];
  uint64_t v_empty[kStages];
};
constexpr size_t kSharedBytes = sizeof(Shared) + 1024;  // room to align

struct Tiles {
  int head;
  int query;     // first of the block
  int key_tile;  // first
  int key_tiles;
};

__device__ void produce(const Params& p, Shared& s, const Tiles& tiles) {
  const int kv_head = tiles.head / p.group;
  barrier_expect(&s.q_full, kSwaTileBytes);
  swa_load(s.q, p.q, tiles.head, tiles.query, kSwaTile, &s.q_full);
  for (int i = 0; i < tiles.key_tiles; ++i) {
    const int stage = i % kStages;
    const uint32_t parity = static_cast<uint32_t>(i / kStages + 1) % 2;
    const int key = (tiles.key_tile + i) * kSwaTile;
    if (i >= kStages) barrier_wait(&s.k_empty[stage], parity);
    barrier_expect(&s.k_full[stage], kSwaTileBytes);
    swa_load(s.k[stage], p.k, kv_head, key, kSwaTile, &s.k_full[stage]);
    if (i >= kStages) barrier_wait(&s.v_empty[stage], parity);
    barrier_expect(&s.v_full[stage], kSwaTileBytes);
    swa_load(s.v[stage], p.v, kv_head, key, kSwaTile, &s.v_full[stage]);
  }
}

// Softmax state of the two rows of a thread. Scores are in units of log2(e) / scale.
struct Rows {
  int low[2];   // first visible key
  int last[2];  // the query itself
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0F, 0.0F};  // this thread's columns alone
};

// Scores become weights relative to the new maximum; keep: what older weights shrink by.
__device__ __forceinline__ void softmax(float (&s)[64], Rows& rows, int key, bool full, float scale,
                                        float (&keep)[2]) {
  if (!full) {
#pragma unroll
    for (int e = 0; e < 64; ++e) {
      const int j = key + e / 4 * 8 + lane_column() + e % 2;
      const int half = e % 4 / 2;
      s[e] = j >= rows.low[half] && j <= rows.last[half] ? s[e] : -INFINITY;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = rows.top[half];
#pragma unroll
    for (int g = 0; g < 16; ++g) {
      top = fmaxf(top, fmaxf(s[4 * g + 2 * half], s[4 * g + 2 * half + 1]));
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
    // No key seen yet: any finite shift gives weights of 0.
    const float shift = top == -INFINITY ? 0.0F : top * scale;
    keep[half] = exp2_fast(fmaf(rows.top[half], scale, -shift));
    rows.top[half] = top;
    float sum = 0.0F;
#pragma unroll
    for (int g = 0; g < 16; ++g) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[4 * g + 2 * half + i];
        x = exp2_fast(fmaf(x, scale, -shift));
        sum += x;
      }
    }
    rows.sum[half] = fmaf(rows.sum[half], keep[half], sum);
  }
}

__device__ __forceinline__ void release(uint64_t* empty) {
  if (threadIdx.x % 32 == 0) barrier_arrive(empty);
}

__device__ __forceinline__ void finish(const Params& p, const Tiles& tiles, int query, Rows& rows,
                                       const float (&o)[64]) {
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    sum += __shfl_xor_sync(0xffffffffU, sum, 1);
    sum += __shfl_xor_sync(0xffffffffU, sum, 2);
    inverse[half] = 1.0F / sum;
    const int64_t t = query + half * 8;
    if (t < p.band.tokens && threadIdx.x % 4 == 0) {
      p.lse[t * p.heads + tiles.head] = fmaf(rows.top[half], p.scale, logf(sum));
    }
  }
  swa_store(o, p.o + tiles.head * kSwaSize, p.o_stride, query, p.band.tokens, inverse[0],
            inverse[1]);
}

__device__ void consume(const Params& p, Shared& s, const Tiles& tiles) {
  const uint32_t part = (threadIdx.x / 128 - 1) * 64;  // this warpgroup's rows of the tile
  const int begin = tiles.query + static_cast<int>(part);
  const int end = begin + 63;  // last query of the warpgroup
  const int query = begin + lane_row();
  const int full_from = p.band.first(end);
  const float scale = p.scale * kLog2E;
  Rows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.low[half] = p.band.first(query + half * 8);
    rows.last[half] = query + half * 8;
  }
  float scores[64];
  float o[64];
  float keep[2];
  uint32_t weights[8][4];
#pragma unroll
  for (int e = 0; e < 64; ++e) o[e] = 0.0F;
  const uint32_t q = shared_address(s.q);
  barrier_wait(&s.q_full, 0);
  for (int i = 0; i <= tiles.key_tiles; ++i) {
    const int stage = i % kStages;
    const int key = (tiles.key_tile + i) * kSwaTile;
    const bool more = i < tiles.key_tiles;
    mma_fence();
    if (more) {
      barrier_wait(&s.k_full[stage], static_cast<uint32_t>(i / kStages) % 2);
      swa_rows_by_rows(scores, q, kSwaTile, part, shared_address(s.k[stage]), kSwaTile);
    }
    mma_commit();
    if (i > 0) {
      const int before = (i - 1) % kStages;
      barrier_wait(&s.v_full[before], static_cast<uint32_t>((i - 1) / kStages) % 2);
      swa_add_rows(o, weights, shared_address(s.v[before]));
    }
    mma_commit();
    mma_wait<1>();
    mma_hold(scores);
    if (more) {
      release(&s.k_empty[stage]);
      softmax(scores, rows, key, key >= full_from && key + kSwaTile - 1 <= begin, scale, keep);
    }
    mma_wait<0>();
    mma_hold(o);
    if (i > 0) release(&s.v_empty[(i - 1) % kStages]);
    if (!more) break;
#pragma unroll
    for (int e = 0; e < 64; ++e) o[e] *= keep[e % 4 / 2];
#pragma unroll
    for (int k = 0; k < 8; ++k) as_a(scores, k, weights[k]);
  }
  finish(p, tiles, query, rows, o);
}

__global__ void __launch_bounds__(kSwaThreads, 1) forward_kernel(const __grid_constant__ Params p) {
  extern __shared__ unsigned char shared[];
  Shared& s = *reinterpret_cast<Shared*>(shared + (1024 - shared_address(shared) % 1024) % 1024);
  // The last tiles see the most keys when the window is wide: they start first.
  const int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  Tiles tiles{};
  tiles.head = static_cast<int>(blockIdx.y);
  tiles.query = tile * kSwaTile;
  tiles.key_tile = p.band.first(tiles.query) / kSwaTile;
  tiles.key_tiles = tile + 1 - tiles.key_tile;
  if (threadIdx.x == 0) {
    barrier_init(&s.q_full, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      barrier_init(&s.k_full[stage], 1);
      barrier_init(&s.v_full[stage], 1);
      barrier_init(&s.k_empty[stage], 8);  // warps that compute
      barrier_init(&s.v_empty[stage], 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    registers_shrink<24>();
    if (threadIdx.x == 0) produce(p, s, tiles);
  } else {
    registers_grow<240>();
    consume(p, s, tiles);
  }
}

}  // namespace

bool swa_tuned_takes(const SwaArgs& a) {
  constexpr int64_t kTokensMax = 1 << 30;  // positions are int
  return a.q_THE.dims[2] == kSwaSize && a.q_THE.dims[0] <= kTokensMax && has_tile_map(a.q_THE) &&
         has_tile_map(a.k_TGE) && has_tile_map(a.v_TGE) && has_tile_map(a.o_THE);
}

Status launch_swa_tuned(CUstream_st* stream, const SwaArgs& a) {
  Params p{};
  SWAX_TRY(tile_map("swa", a.q_THE, kSwaTile, &p.q));
  SWAX_TRY(tile_map("swa", a.k_TGE, kSwaTile, &p.k));
  SWAX_TRY(tile_map("swa", a.v_TGE, kSwaTile, &p.v));
  p.band = {static_cast<const int32_t*>(a.doc_start_T.data), static_cast<int>(a.q_THE.dims[0]),
            static_cast<int>(std::min(a.window, a.q_THE.dims[0]))};
  p.o = static_cast<__nv_bfloat16*>(a.o_THE.data);
  p.lse = a.lse_TH.f32();
  p.o_stride = a.o_THE.row_stride;
  p.heads = static_cast<int>(a.q_THE.dims[1]);
  p.group = static_cast<int>(a.q_THE.dims[1] / a.k_TGE.dims[1]);
  p.scale = a.scale;
  const auto tiles = static_cast<unsigned>((a.q_THE.dims[0] + kSwaTile - 1) / kSwaTile);
  const Launch l{dim3(tiles, static_cast<unsigned>(p.heads)), kSwaThreads, kSharedBytes, stream};
  return launch("swa", l, forward_kernel, p);
}

}  // namespace swax::cuda
