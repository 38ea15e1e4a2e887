// Rows of dq or of dk, every (chunk, head, half of its tokens) a block of its own:
//   dq = dS K + read (dH C^T / D + gamma n)   rows are queries, columns the keys up to them
//   dk = dS^T Q + write (V dC^T + dn)         rows are keys, columns the queries from them on
// with dS = (dH V^T / D + gamma) times the weight of the pair. dS is kept in registers as the left
// operand. For the gates: products of the rows through the state with q or k, and sums of dS Q K^T
// over rows and over columns, all from f32 that was not rounded to bf16.
#include <algorithm>
#include <climits>
#include <cstddef>

#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/hopper_ring.cuh"
#include "kernels/cuda/mlstm_chunk.cuh"
#include "kernels/cuda/mlstm_tuned.h"

namespace swax::cuda {
namespace {

constexpr int kStages = 3;
constexpr int kValueTiles = kMlstmV / kTileColumns;
constexpr int kQkTiles = kMlstmQk / kTileColumns;

struct Params {
  TensorMap own;    // dh or v
  TensorMap other;  // v or dh
  TensorMap rows;   // k or q
  TensorMap self;   // q or k
  TensorMap state;  // C before or dC after the chunk: [chunks N K, U]
  MlstmTuned x;
  const float* n;  // [.., N, K] of that state
  MlstmRows self_rows;
  MlstmRows out;
};

// The columns of one tile. dq: keys, log alone. dk: queries.
struct Columns {
  MlstmLog log[kTileRows];
  float inverse[kTileRows];
  float gamma[kTileRows];
  int start[kTileRows];
};

struct Shared {
  unsigned char own[kValueTiles][kTileBytes];
  TileRing<kStages> ring;
  Columns columns;
  uint64_t own_full;
};
constexpr size_t kSharedBytes = sizeof(Shared);
static_assert(kSharedBytes <= kSharedMax);

using Block = MlstmBlock;

template <bool kKeys>
__device__ void produce(const Params& p, Shared& s, const Block& b) {
  barrier_expect(&s.own_full, kValueTiles * kTileBytes);
  for (int i = 0; i < kValueTiles; ++i) {
    load_tile(s.own[i], p.own, i * kTileColumns, b.head, b.token, kTileRows, &s.own_full);
  }
  RingWriter<kStages> ring{s.ring};
  const int chunk_token = b.chunk * kMlstmChunk;
  for (int i = 0; i < b.tiles; ++i) {
    const int token = chunk_token + (b.tile + i) * kTileRows;
    for (int u = 0; u < kValueTiles; ++u) ring.put(p.other, u * kTileColumns, b.head, token);
    for (int k = 0; !kKeys && k < kQkTiles; ++k) {
      ring.put(p.self, k * kTileColumns, b.head, b.token);
      ring.put(p.rows, k * kTileColumns, b.head, token);
    }
  }
  const int state_row = (b.chunk * p.x.heads + b.head) * kMlstmQk;
  for (int k = 0; k < kQkTiles; ++k) {
    for (int u = 0; u < kValueTiles; ++u) {
      ring.put(p.state, u * kTileColumns, 0, state_row + k * kTileRows);
    }
    for (int i = 0; i < b.tiles; ++i) {
      ring.put(p.rows, k * kTileColumns, b.head, chunk_token + (b.tile + i) * kTileRows);
    }
  }
}

// Columns of tile i, by the computing threads.
template <bool kKeys>
__device__ void load_columns(const Params& p, Shared& s, const Block& b, int i) {
  const int r = static_cast<int>(threadIdx.x) - 128;
  named_barrier(1, 256);  // the tile before has been read
  if (r < kTileRows) {
    const int t = b.chunk * kMlstmChunk + (b.tile + i) * kTileRows + r;
    const bool real = t < p.x.tokens;
    const int64_t at = static_cast<int64_t>(b.head) * p.x.tokens + (real ? t : 0);
    s.columns.log[r] = kKeys ? p.x.row_log[at] : p.x.column_log[at];
    if (kKeys) {
      s.columns.inverse[r] = real ? p.x.inverse[at] : 0.0F;
      s.columns.gamma[r] = real ? p.x.gamma[at] : 0.0F;
      s.columns.start[r] = real ? p.x.start[at] : INT_MAX;
    }
  }
  named_barrier(1, 256);
}

// The two rows of a thread.
struct Rows {
  int index[2];  // in the chunk
  MlstmLog log[2];
  float past[2];     // weight of the state
  float inverse[2];  // dq
  float gamma[2];
  int start[2];
};

template <bool kKeys>
__device__ Rows rows_of(const Params& p, const Block& b) {
  const int part = static_cast<int>(threadIdx.x / 128 - 1) * 64;
  Rows rows{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = b.half * kTileRows + part + lane_row() + half * 8;
    const int t = b.chunk * kMlstmChunk + r;
    const bool real = t < p.x.tokens;
    const int64_t at = static_cast<int64_t>(b.head) * p.x.tokens + (real ? t : 0);
    rows.index[half] = r;
    rows.log[half] = kKeys ? p.x.column_log[at] : p.x.row_log[at];
    rows.past[half] = kKeys ? p.x.write_weight[at] : p.x.read_weight[at];
    rows.inverse[half] = kKeys ? 1.0F : p.x.inverse[at];
    rows.gamma[half] = kKeys ? 1.0F : p.x.gamma[at];
    rows.start[half] = real ? p.x.start[at] : INT_MAX;
    if (!real) rows.past[half] = 0.0F;
  }
  return rows;
}

// dH V^T of a tile of columns becomes dS.
template <bool kKeys>
__device__ __forceinline__ void weigh(float (&s)[64], const Columns& x, const Rows& rows,
                                      int column, float scale) {
#pragma unroll
  for (int e = 0; e < 64; ++e) {
    const int half = e % 4 / 2;
    const int at = e / 4 * 8 + lane_column() + e % 2;
    const int c = column + at;
    const int r = rows.index[half];
    const bool seen = kKeys ? r >= x.start[at] && r <= c : c >= rows.start[half] && c <= r;
    const float inverse = kKeys ? x.inverse[at] : rows.inverse[half];
    const float gamma = kKeys ? x.gamma[at] : rows.gamma[half];
    const float weight = pair_weight(rows.log[half], x.log[at]) * scale;
    s[e] = seen ? fmaf(s[e], inverse, gamma) * weight : 0.0F;
  }
}

// What the gates need of dS Q K^T, in f64 (differences of these sums follow): over the columns of
// each row in `sum`, over the rows of the warp for each column in memory. ds: 16 of its columns
// from `column` on.
__device__ __forceinline__ void add_pairs(const Params& p, const Block& b, int column,
                                          const float* ds, const float* scores, double (&sum)[2]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  double columns[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int e = i / 2 * 4 + i % 2;
    // A pair that is not seen counts nothing, whatever its score.
    const double first = ds[e] == 0.0F ? 0.0F : ds[e] * scores[e];
    const double second = ds[e + 2] == 0.0F ? 0.0F : ds[e + 2] * scores[e + 2];
    columns[i] = first + second;
    sum[0] += first;
    sum[1] += second;
  }
  // Each step hands half of the columns to the lane across: at the end a lane has the sum of the
  // warp for column lane / 4 of the thread's.
#pragma unroll
  for (int step = 4; step > 0; step /= 2) {
    const bool upper = (lane & 4 * step) != 0;
#pragma unroll
    for (int i = 0; i < step; ++i) {
      const double given = upper ? columns[i] : columns[i + step];
      const double kept = upper ? columns[i + step] : columns[i];
      columns[i] = kept + __shfl_xor_sync(0xffffffffU, given, 4 * step);
    }
  }
  const int t = b.chunk * kMlstmChunk + column + lane / 8 * 8 + lane_column() + lane / 4 % 2;
  const int64_t part = b.half * (kMlstmPairParts / 2) + static_cast<int>(threadIdx.x / 32) - 4;
  if (t < p.x.tokens) p.x.key_pairs[(part * p.x.heads + b.head) * p.x.tokens + t] = columns[0];
}

// Sums of dS Q K^T for a tile of keys.
__device__ __forceinline__ void sum_pairs(const Params& p, const Block& b, uint32_t part, int tile,
                                          RingReader<kStages>& ring, const float (&ds)[64],
                                          double (&sum)[2]) {
  float scores[64];
#pragma unroll
  for (int k = 0; k < kQkTiles; ++k) {
    const uint32_t queries = ring.take();
    const uint32_t keys = ring.take();
    rows_by_rows(scores, queries, kTileRows, part, keys, kTileRows, k != 0);
    mma_commit();
    ring.drain();
    mma_hold(scores);
  }
#pragma unroll
  for (int e = 0; e < 64; e += 16) {
    add_pairs(p, b, tile * kTileRows + e * 2, ds + e, scores + e, sum);
  }
}

// sum += acc . q (or k) over the columns of tile k.
__device__ __forceinline__ void add_products(const Params& p, const Block& b,
                                             const float (&acc)[64], int token, int k,
                                             float (&sum)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = token + half * 8;
    if (t >= p.x.tokens) continue;
    const __nv_bfloat16* row = p.self_rows.data + t * p.self_rows.stride + b.head * kMlstmQk +
                               k * kTileColumns + lane_column();
#pragma unroll
    for (int g = 0; g < 16; ++g) {
      const uint32_t bits = *reinterpret_cast<const uint32_t*>(row + 8 * g);
      sum[half] = fmaf(acc[4 * g + 2 * half], __uint_as_float(bits << 16), sum[half]);
      sum[half] = fmaf(acc[4 * g + 2 * half + 1], __uint_as_float(bits & 0xffff0000U), sum[half]);
    }
  }
}

// acc becomes past (acc inverse + gamma n).
__device__ __forceinline__ void add_normaliser(const Params& p, const Block& b, float (&acc)[64],
                                               const Rows& rows, int k) {
  const float* n = p.n + (static_cast<int64_t>(b.chunk) * p.x.heads + b.head) * kMlstmQk +
                   k * kTileColumns + lane_column();
#pragma unroll
  for (int g = 0; g < 16; ++g) {
    const float2 pair = *reinterpret_cast<const float2*>(n + 8 * g);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int half = i / 2;
      const float along = rows.gamma[half] * (i % 2 == 0 ? pair.x : pair.y);
      acc[4 * g + i] = fmaf(acc[4 * g + i], rows.inverse[half], along) * rows.past[half];
    }
  }
}

// Sum over the lanes of a row.
template <typename T>
__device__ __forceinline__ T quad_sum(T x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}

template <bool kKeys>
__device__ void write_products(const MlstmTuned& x, const Block& b, int token,
                               const float (&past)[2], const double (&pairs)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float through = quad_sum(past[half]);
    const double inside = quad_sum(pairs[half]);
    const int t = token + half * 8;
    if (t >= x.tokens || threadIdx.x % 4 != 0) continue;
    const int64_t at = static_cast<int64_t>(b.head) * x.tokens + t;
    (kKeys ? x.key_past : x.query_past)[at] = through;
    if (!kKeys) x.query_pairs[at] = inside;
  }
}

template <bool kKeys>
__device__ void consume(const Params& p, Shared& s, const Block& b) {
  const uint32_t part = computing_part() * 64;
  const int token = b.token + static_cast<int>(part) + lane_row();
  const Rows rows = rows_of<kKeys>(p, b);
  RingReader<kStages> ring{s.ring};
  float acc[64];
  uint32_t weights[2][8][4];
  double pairs[2] = {0.0, 0.0};
  barrier_wait(&s.own_full, 0);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i >= b.tiles) break;
    load_columns<kKeys>(p, s, b, i);
#pragma unroll 1
    for (int u = 0; u < kValueTiles; ++u) {
      const uint32_t other = ring.take();
      rows_by_rows(acc, shared_address(s.own[u]), kTileRows, part, other, kTileRows, u != 0);
      ring.issued();
    }
    ring.drain();
    mma_hold(acc);
    weigh<kKeys>(acc, s.columns, rows, (b.tile + i) * kTileRows, p.x.scale);
    if constexpr (!kKeys) sum_pairs(p, b, part, b.tile + i, ring, acc, pairs);
#pragma unroll
    for (int k = 0; k < 8; ++k) as_a(acc, k, weights[i][k]);
  }
  float past[2] = {0.0F, 0.0F};
#pragma unroll 1
  for (int k = 0; k < kQkTiles; ++k) {
#pragma unroll 1
    for (int u = 0; u < kValueTiles; ++u) {
      const uint32_t state = ring.take();
      rows_by_rows(acc, shared_address(s.own[u]), kTileRows, part, state, kTileRows, u != 0);
      ring.issued();
    }
    ring.drain();
    mma_hold(acc);
    add_normaliser(p, b, acc, rows, k);
    add_products(p, b, acc, token, k, past);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i >= b.tiles) break;
      const uint32_t others = ring.take();
      add_rows(acc, weights[i], others);
      ring.issued();
    }
    ring.drain();
    mma_hold(acc);
    store_rows(acc, p.out.data + b.head * kMlstmQk + k * kTileColumns, p.out.stride, token,
               p.x.tokens, 1.0F, 1.0F);
  }
  write_products<kKeys>(p.x, b, token, past, pairs);
}

template <bool kKeys>
__global__ void __launch_bounds__(kRoleThreads, 1) inputs_kernel(const __grid_constant__ Params p) {
  run_mlstm_block<Shared, !kKeys>(
      p.x.tokens, [&](Shared& s, const Block& b) { produce<kKeys>(p, s, b); },
      [&](Shared& s, const Block& b) { consume<kKeys>(p, s, b); });
}

}  // namespace

Status launch_mlstm_inputs(CUstream_st* stream, const MlstmTuned& x, const Tensor& own,
                           const Tensor& other, const Tensor& rows, const Tensor& self,
                           const Tensor& out, bool keys) {
  Params p{};
  const Tensor states = Tensor::of(keys ? x.dstates : x.states, DType::kBF16,
                                   {int64_t{x.chunks} * x.heads * kMlstmQk, 1, kMlstmV});
  SWAX_TRY(tile_map("mlstm_backward", own, kTileRows, &p.own));
  SWAX_TRY(tile_map("mlstm_backward", other, kTileRows, &p.other));
  SWAX_TRY(tile_map("mlstm_backward", rows, kTileRows, &p.rows));
  SWAX_TRY(tile_map("mlstm_backward", self, kTileRows, &p.self));
  SWAX_TRY(tile_map("mlstm_backward", states, kTileRows, &p.state));
  p.x = x;
  p.n = keys ? x.dn : x.n;
  p.self_rows = {static_cast<__nv_bfloat16*>(self.data), self.row_stride};
  p.out = {static_cast<__nv_bfloat16*>(out.data), out.row_stride};
  const Launch l{mlstm_block_grid(x), kRoleThreads, kSharedBytes, stream};
  return launch("mlstm_backward", l, keys ? inputs_kernel<true> : inputs_kernel<false>, p);
}

}  // namespace swax::cuda
