// Rows of h, every (chunk, head, half of its tokens) a block of its own:
//   h = (P V + read (Q C)) / D            rows are queries, columns the keys up to them
// P is formed once, from Q K^T, and kept in registers as the left operand; columns of the result
// pass by in four tiles of 128.
#include <algorithm>
#include <climits>
#include <cstddef>

#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/hopper_ring.cuh"
#include "kernels/cuda/mlstm_chunk.cuh"
#include "kernels/cuda/mlstm_tuned.h"
#include "kernels/cuda/mlstm_view.cuh"

namespace swax::cuda {
namespace {

constexpr int kStages = 4;
constexpr int kValueTiles = kMlstmV / kTileColumns;
constexpr int kQkTiles = kMlstmQk / kTileColumns;

struct Params {
  TensorMap own;     // q
  TensorMap other;   // k
  TensorMap values;  // v
  TensorMap state;   // C before the chunk: [chunks N K, U]
  MlstmTuned x;
  MlstmRows out;
};

struct Shared {
  unsigned char own[kQkTiles][kTileBytes];
  TileRing<kStages> ring;
  MlstmLog column_log[kMlstmChunk];  // of keys
  float n[kMlstmQk];
  float past[kTileRows];  // q n
  uint64_t own_full;
};
constexpr size_t kSharedBytes = sizeof(Shared);

using Block = MlstmBlock;

__device__ void produce(const Params& p, Shared& s, const Block& b) {
  barrier_expect(&s.own_full, kQkTiles * kTileBytes);
  for (int i = 0; i < kQkTiles; ++i) {
    load_tile(s.own[i], p.own, i * kTileColumns, b.head, b.token, kTileRows, &s.own_full);
  }
  RingWriter<kStages> ring{s.ring};
  const int chunk_token = b.chunk * kMlstmChunk;
  for (int i = 0; i < b.tiles; ++i) {
    const int token = chunk_token + i * kTileRows;
    for (int k = 0; k < kQkTiles; ++k) ring.put(p.other, k * kTileColumns, b.head, token);
  }
  const int state_row = (b.chunk * p.x.heads + b.head) * kMlstmQk;
  for (int u = 0; u < kValueTiles; ++u) {
    for (int k = 0; k < kQkTiles; ++k) {
      ring.put(p.state, u * kTileColumns, 0, state_row + k * kTileRows);
    }
    for (int i = 0; i < b.tiles; ++i) {
      ring.put(p.values, u * kTileColumns, b.head, chunk_token + i * kTileRows);
    }
  }
}

// What the columns need, by the computing threads.
__device__ void load_columns(const Params& p, Shared& s, const Block& b) {
  const int r = static_cast<int>(threadIdx.x) - 128;
  const int t = b.chunk * kMlstmChunk + r;
  const bool real = t < p.x.tokens;
  const int64_t at = static_cast<int64_t>(b.head) * p.x.tokens + t;
  s.column_log[r] = real ? p.x.column_log[at] : MlstmLog{};
  s.n[r] = p.x.n[(static_cast<int64_t>(b.chunk) * p.x.heads + b.head) * kMlstmQk + r];
  named_barrier(1, 256);
}

// past[row] = q n, f32: two threads a row.
__device__ void read_normaliser(Shared& s) {
  const int thread = static_cast<int>(threadIdx.x) - 128;
  const int row = thread / 2;
  const unsigned char* tile = s.own[thread % 2];
  const float* n = s.n + thread % 2 * kTileColumns;
  float sum = 0.0F;
  for (int part = 0; part < kTileColumns / 8; ++part) {
    const int offset = part / 8 * (kTileBytes / 2) + row * 128 + (part % 8 ^ row % 8) * 16;
    const uint4 bits = *reinterpret_cast<const uint4*>(tile + offset);
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum = fmaf(__uint_as_float(words[i] << 16), n[part * 8 + 2 * i], sum);
      sum = fmaf(__uint_as_float(words[i] & 0xffff0000U), n[part * 8 + 2 * i + 1], sum);
    }
  }
  sum += __shfl_xor_sync(0xffffffffU, sum, 1);
  if (thread % 2 == 0) s.past[row] = sum;
  named_barrier(1, 256);
}

// The two rows of a thread.
struct Rows {
  int index[2];  // in the chunk
  MlstmLog log[2];
  int start[2];
  float past[2];  // weight of the state
};

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
    rows.start[half] = real ? p.x.start[at] : INT_MAX;
    rows.log[half] = p.x.row_log[at];
    rows.past[half] = p.x.read_weight[at];
    if (!real) rows.past[half] = 0.0F;
  }
  return rows;
}

// Scores of a tile of columns become weights; sum: of each row, unrounded.
__device__ __forceinline__ void weigh(float (&s)[64], const Shared& shared, const Rows& rows,
                                      int column, float scale, float (&sum)[2]) {
#pragma unroll
  for (int e = 0; e < 64; ++e) {
    const int half = e % 4 / 2;
    const int c = column + e / 4 * 8 + lane_column() + e % 2;
    const int r = rows.index[half];
    const bool seen = c >= rows.start[half] && c <= r;
    const float weight = pair_weight(rows.log[half], shared.column_log[c]) * scale;
    s[e] = seen ? s[e] * weight : 0.0F;
    sum[half] += s[e];
  }
}

// den and 1 / D of the two rows; writes den.
__device__ void normalise(const Params& p, const Shared& s, const Block& b, const Rows& rows,
                          const float (&sum)[2], float (&inverse)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float den = sum[half];
    den += __shfl_xor_sync(0xffffffffU, den, 1);
    den += __shfl_xor_sync(0xffffffffU, den, 2);
    den = fmaf(rows.past[half], s.past[rows.index[half] - b.half * kTileRows], den);
    const int64_t t = b.chunk * kMlstmChunk + rows.index[half];
    inverse[half] = 0.0F;
    if (t >= p.x.tokens) continue;
    const int64_t index = t * p.x.heads + b.head;
    if (threadIdx.x % 4 == 0) p.x.den[index] = den;
    inverse[half] = mlstm_normaliser(den, p.x.m[index]).inverse;
  }
}

__device__ void consume(const Params& p, Shared& s, const Block& b) {
  const uint32_t part = computing_part() * 64;
  const Rows rows = rows_of(p, b);
  load_columns(p, s, b);
  barrier_wait(&s.own_full, 0);
  read_normaliser(s);
  RingReader<kStages> ring{s.ring};
  float acc[64];
  float sum[2] = {0.0F, 0.0F};
  uint32_t weights[2][8][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i >= b.tiles) break;
#pragma unroll
    for (int k = 0; k < kQkTiles; ++k) {
      const uint32_t other = ring.take();
      rows_by_rows(acc, shared_address(s.own[k]), kTileRows, part, other, kTileRows, k != 0);
      ring.issued();
    }
    ring.drain();
    mma_hold(acc);
    weigh(acc, s, rows, i * kTileRows, p.x.scale, sum);
#pragma unroll
    for (int k = 0; k < 8; ++k) as_a(acc, k, weights[i][k]);
  }
  float inverse[2];
  normalise(p, s, b, rows, sum, inverse);
  const int token = b.token + static_cast<int>(part) + lane_row();
  for (int u = 0; u < kValueTiles; ++u) {
#pragma unroll
    for (int k = 0; k < kQkTiles; ++k) {
      const uint32_t state = ring.take();
      rows_by_columns(acc, shared_address(s.own[k]), part, state, k != 0);
      ring.issued();
    }
    ring.drain();
    mma_hold(acc);
#pragma unroll
    for (int e = 0; e < 64; ++e) acc[e] *= rows.past[e % 4 / 2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i >= b.tiles) break;
      const uint32_t values = ring.take();
      add_rows(acc, weights[i], values);
      ring.issued();
    }
    ring.drain();
    mma_hold(acc);
    store_rows(acc, p.out.data + b.head * kMlstmV + u * kTileColumns, p.out.stride, token,
               p.x.tokens, inverse[0], inverse[1]);
  }
}

__global__ void __launch_bounds__(kRoleThreads, 1) values_kernel(const __grid_constant__ Params p) {
  run_mlstm_block<Shared>(
      p.x.tokens, [&](Shared& s, const Block& b) { produce(p, s, b); },
      [&](Shared& s, const Block& b) { consume(p, s, b); });
}

}  // namespace

Status launch_mlstm_values(CUstream_st* stream, const MlstmTuned& x, const Tensor& q,
                           const Tensor& k, const Tensor& v, const Tensor& h) {
  Params p{};
  const Tensor states =
      Tensor::of(x.states, DType::kBF16, {int64_t{x.chunks} * x.heads * kMlstmQk, 1, kMlstmV});
  SWAX_TRY(tile_map("mlstm", q, kTileRows, &p.own));
  SWAX_TRY(tile_map("mlstm", k, kTileRows, &p.other));
  SWAX_TRY(tile_map("mlstm", v, kTileRows, &p.values));
  SWAX_TRY(tile_map("mlstm", states, kTileRows, &p.state));
  p.x = x;
  p.out = {static_cast<__nv_bfloat16*>(h.data), h.row_stride};
  const Launch l{mlstm_block_grid(x), kRoleThreads, kSharedBytes, stream, kRoleRegisters};
  return launch("mlstm", l, values_kernel, p);
}

}  // namespace swax::cuda
