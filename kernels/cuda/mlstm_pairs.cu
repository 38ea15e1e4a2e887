// Pairs of a query and a key inside a chunk, formed once for dq, dk and dv:
//   dS = (dH V^T / D + gamma) weight,   P = Q K^T weight / D     (0 where the query sees no key)
// as bf16, a tile of 128 x 128 of them at a time. For the gates: sums of
// dS Q K^T over rows and over columns, from f32 that was not rounded to bf16.
#include <algorithm>
#include <climits>
#include <cstddef>

#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mlstm_chunk.cuh"
#include "kernels/cuda/mlstm_slabs.cuh"
#include "kernels/cuda/mlstm_tuned.h"

namespace swax::cuda {
namespace {

constexpr int kStages = 6;
constexpr int kScoreSlabs = kMlstmQk / kSlab;
constexpr int kValueSlabs = kMlstmV / kSlab;
constexpr int kAhead = 3;  // slabs of values issued before the scores are used

struct Params {
  TensorMap q, k, dh, v;
  MlstmTuned x;
  int items;
};

using Ring = SlabRing<kStages, 2 * kRowSlabBytes>;
using Reader = SlabReader<kStages, 2 * kRowSlabBytes>;

struct Shared {
  Ring ring;
  MlstmLog log[2][kTileRows];  // of the keys, for this piece of work and the one before
};
constexpr size_t kSharedBytes = sizeof(Shared);
static_assert(kSharedBytes <= kSharedMax);

struct Work {
  int chunk, head;
  int query, key;  // halves of the chunk
  bool there;
};

__device__ __forceinline__ Work work_of(const MlstmTuned& x, int item) {
  const int tile = item % kMlstmTiles;
  const int piece = item / kMlstmTiles;
  Work w{piece / x.heads, piece % x.heads, (tile + 1) / 2, tile / 2, false};
  w.there = w.chunk * kMlstmChunk + w.query * kTileRows < x.tokens;
  return w;
}

__device__ void produce(const Params& p, Shared& s) {
  SlabWriter<kStages, 2 * kRowSlabBytes> ring{s.ring};
  for (int item = static_cast<int>(blockIdx.x); item < p.items; item += gridDim.x) {
    const Work w = work_of(p.x, item);
    if (!w.there) continue;
    const int query = w.chunk * kMlstmChunk + w.query * kTileRows;
    const int key = w.chunk * kMlstmChunk + w.key * kTileRows;
    for (int i = 0; i < kScoreSlabs; ++i) {
      ring.put<2, 2>({&p.q, i * kSlab, w.head, query, 0, kSlab},
                     {&p.k, i * kSlab, w.head, key, 0, kSlab});
    }
    for (int i = 0; i < kValueSlabs; ++i) {
      ring.put<2, 2>({&p.dh, i * kSlab, w.head, query, 0, kSlab},
                     {&p.v, i * kSlab, w.head, key, 0, kSlab});
    }
  }
}

// The two rows of a thread.
struct Rows {
  int index[2];  // in the chunk
  MlstmLog log[2];
  float inverse[2];
  float gamma[2];
  int start[2];
};

__device__ Rows rows_of(const Params& p, const Work& w) {
  const int part = static_cast<int>(threadIdx.x / 128 - 1) * 64;
  Rows rows{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = w.query * kTileRows + part + lane_row() + half * 8;
    const int t = w.chunk * kMlstmChunk + r;
    const bool real = t < p.x.tokens;
    const int64_t at = static_cast<int64_t>(w.head) * p.x.tokens + (real ? t : 0);
    rows.index[half] = r;
    rows.log[half] = p.x.row_log[at];
    rows.inverse[half] = p.x.inverse[at];
    rows.gamma[half] = p.x.gamma[at];
    rows.start[half] = real ? p.x.start[at] : INT_MAX;
  }
  return rows;
}

// Logs of the keys, by the computing threads. A place is written again once all have left the work
// before: they have met here since.
__device__ void load_columns(const Params& p, MlstmLog* log, const Work& w) {
  const int r = static_cast<int>(threadIdx.x) - 128;
  if (r < kTileRows) {
    const int t = w.chunk * kMlstmChunk + w.key * kTileRows + r;
    const int64_t at = static_cast<int64_t>(w.head) * p.x.tokens + (t < p.x.tokens ? t : 0);
    log[r] = p.x.column_log[at];
  }
  named_barrier(1, 256);
}

__device__ __forceinline__ bool seen(const Rows& rows, int half, int key) {
  return key >= rows.start[half] && key <= rows.index[half];
}

// P of both rows, 16 bytes a lane. to: the first row.
__device__ __forceinline__ void store_weights(const float (&scores)[64], const MlstmLog* log,
                                              const Rows& rows, int column, float scale,
                                              __nv_bfloat16* to) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor = rows.inverse[half] * scale;
#pragma unroll
    for (int g = 0; g < 16; g += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 8 * (g + i) + lane_column();
        const int e = 4 * (g + i) + 2 * half;
        const float low = scores[e] * (pair_weight(rows.log[half], log[at]) * factor);
        const float high = scores[e + 1] * (pair_weight(rows.log[half], log[at + 1]) * factor);
        words[i] = pack_bf16(seen(rows, half, column + at) ? low : 0.0F,
                             seen(rows, half, column + at + 1) ? high : 0.0F);
      }
      quad_transpose(words);
      const int at = 8 * (g + static_cast<int>(threadIdx.x % 4));
      *reinterpret_cast<uint4*>(to + half * 8 * kTileColumns + at) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// dH V^T becomes dS.
__device__ __forceinline__ void weigh(float (&s)[64], const MlstmLog* log, const Rows& rows,
                                      int column, float scale) {
#pragma unroll
  for (int e = 0; e < 64; ++e) {
    const int half = e % 4 / 2;
    const int at = e / 4 * 8 + lane_column() + e % 2;
    const float weight = pair_weight(rows.log[half], log[at]) * scale;
    const float slope = fmaf(s[e], rows.inverse[half], rows.gamma[half]) * weight;
    s[e] = seen(rows, half, column + at) ? slope : 0.0F;
  }
}

// What the gates need of dS Q K^T, in f64 (differences of these sums follow): over the columns of
// each row in `sum`, over the rows of the warp for each column in memory. ds: 16 of its columns
// from `column` of the chunk on.
__device__ __forceinline__ void add_pairs(const Params& p, const Work& w, int column,
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
  const int t = w.chunk * kMlstmChunk + column + lane / 8 * 8 + lane_column() + lane / 4 % 2;
  const int64_t part = w.query * (kMlstmPairParts / 2) + static_cast<int>(threadIdx.x / 32) - 4;
  if (t < p.x.tokens) p.x.key_pairs[(part * p.x.heads + w.head) * p.x.tokens + t] = columns[0];
}

__device__ void store_sums(const Params& p, const Work& w, const Rows& rows,
                           const double (&sum)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    double row = sum[half];
    row += __shfl_xor_sync(0xffffffffU, row, 1);
    row += __shfl_xor_sync(0xffffffffU, row, 2);
    const int t = w.chunk * kMlstmChunk + rows.index[half];
    if (t >= p.x.tokens || threadIdx.x % 4 != 0) continue;
    p.x.query_pairs[(static_cast<int64_t>(w.key) * p.x.heads + w.head) * p.x.tokens + t] = row;
  }
}

__device__ void pair_tile(const Params& p, const Work& w, const MlstmLog* log, Reader& ring) {
  const uint32_t part = computing_part();
  const Rows rows = rows_of(p, w);
  const int column = w.key * kTileRows;
  const int64_t tile = (int64_t{w.chunk} * p.x.heads + w.head) * kMlstmTiles + w.query + w.key;
  const int64_t first = tile * kTileRows * kTileColumns;
  const int row = static_cast<int>(part) * 64 + lane_row();
  float scores[64];
  float slopes[64];
#pragma unroll 1
  for (int i = 0; i < kScoreSlabs; ++i) {
    slab_product<Major::kK, Major::kK>(scores, ring.take(), part, i != 0);
    ring.issued();
  }
  ring.drain();
  mma_hold(scores);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    slab_product<Major::kK, Major::kK>(slopes, ring.take(), part, i != 0);
    mma_commit();
  }
  store_weights(scores, log, rows, column, p.x.scale, p.x.pairs + first + row * kTileColumns);
#pragma unroll 1
  for (int i = kAhead; i < kValueSlabs; ++i) {
    slab_product<Major::kK, Major::kK>(slopes, ring.take(), part, true);
    ring.issued();
  }
  ring.drain();
  mma_hold(slopes);
  weigh(slopes, log, rows, column, p.x.scale);
  store_rows(slopes, p.x.pair_slopes + first, kTileColumns, row, kTileRows, 1.0F, 1.0F);
  double sum[2] = {0.0, 0.0};
#pragma unroll
  for (int e = 0; e < 64; e += 16) {
    add_pairs(p, w, column + e * 2, slopes + e, scores + e, sum);
  }
  store_sums(p, w, rows, sum);
}

__device__ void consume(const Params& p, Shared& s) {
  Reader ring{s.ring};
  int turn = 0;
  for (int item = static_cast<int>(blockIdx.x); item < p.items; item += gridDim.x) {
    const Work w = work_of(p.x, item);
    if (!w.there) continue;
    MlstmLog* log = s.log[turn];
    turn ^= 1;
    load_columns(p, log, w);
    pair_tile(p, w, log, ring);
  }
}

__global__ void __launch_bounds__(kRoleThreads, 1) pairs_kernel(const __grid_constant__ Params p) {
  Shared& s = shared_block<Shared>();
  if (threadIdx.x == 0) {
    s.ring.init();
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

Status launch_mlstm_pairs(CUstream_st* stream, const MlstmTuned& x, const Tensor& q,
                          const Tensor& k, const Tensor& dh, const Tensor& v) {
  Params p{};
  SWAX_TRY(tile_map("mlstm_backward", q, kSlab, &p.q));
  SWAX_TRY(tile_map("mlstm_backward", k, kSlab, &p.k));
  SWAX_TRY(tile_map("mlstm_backward", dh, kSlab, &p.dh));
  SWAX_TRY(tile_map("mlstm_backward", v, kSlab, &p.v));
  p.x = x;
  p.items = kMlstmTiles * x.chunks * x.heads;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(kOneWave, p.items));
  const Launch l{blocks, kRoleThreads, kSharedBytes, stream, kRoleRegisters};
  return launch("mlstm_backward", l, pairs_kernel, p);
}

}  // namespace swax::cuda
