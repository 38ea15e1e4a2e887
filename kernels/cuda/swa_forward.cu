// Forward of the tuned form. A piece of work is 128 queries of one head: a thread copies its key
// and value tiles of 128 through a ring, two warpgroups own 64 queries each. Scores of the next
// tile are formed beside P V of this one; the softmax of one warpgroup hides behind the products of
// the other. They fall into step by themselves: barriers that gave them turns cost 1 % (H200).
#include <algorithm>
#include <cstddef>

#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/swa_tile.cuh"
#include "kernels/cuda/swa_tuned.h"

namespace swax::cuda {
namespace {

constexpr int kStages = 5;

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
  unsigned char q[2][kTileBytes];
  TileRing<kStages> ring;
  OwnTiles<2> own;
};
static_assert(sizeof(Shared) <= kSharedMax);

// Order of the tiles: keys 0, keys 1, values 0, keys 2, values 1, ...
__device__ void produce(const Params& p, Shared& s) {
  RingWriter<kStages> ring{s.ring};
  const int pieces = SwaQueries::pieces(p.band, p.heads);
  for (int n = 0; swa_piece(n) < pieces; ++n) {
    const SwaQueries x = SwaQueries::of(p.band, p.heads, swa_piece(n));
    const int kv_head = x.head / p.group;
    uint64_t* full = s.own.expect(n, kTileBytes);
    load_tile(s.q[n % 2], p.q, 0, x.head, x.query, kTileRows, full);
    for (int i = 0; i < x.key_tiles; ++i) {
      ring.put(p.k, 0, kv_head, x.key(i));
      if (i > 0) ring.put(p.v, 0, kv_head, x.key(i - 1));
    }
    ring.put(p.v, 0, kv_head, x.key(x.key_tiles - 1));
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

__device__ __forceinline__ void finish(const Params& p, int head, int query, Rows& rows,
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
      p.lse[t * p.heads + head] = fmaf(rows.top[half], p.scale, logf(sum));
    }
  }
  store_rows(o, p.o + head * kSwaSize, p.o_stride, query, p.band.tokens, inverse[0], inverse[1]);
}

// One piece. q: its queries.
__device__ __forceinline__ void attend(const Params& p, const SwaQueries& x, uint32_t q,
                                       RingReader<kStages>& ring) {
  const uint32_t part = computing_part() * 64;  // this warpgroup's rows of the tile
  const int begin = x.query + static_cast<int>(part);
  const int query = begin + lane_row();
  const int full_from = p.band.first(begin + 63);
  const auto is_full = [&](int key) { return key >= full_from && key + kTileRows - 1 <= begin; };
  const float scale = p.scale * kLog2E;
  Rows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.low[half] = p.band.first(query + half * 8);
    rows.last[half] = query + half * 8;
  }
  float o[64];
  float keep[2];
  uint32_t weights[8][4];
#pragma unroll
  for (int e = 0; e < 64; ++e) o[e] = 0.0F;
  {
    float scores[64];
    const uint32_t keys = ring.take();
    mma_fence();
    rows_by_rows(scores, q, kTileRows, part, keys, kTileRows);
    mma_commit();
    mma_wait<0>();
    mma_hold(scores);
    ring.give();
    softmax(scores, rows, x.key(0), is_full(x.key(0)), scale, keep);
#pragma unroll
    for (int k = 0; k < 8; ++k) as_a(scores, k, weights[k]);
  }
#pragma unroll 1
  for (int i = 1; i < x.key_tiles; ++i) {
    float scores[64];  // new ones: the products of two steps share no register
    const uint32_t keys = ring.take();
    const uint32_t values = ring.take();
    mma_fence();
    rows_by_rows(scores, q, kTileRows, part, keys, kTileRows);
    mma_commit();
    add_rows(o, weights, values);
    mma_commit();
    mma_wait<1>();
    mma_hold(scores);
    ring.give();
    softmax(scores, rows, x.key(i), is_full(x.key(i)), scale, keep);
    mma_wait<0>();
    mma_hold(o);
    ring.give();
#pragma unroll
    for (int e = 0; e < 64; ++e) o[e] *= keep[e % 4 / 2];
#pragma unroll
    for (int k = 0; k < 8; ++k) as_a(scores, k, weights[k]);
  }
  const uint32_t values = ring.take();
  mma_fence();
  add_rows(o, weights, values);
  mma_commit();
  mma_wait<0>();
  mma_hold(o);
  ring.give();
  finish(p, x.head, query, rows, o);
}

__device__ void consume(const Params& p, Shared& s) {
  RingReader<kStages> ring{s.ring};
  const int pieces = SwaQueries::pieces(p.band, p.heads);
  for (int n = 0; swa_piece(n) < pieces; ++n) {
    s.own.wait(n);
    attend(p, SwaQueries::of(p.band, p.heads, swa_piece(n)), shared_address(s.q[n % 2]), ring);
    s.own.done(n);
  }
}

__global__ void __launch_bounds__(kRoleThreads, 1)
    forward_kernel(const __grid_constant__ Params p) {
  Shared& s = shared_block<Shared>();
  if (threadIdx.x == 0) {
    s.ring.init();
    s.own.init();
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

bool swa_tuned_takes(const SwaArgs& a) {
  constexpr int64_t kTokensMax = 1 << 30;  // positions and pieces are int
  return a.q_THE.dims[2] == kSwaSize && a.q_THE.dims[0] <= kTokensMax && has_tile_map(a.q_THE) &&
         has_tile_map(a.k_TGE) && has_tile_map(a.v_TGE) && has_tile_map(a.o_THE);
}

Status launch_swa_tuned(CUstream_st* stream, const SwaArgs& a) {
  Params p{};
  SWAX_TRY(tile_map("swa", a.q_THE, kTileRows, &p.q));
  SWAX_TRY(tile_map("swa", a.k_TGE, kTileRows, &p.k));
  SWAX_TRY(tile_map("swa", a.v_TGE, kTileRows, &p.v));
  p.band = {static_cast<const int32_t*>(a.doc_start_T.data), static_cast<int>(a.q_THE.dims[0]),
            static_cast<int>(std::min(a.window, a.q_THE.dims[0]))};
  p.o = static_cast<__nv_bfloat16*>(a.o_THE.data);
  p.lse = a.lse_TH.f32();
  p.o_stride = a.o_THE.row_stride;
  p.heads = static_cast<int>(a.q_THE.dims[1]);
  p.group = static_cast<int>(a.q_THE.dims[1] / a.k_TGE.dims[1]);
  p.scale = a.scale;
  const Launch l{swa_blocks(p.band.tokens, p.heads), kRoleThreads, sizeof(Shared), stream,
                 kRoleRegisters};
  return launch("swa", l, forward_kernel, p);
}

}  // namespace swax::cuda
