// dq, dk and dv once the pairs of a chunk are there, and the states around it:
//   dq = read (dH C^T / D + gamma n) + dS K
//   dk = write (V dC^T + dn) + dS^T Q
//   dv = write (K dC) + P^T dH
// Pieces of 128 rows x 256 columns, eight of a (chunk, head); blocks stay for many of them. For the
// gates: products of what comes through the states with q or k, in f32.
#include <algorithm>
#include <cstddef>

#include "kernels/cuda/hopper_map.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mlstm_chunk.cuh"
#include "kernels/cuda/mlstm_slabs.cuh"
#include "kernels/cuda/mlstm_tuned.h"

namespace swax::cuda {
namespace {

constexpr int kStages = 4;
constexpr int kColumns = 256;  // of a piece
constexpr int kStageBytes = kRowSlabBytes + kColumns * kSlab * 2;
constexpr int kBoxesA = kTileRows / kSlab;
constexpr int kBoxesB = kColumns / kSlab;
constexpr int kPieces = 8;

enum class Kind { kQuery, kKey, kValue };

struct Params {
  TensorMap q, k, v, dh;
  TensorMap state, state_slope;  // C before, dC after a chunk: [chunks N K, U]
  TensorMap pairs, pair_slopes;  // P, dS: [chunks N tiles queries, keys]
  MlstmTuned x;
  MlstmRows dq, dk, dv;
  int items;
};

using Ring = SlabRing<kStages, kStageBytes>;
using Reader = SlabReader<kStages, kStageBytes>;
using Writer = SlabWriter<kStages, kStageBytes>;

struct Shared {
  Ring ring;
};
constexpr size_t kSharedBytes = sizeof(Shared);
static_assert(kSharedBytes <= kSharedMax);

struct Work {
  Kind kind;
  int chunk, head, half;
  int column;      // first of the result
  int token;       // first row
  int first, end;  // slabs of 64 tokens of the chunk on the other side of the pairs
  bool there;
};

// A block takes every kOneWave-th piece: of each chunk the same two, four apart. These pairs of
// pieces have equally many slabs.
__device__ __forceinline__ Work work_of(const MlstmTuned& x, int item) {
  const int piece = item % kPieces;
  const int place = item / kPieces;
  Work w{};
  w.chunk = place / x.heads;
  w.head = place % x.heads;
  if (piece < 4) {
    w.kind = piece % 2 == 0 ? Kind::kQuery : Kind::kKey;
    w.half = piece == 0 || piece == 3 ? 1 : 0;
  } else {
    w.kind = Kind::kValue;
    w.half = piece < 6 ? 1 : 0;
    w.column = piece % 2 * kColumns;
  }
  const int begin = w.chunk * kMlstmChunk;
  w.token = begin + w.half * kTileRows;
  w.there = w.token < x.tokens;
  const int slabs = min((x.tokens - begin + kSlab - 1) / kSlab, kMlstmChunk / kSlab);
  w.first = w.kind == Kind::kQuery ? 0 : w.half * 2;
  w.end = w.kind == Kind::kQuery ? (w.half + 1) * 2 : slabs;
  return w;
}

// Rows of the operand are rows of the tensor, or the reduction runs along them.
__device__ __forceinline__ Boxes down(const TensorMap& map, int x, int head, int z) {
  return {&map, x, head, z, 0, kSlab};
}
__device__ __forceinline__ Boxes across(const TensorMap& map, int x, int head, int z) {
  return {&map, x, head, z, kSlab, 0};
}

__device__ void produce_past(const Params& p, const Work& w, Writer& ring) {
  const int row = (w.chunk * p.x.heads + w.head) * kMlstmQk;
  if (w.kind == Kind::kValue) {
    for (int i = 0; i < kMlstmQk / kSlab; ++i) {
      ring.put<kBoxesA, kBoxesB>(down(p.k, i * kSlab, w.head, w.token),
                                 across(p.state_slope, w.column, 0, row + i * kSlab));
    }
    return;
  }
  const bool query = w.kind == Kind::kQuery;
  for (int i = 0; i < kMlstmV / kSlab; ++i) {
    ring.put<kBoxesA, kBoxesB>(down(query ? p.dh : p.v, i * kSlab, w.head, w.token),
                               down(query ? p.state : p.state_slope, i * kSlab, 0, row));
  }
  const TensorMap& self = query ? p.q : p.k;
  const float* n = (query ? p.x.n : p.x.dn) + row;
  for (int i = 0; i < kMlstmQk; i += kTileColumns) {
    ring.put<2, 2>(down(self, i, w.head, w.token), down(self, i + kSlab, w.head, w.token), n + i,
                   kTileColumns * sizeof(float));
  }
}

__device__ void produce(const Params& p, Shared& s) {
  Writer ring{s.ring};
  for (int item = static_cast<int>(blockIdx.x); item < p.items; item += gridDim.x) {
    const Work w = work_of(p.x, item);
    if (!w.there) continue;
    produce_past(p, w, ring);
    const int begin = w.chunk * kMlstmChunk;
    const int tile = (w.chunk * p.x.heads + w.head) * kMlstmTiles + w.half;
    for (int i = w.first; i < w.end; ++i) {
      const int token = begin + i * kSlab;
      const int row = (tile + i / 2) * kTileRows;
      const int inside = i % 2 * kSlab;
      if (w.kind == Kind::kQuery) {
        ring.put<kBoxesA, kBoxesB>(down(p.pair_slopes, inside, 0, row),
                                   across(p.k, 0, w.head, token));
      } else if (w.kind == Kind::kKey) {
        ring.put<kBoxesA, kBoxesB>(across(p.pair_slopes, 0, 0, row + inside),
                                   across(p.q, 0, w.head, token));
      } else {
        ring.put<kBoxesA, kBoxesB>(across(p.pairs, 0, 0, row + inside),
                                   across(p.dh, w.column, w.head, token));
      }
    }
  }
}

// The two rows of a thread.
struct Rows {
  float past[2];     // weight of the state
  float inverse[2];  // of queries, else 1
  float gamma[2];
};

template <Kind kKind>
__device__ __forceinline__ Rows rows_of(const MlstmTuned& x, const Work& w, int token) {
  Rows rows{};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = token + half * 8;
    const bool real = t < x.tokens;
    const int64_t at = static_cast<int64_t>(w.head) * x.tokens + (real ? t : 0);
    const float past = kKind == Kind::kQuery ? x.read_weight[at] : x.write_weight[at];
    rows.past[half] = real ? past : 0.0F;
    rows.inverse[half] = kKind == Kind::kQuery ? x.inverse[at] : 1.0F;
    rows.gamma[half] = kKind == Kind::kQuery ? x.gamma[at] : 1.0F;
  }
  return rows;
}

__device__ __forceinline__ uint32_t shared_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ float2 shared_pair(uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(address)
               : "memory");
  return pair;
}

// acc becomes past (acc inverse + gamma n); sum += it times q (or k). The ring brings these rows
// and n in two slabs of 128 columns.
__device__ __forceinline__ void finish_past(float (&acc)[128], const Rows& rows, uint32_t part,
                                            Reader& ring, float (&sum)[2]) {
  const auto row = static_cast<uint32_t>(lane_row());
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const uint32_t slab = ring.take();
    const uint32_t self = slab + part * kBoxBytes + row * 128 + threadIdx.x % 4 * 4;
    const uint32_t n = slab + 4 * kBoxBytes + threadIdx.x % 4 * 8;
#pragma unroll
    for (int g = 0; g < 16; ++g) {
      const uint32_t at = self + static_cast<uint32_t>(g / 8) * kRowSlabBytes +
                          (static_cast<uint32_t>(g % 8) ^ row % 8) * 16;
      const float2 pair = shared_pair(n + static_cast<uint32_t>(g) * 32);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t bits = shared_word(at + static_cast<uint32_t>(half) * 1024);
        float* a = acc + 64 * tile + 4 * g + 2 * half;
        a[0] = fmaf(a[0], rows.inverse[half], rows.gamma[half] * pair.x) * rows.past[half];
        a[1] = fmaf(a[1], rows.inverse[half], rows.gamma[half] * pair.y) * rows.past[half];
        sum[half] = fmaf(a[0], __uint_as_float(bits << 16), sum[half]);
        sum[half] = fmaf(a[1], __uint_as_float(bits & 0xffff0000U), sum[half]);
      }
    }
    ring.give();
  }
}

__device__ void write_products(const MlstmTuned& x, const Work& w, int token, float* to,
                               const float (&past)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float through = past[half];
    through += __shfl_xor_sync(0xffffffffU, through, 1);
    through += __shfl_xor_sync(0xffffffffU, through, 2);
    const int t = token + half * 8;
    if (t < x.tokens && threadIdx.x % 4 == 0) {
      to[static_cast<int64_t>(w.head) * x.tokens + t] = through;
    }
  }
}

template <Kind kKind>
__device__ __forceinline__ void piece(const Params& p, const Work& w, Reader& ring) {
  const uint32_t part = computing_part();
  const int token = w.token + static_cast<int>(part) * 64 + lane_row();
  const Rows rows = rows_of<kKind>(p.x, w, token);
  constexpr bool kValues = kKind == Kind::kValue;
  constexpr Major kState = kValues ? Major::kMN : Major::kK;
  constexpr Major kPairs = kKind == Kind::kQuery ? Major::kK : Major::kMN;
  float acc[128];
#pragma unroll 1
  for (int i = 0; i < (kValues ? kMlstmQk : kMlstmV) / kSlab; ++i) {
    slab_product<Major::kK, kState>(acc, ring.take(), part, i != 0);
    ring.issued();
  }
  ring.drain();
  mma_hold(acc);
  if constexpr (kValues) {
#pragma unroll
    for (int e = 0; e < 128; ++e) acc[e] *= rows.past[e % 4 / 2];
  } else {
    const bool query = kKind == Kind::kQuery;
    float past[2] = {0.0F, 0.0F};
    finish_past(acc, rows, part, ring, past);
    write_products(p.x, w, token, query ? p.x.query_past : p.x.key_past, past);
  }
  mma_hold(acc);
#pragma unroll 1
  for (int i = w.first; i < w.end; ++i) {
    slab_product<kPairs, Major::kMN>(acc, ring.take(), part, true);
    ring.issued();
  }
  ring.drain();
  mma_hold(acc);
  const MlstmRows& out = kValues ? p.dv : kKind == Kind::kQuery ? p.dq : p.dk;
  const int width = kValues ? kMlstmV : kMlstmQk;
  store_rows(acc, out.data + w.head * width + w.column, out.stride, token, p.x.tokens, 1.0F, 1.0F);
}

__device__ void consume(const Params& p, Shared& s) {
  Reader ring{s.ring};
  for (int item = static_cast<int>(blockIdx.x); item < p.items; item += gridDim.x) {
    const Work w = work_of(p.x, item);
    if (!w.there) continue;
    if (w.kind == Kind::kQuery) {
      piece<Kind::kQuery>(p, w, ring);
    } else if (w.kind == Kind::kKey) {
      piece<Kind::kKey>(p, w, ring);
    } else {
      piece<Kind::kValue>(p, w, ring);
    }
  }
}

__global__ void __launch_bounds__(kRoleThreads, 1)
    gradients_kernel(const __grid_constant__ Params p) {
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

MlstmRows rows_of(const Tensor& t) { return {static_cast<__nv_bfloat16*>(t.data), t.row_stride}; }

}  // namespace

Status launch_mlstm_gradients(CUstream_st* stream, const MlstmTuned& x,
                              const MlstmBackwardArgs& a) {
  Params p{};
  const char* op = "mlstm_backward";
  const int64_t places = int64_t{x.chunks} * x.heads;
  const auto states = [&](void* data) {
    return Tensor::of(data, DType::kBF16, {places * kMlstmQk, 1, kMlstmV});
  };
  const auto pairs = [&](void* data) {
    return Tensor::of(data, DType::kBF16, {places * kMlstmTiles * kTileRows, 1, kTileColumns});
  };
  SWAX_TRY(tile_map(op, a.q_TNK, kSlab, &p.q));
  SWAX_TRY(tile_map(op, a.k_TNK, kSlab, &p.k));
  SWAX_TRY(tile_map(op, a.v_TNU, kSlab, &p.v));
  SWAX_TRY(tile_map(op, a.dh_TNU, kSlab, &p.dh));
  SWAX_TRY(tile_map(op, states(x.states), kSlab, &p.state));
  SWAX_TRY(tile_map(op, states(x.dstates), kSlab, &p.state_slope));
  SWAX_TRY(tile_map(op, pairs(x.pairs), kSlab, &p.pairs));
  SWAX_TRY(tile_map(op, pairs(x.pair_slopes), kSlab, &p.pair_slopes));
  p.x = x;
  p.dq = rows_of(a.dq_TNK);
  p.dk = rows_of(a.dk_TNK);
  p.dv = rows_of(a.dv_TNU);
  p.items = kPieces * x.chunks * x.heads;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(kOneWave, p.items));
  const Launch l{blocks, kRoleThreads, kSharedBytes, stream, kRoleRegisters};
  return launch(op, l, gradients_kernel, p);
}

}  // namespace swax::cuda
