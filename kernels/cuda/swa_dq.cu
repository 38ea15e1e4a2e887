// dq, and delta = do . o. Two warpgroups own 64 of the 128 queries of a piece each.
#include <algorithm>

#include "kernels/cuda/swa_delta.cuh"

namespace swax::cuda {
namespace {

using Params = SwaBackwardParams;

// Seven tiles fit. Wide windows keep five keys or values on the way, narrow ones the queries of the
// next piece.
template <int kPlaces>
struct Shared {
  static constexpr int kStages = 7 - 2 * kPlaces;
  unsigned char q[kPlaces][kTileBytes];
  unsigned char d_o[kPlaces][kTileBytes];
  TileRing<kStages> ring;
  OwnTiles<kPlaces> own;
};
static_assert(sizeof(Shared<1>) <= kSharedMax && sizeof(Shared<2>) <= kSharedMax);
// Keys of a narrow window. Two places are 10 % faster than one at w 128 and 4 % slower at w 2048
// (H200, 16,384 tokens, 16 heads).
constexpr int kNarrow = 512;

// Order of the tiles: values 0, keys 0, values 1, keys 1, ...: values are done with first.
template <int kPlaces>
__device__ void produce(const Params& p, Shared<kPlaces>& s) {
  RingWriter<Shared<kPlaces>::kStages> ring{s.ring};
  const int pieces = SwaQueries::pieces(p.band, p.heads);
  for (int n = 0; swa_piece(n) < pieces; ++n) {
    const SwaQueries x = SwaQueries::of(p.band, p.heads, swa_piece(n));
    uint64_t* full = s.own.expect(n, 2 * kTileBytes);
    load_tile(s.q[n % kPlaces], p.q, 0, x.head, x.query, kTileRows, full);
    load_tile(s.d_o[n % kPlaces], p.d_o, 0, x.head, x.query, kTileRows, full);
    for (int i = 0; i < x.key_tiles; ++i) {
      ring.put(p.v, 0, x.head / p.group, x.key(i));
      ring.put(p.k, 0, x.head / p.group, x.key(i));
    }
  }
}

// Statistics of the two queries of a thread.
struct Rows {
  int low[2];
  int last[2];
  float lse[2];  // times log2(e)
  float delta[2];
};

__device__ __forceinline__ Rows rows_of(const Params& p, int head, int query) {
  Rows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = query + half * 8;
    const int64_t index = static_cast<int64_t>(t) * p.heads + head;
    rows.low[half] = p.band.first(t);
    rows.last[half] = t;
    rows.lse[half] = t < p.band.tokens ? p.lse[index] * kLog2E : 0.0F;
    rows.delta[half] = row_delta(p, min(t, p.band.tokens - 1), head);
    if (t < p.band.tokens && threadIdx.x % 4 == 0) p.delta[index] = rows.delta[half];
  }
  return rows;
}

// Scores become P, 0 where the key is not seen. The mask is a branch of its own: in the loop over P
// it would become a choice for each element of every tile.
template <int kCount>
__device__ __forceinline__ void weigh(float (&s)[kCount], const Rows& rows, int key, bool full,
                                      float scale) {
  if (!full) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const int half = e % 4 / 2;
      const int j = key + e / 4 * 8 + lane_column() + e % 2;
      s[e] = j >= rows.low[half] && j <= rows.last[half] ? s[e] : -INFINITY;
    }
  }
#pragma unroll
  for (int e = 0; e < kCount; ++e) s[e] = exp2_fast(fmaf(s[e], scale, -rows.lse[e % 4 / 2]));
}
// P becomes P (dP - delta). A query that sees itself alone has P = 1: its score has no gradient.
template <int kCount>
__device__ __forceinline__ void differentiate(float (&s)[kCount], const float (&dp)[kCount],
                                              const Rows& rows, bool full) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) s[e] *= dp[e] - rows.delta[e % 4 / 2];
  if (full) return;
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    const int half = e % 4 / 2;
    if (rows.low[half] == rows.last[half]) s[e] *= 0.0F;
  }
}

// Adds what `kKeys` keys from `key` on give to the 64 queries from row `part` on of the tiles q and
// d_o: row `row` and the next ones of the tiles that the ring gives.
template <int kKeys, int kStages>
__device__ __forceinline__ void add_tile(const Rows& rows, uint32_t q, uint32_t d_o, uint32_t part,
                                         uint32_t row, int key, bool full, float scale,
                                         RingReader<kStages>& ring, float (&dq)[64]) {
  float scores[kKeys / 2];
  float dp[kKeys / 2];
  uint32_t ds[kKeys / 16][4];
  const uint32_t values = ring.take() + row * 128;
  const uint32_t keys = ring.take() + row * 128;
  rows_by_rows(scores, q, kTileRows, part, keys, kTileRows);
  mma_commit();
  rows_by_rows(dp, d_o, kTileRows, part, values, kTileRows);
  mma_commit();
  mma_wait<1>();
  mma_hold(scores);
  weigh(scores, rows, key, full, scale);
  mma_wait<0>();
  mma_hold(dp);
  ring.give();  // values
  differentiate(scores, dp, rows, full);
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) as_a(scores, k, ds[k]);
  mma_fence();
  add_rows(dq, ds, keys, kTileRows);
  mma_commit();
  mma_wait<0>();
  mma_hold(dq);
  ring.give();
}

// One piece: q and d_o are its tiles.
template <int kStages>
__device__ __forceinline__ void attend(const Params& p, const SwaQueries& x, const Rows& rows,
                                       uint32_t q, uint32_t d_o, RingReader<kStages>& ring,
                                       float (&dq)[64]) {
  const uint32_t part = computing_part() * 64;
  const int begin = x.query + static_cast<int>(part);
  const int full_from = p.band.first(begin + 63);
  const float scale = p.scale * kLog2E;
#pragma unroll
  for (int e = 0; e < 64; ++e) dq[e] = 0.0F;
#pragma unroll 1
  for (int i = 0; i < x.key_tiles; ++i) {
    const int key = x.key(i);
    const SwaHalves seen = SwaHalves::of(p.band, begin, key);
    if (uniform(seen.both())) {
      const bool full = key >= full_from && key + kTileRows - 1 <= begin;
      add_tile<128>(rows, q, d_o, part, 0, key, full, scale, ring, dq);
    } else {
      const int row = uniform(seen.row());
      add_tile<64>(rows, q, d_o, part, static_cast<uint32_t>(row), key + row, false, scale, ring,
                   dq);
    }
  }
}

template <int kPlaces>
__device__ void consume(const Params& p, Shared<kPlaces>& s) {
  RingReader<Shared<kPlaces>::kStages> ring{s.ring};
  const int pieces = SwaQueries::pieces(p.band, p.heads);
  for (int n = 0; swa_piece(n) < pieces; ++n) {
    const SwaQueries x = SwaQueries::of(p.band, p.heads, swa_piece(n));
    const int query = x.query + static_cast<int>(threadIdx.x / 128 - 1) * 64 + lane_row();
    const Rows rows = rows_of(p, x.head, query);
    float dq[64];
    s.own.wait(n);
    attend(p, x, rows, shared_address(s.q[n % kPlaces]), shared_address(s.d_o[n % kPlaces]), ring,
           dq);
    s.own.done(n);
    turn_back(p.turn, p.band.tokens, dq, {query, query + 8}, [] {});
    store_rows(dq, p.dq + x.head * kSwaSize, p.dq_stride, query, p.band.tokens, p.scale, p.scale);
  }
}

template <int kPlaces>
__global__ void __launch_bounds__(kRoleThreads, 1) dq_kernel(const __grid_constant__ Params p) {
  auto& s = shared_block<Shared<kPlaces>>();
  if (threadIdx.x == 0) {
    s.ring.init();
    s.own.init();
    barrier_init_fence();
  }
  __syncthreads();
  run_roles(
      [&] {
        if (threadIdx.x == 0) produce<kPlaces>(p, s);
      },
      [&] { consume<kPlaces>(p, s); });
}

template <int kPlaces>
Status launch_with(CUstream_st* stream, const Params& p) {
  const unsigned blocks = swa_blocks(p.band.tokens, p.heads);
  const Launch l{blocks, kRoleThreads, sizeof(Shared<kPlaces>), stream, kRoleRegisters};
  return launch("swa_backward", l, dq_kernel<kPlaces>, p);
}

}  // namespace

Status launch_swa_dq(CUstream_st* stream, const SwaBackwardParams& p) {
  return p.band.window < kNarrow ? launch_with<2>(stream, p) : launch_with<1>(stream, p);
}

}  // namespace swax::cuda
