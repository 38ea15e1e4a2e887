// RMSNorm with the gates that read it, at the widths of the models: a row is read and written once,
// and the gates take y from shared memory. A block has places for tiles of 8 tokens and three kinds
// of warps. Each of 8 row warps has one row of every tile: it copies it there, reads it, and writes
// y to memory and in place of x. Row warps do not wait for each other, which keeps memory busier
// than warps that read and write a tile together. The tile is the right operand of a small product
// whose left one are the weights: 8 product warps hold them and share the columns (see gates.cu for
// the free order of columns). One thread draws tiles. Sums: of a product warp's steps of 32 columns
// every second (D 4096) or fourth in a chain, the chains in pairs, then warps in order. Other
// shapes take the two ops.
#include <algorithm>

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/kernel_launch.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/small_product.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/spec/checks.h"

namespace swax::cuda {
namespace {

struct NormGates {
  const bf16* x;
  const bf16* w;
  const bf16* wi;
  const bf16* wf;
  const bf16* bi;
  const bf16* bf;
  bf16* y;
  float* rstd;
  float* i;
  float* f;
  int* tickets;  // two, zero between launches
  int64_t x_stride, y_stride, wi_stride, wf_stride;
  int64_t tokens;
  int heads;
  float eps, cap;
};
// Gate g < N is i of head g, else f of head g - N; those behind 2 N are the last one again.
__device__ __forceinline__ const bf16* gate_row(const NormGates& a, int gate) {
  const int g = min(gate, 2 * a.heads - 1);
  return g < a.heads ? a.wi + g * a.wi_stride : a.wf + (g - a.heads) * a.wf_stride;
}

constexpr int kTile = 8;      // tokens: as many as row warps
constexpr int kWide = 256;    // columns: of a warp's vectors side by side
constexpr int kProducts = 8;  // product warps
constexpr int kHalf = kProducts / 2;

constexpr int kBlock = (kTile + kProducts + 4) * kWarp;  // four for the one thread that draws

// Registers of a thread, from the pool of a block that starts with as many for each.
constexpr int kRegisters = 96;
template <int kDim>
struct Registers {
  static constexpr int kRow = kDim > 2048 ? 56 : 80;
  static constexpr int kProduct = kDim > 2048 ? 168 : 128;
  static constexpr int kDrawing = 24;
  static_assert((kRow * kTile + kProduct * kProducts + kDrawing * 4) * kWarp <=
                kRegisters * kBlock);
};

template <int kDim, int kGates, int kPlaces>
struct Shared {
  static constexpr int kPitch = kDim + 32;  // elements of a row: two rows share no banks
  bf16 rows[kPlaces][kTile][kPitch];
  bf16 w[kDim];
  float z[2][kProducts][kTile][kGates + 1];  // shares of the product warps
  int tile[kPlaces];              // which one comes there; kNone: neither this nor a further one
  uint64_t known[kPlaces];        // ... was drawn, and the place is free
  uint64_t full[kPlaces][kTile];  // x is there
  uint64_t ready[kPlaces];        // y of the tile is there: every lane of the row warps arrives
  uint64_t empty[kPlaces];        // every lane of the product warps has read y
};
constexpr int kNone = -1;

// Of the row warps; of the product warps.
enum NamedBarrier { kRows = 1, kShares };

// Loaded a second time, so that it needs no registers meanwhile.
__device__ __forceinline__ Pack<bf16> load_again(const bf16* p) {
  Pack<bf16> x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.v.x), "=r"(x.v.y), "=r"(x.v.z), "=r"(x.v.w)
               : "r"(shared_address(p))
               : "memory");
  return x;
}
// Not known earlier than it is asked for.
__device__ __forceinline__ int lane_now() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane)::"memory");
  return lane;
}

// kAhead: rows of a row warp on their way while it writes one.
template <int kDim, int kGates, int kPlaces, int kAhead>
struct Block {
  using S = Shared<kDim, kGates, kPlaces>;
  static constexpr int kPacks = kDim / kWide;        // of a lane
  static constexpr int kOwn = kDim / kProducts;      // columns of a product warp
  static constexpr int kSteps = kOwn / 32;           // of 32 columns each
  static constexpr int kSums = kDim > 2048 ? 2 : 4;  // chains of a product warp
  static constexpr int kHalves = kGates / 8;
  using Weights = uint4[kSteps][kHalves];
  static_assert(kAhead < kPlaces);

  const NormGates& a;
  S& s;

  // Formed where they are needed: no registers for them through a role.
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  static __device__ __forceinline__ int warp() {
    return uniform(static_cast<int>(threadIdx.x) / kWarp);
  }
  static __device__ __forceinline__ uint32_t phase(int n) {
    return static_cast<uint32_t>(n / kPlaces) & 1U;
  }
  // By one thread, before anybody waits.
  __device__ __forceinline__ void init() const {
    const int64_t tiles = (a.tokens + kTile - 1) / kTile;
    for (int place = 0; place < kPlaces; ++place) {
      const int tile = first_tile(place);
      s.tile[place] = tile < tiles ? tile : kNone;
      for (int row = 0; row < kTile; ++row) barrier_init(&s.full[place][row], 1);
      barrier_init(&s.known[place], 1);
      barrier_init(&s.ready[place], kTile * kWarp);
      barrier_init(&s.empty[place], kProducts * kWarp);
    }
    barrier_init_fence();
  }

  // The n-th tile of the block comes to place n % kPlaces. The first ones follow from the block,
  // the others are drawn by one thread: a block that is faster takes more, and at every time all
  // blocks are at neighbouring rows. No value depends on which block forms it.
  __device__ __forceinline__ int first_tile(int n) const {
    return n * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  }
  __device__ __forceinline__ void draw() const {
    const int64_t tiles = (a.tokens + kTile - 1) / kTile;
    const auto blocks = static_cast<int>(gridDim.x);
    int tile = first_tile(kPlaces - 1);
    for (int n = kPlaces; tile < tiles; ++n) {
      const int place = n % kPlaces;
      tile = kPlaces * blocks + atomicAdd(a.tickets, 1);
      barrier_wait(&s.empty[place], phase(n) ^ 1U);
      s.tile[place] = tile < tiles ? tile : kNone;
      barrier_arrive(&s.known[place]);
    }
    // The block that ends last leaves the tickets as they were found: all have drawn theirs.
    __threadfence();
    if (atomicAdd(a.tickets + 1, 1) == blocks - 1) {
      __threadfence();
      atomicExch(a.tickets, 0);
      atomicExch(a.tickets + 1, 0);
    }
  }

  // By one lane: the row of the n-th tile, whose number it gives back.
  __device__ __forceinline__ int fetch(int row, int n) const {
    const int place = n % kPlaces;
    if (n >= kPlaces) barrier_wait(&s.known[place], phase(n) ^ 1U);
    const int tile = s.tile[place];
    const int64_t t = static_cast<int64_t>(tile) * kTile + row;
    if (tile == kNone || t >= a.tokens) return tile;
    constexpr uint32_t kBytes = kDim * sizeof(bf16);
    uint64_t* full = &s.full[place][row];
    barrier_expect(full, kBytes);
    fence_to_async();
    bulk_load(s.rows[place][row], a.x + t * a.x_stride, kBytes, full);
    return tile;
  }
  // w, by the row warps; so many columns at once.
  static constexpr int kOnce = kTile * kWarp * kVec;
  using Scales = Pack<bf16>[kDim / kOnce];
  __device__ __forceinline__ void load_scales(Scales& w) const {
#pragma unroll
    for (int k = 0; k < kDim / kOnce; ++k) {
      w[k] = read_pack(a.w + static_cast<int>(threadIdx.x) * kVec + k * kOnce);
    }
  }
  __device__ __forceinline__ void rows(const Scales& w) const {
    const int row = warp();
    if (lane() == 0) {
#pragma unroll
      for (int n = 0; n < kAhead; ++n) fetch(row, n);
    }
#pragma unroll
    for (int k = 0; k < kDim / kOnce; ++k) {
      store_pack(s.w + static_cast<int>(threadIdx.x) * kVec + k * kOnce, w[k]);
    }
    named_barrier(kRows, kTile * kWarp);
    int tiles[kAhead] = {};  // of lane 0: those of the rows on their way
#pragma unroll
    for (int k = 0; k < kAhead; ++k) tiles[k] = s.tile[k];
    for (int n = 0;; ++n) {
      const int place = n % kPlaces;
      const int tile = __shfl_sync(kAllLanes, tiles[0], 0);
      const int64_t t = static_cast<int64_t>(tile) * kTile + row;
      if (tile != kNone && t < a.tokens) {
        barrier_wait(&s.full[place][row], phase(n));
        write_row(t, s.rows[place][row] + lane() * kVec);
      }
      barrier_arrive(&s.ready[place]);
      if (tile == kNone) return;
      if (lane() != 0) continue;
#pragma unroll
      for (int k = 0; k + 1 < kAhead; ++k) tiles[k] = tiles[k + 1];
      int& last = tiles[kAhead - 1];
      if (last != kNone) last = fetch(row, n + kAhead);
    }
  }
  // mine: the lane's first vector of the row's place, where y stands afterwards.
  __device__ __forceinline__ void write_row(int64_t t, bf16* mine) const {
    float sums[4] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float v[kVec];
      unpack(load_pack(mine + p * kWide), v);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sums[i % 4] = fmaf(v[i], v[i], sums[i % 4]);
    }
    const float sum = lanes_sum((sums[0] + sums[2]) + (sums[1] + sums[3]));
    const float rstd = 1.0F / sqrtf(sum / static_cast<float>(kDim) + a.eps);
    if (lane() == 0) a.rstd[t] = rstd;
    bf16* y = a.y + t * a.y_stride + lane() * kVec;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float v[kVec];
      float w[kVec];
      unpack(load_again(mine + p * kWide), v);
      unpack(load_pack(s.w + lane() * kVec + p * kWide), w);
#pragma unroll
      for (int i = 0; i < kVec; ++i) v[i] = normed(v[i], rstd, w[i]);
      Pack<bf16> out;
      pack(v, out);
      store_pack(mine + p * kWide, out);
      store_pack(y + p * kWide, out);
    }
  }

  __device__ __forceinline__ void load_weights(int col, Weights& weights) const {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const bf16* row = gate_row(a, lane() / 4 + 8 * h) + col;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) weights[j][h] = read_pack(row + j * kWarp).v;
    }
  }
  __device__ __forceinline__ void products() const {
    const int part = warp() - kTile;
    Weights weights;
    load_weights(part * kOwn + lane() % 4 * kVec, weights);
    // What follows from the lane is formed behind the weights and again behind the products: they
    // leave few registers.
    const int reader = lane_now();
    const int col = part * kOwn + reader % 4 * kVec;
    for (int n = 0;; ++n) {
      const int place = n % kPlaces;
      barrier_wait(&s.ready[place], phase(n));
      const int tile = uniform(s.tile[place]);
      if (tile == kNone) return;
      const bf16* y = s.rows[place][reader / 4] + col;
      float sums[kSums][4] = {};
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const uint4 v = load_pack(y + j * kWarp).v;
        const uint4 u = weights[j][0];
        const uint4 l = kHalves == 2 ? weights[j][kHalves - 1] : uint4{};
        float(&sum)[4] = sums[j % kSums];
        mma_16_8_16(sum, u.x, l.x, u.y, l.y, v.x, v.y);
        mma_16_8_16(sum, u.z, l.z, u.w, l.w, v.z, v.w);
      }
      const int lane = lane_now();
      const int gate = lane / 4;
      const int token = 2 * (lane % 4);
#pragma unroll
      for (int e = 0; e < 2 * kHalves; ++e) {
        float z = sums[0][e] + sums[1][e];
        if constexpr (kSums == 4) z += sums[2][e] + sums[3][e];
        s.z[n & 1][part][token + e % 2][gate + e / 2 * 8] = z;
      }
      barrier_arrive(&s.empty[place]);
      named_barrier(kShares, kProducts * kWarp);
      // One half of the warps forms the gates of this tile, the other half those of the next one:
      // nobody writes shares again before the barrier behind which they have been read.
      if (part / kHalf == (n & 1)) {
        finish(s.z[n & 1], part % kHalf * kWarp + lane, static_cast<int64_t>(tile) * kTile);
      }
    }
  }
  // i and f of the tile from token `first` on, whose shares are there.
  template <typename Shares>
  __device__ __forceinline__ void finish(const Shares& shares, int e, int64_t first) const {
    const int gate = e % kGates;
    const int64_t t = first + e / kGates;
    if (e >= kTile * kGates || t >= a.tokens || gate >= 2 * a.heads) return;
    float z = shares[0][e / kGates][gate];
#pragma unroll
    for (int p = 1; p < kProducts; ++p) z += shares[p][e / kGates][gate];
    z += to_f32(gate < a.heads ? a.bi[gate] : a.bf[gate - a.heads]);
    const float value = a.cap > 0.0F ? a.cap * tanh_slope(z / a.cap).tanh : z;
    (gate < a.heads ? a.i + t * a.heads + gate : a.f + t * a.heads + gate - a.heads)[0] = value;
  }
};

template <int kDim, int kGates, int kPlaces, int kAhead>
__global__ void __launch_bounds__(kBlock, 1) norm_gates_kernel(NormGates a) {
  extern __shared__ __align__(128) unsigned char memory[];
  using B = Block<kDim, kGates, kPlaces, kAhead>;
  using R = Registers<kDim>;
  const B block{a, *reinterpret_cast<typename B::S*>(memory)};
  const int warp = B::warp();
  const bool drawing = threadIdx.x == (kTile + kProducts) * kWarp;
  typename B::Scales w;  // on their way to the row warps while the barriers are made
  if (warp < kTile) block.load_scales(w);
  if (drawing) block.init();
  __syncthreads();
  if (warp < kTile) {
    registers_shrink<R::kRow>();
    block.rows(w);
  } else if (warp < kTile + kProducts) {
    registers_grow<R::kProduct>();
    block.products();
  } else {
    registers_shrink<R::kDrawing>();
    if (drawing) block.draw();
  }
}

template <int kDim, int kGates, int kPlaces, int kAhead>
Status launch_norm_gates(cudaStream_t stream, const NormGates& a) {
  using S = Shared<kDim, kGates, kPlaces>;
  static_assert(sizeof(S) <= kSharedMax);
  Launch l;
  l.grid = dim3(static_cast<unsigned>(std::min(div_ceil(a.tokens, int64_t{kTile}), kOneWave)));
  l.block = dim3(kBlock);
  l.shared_bytes = sizeof(S);
  l.stream = stream;
  l.registers = kRegisters;
  return launch("rms_norm_gates", l, norm_gates_kernel<kDim, kGates, kPlaces, kAhead>, a);
}

bool all_bf16(const RmsNormGatesArgs& a) {
  return a.norm.x_TD.dtype == DType::kBF16 && a.norm.w_D.dtype == DType::kBF16 &&
         a.gates.wi_ND.dtype == DType::kBF16;
}

}  // namespace

Status CudaBackend::rms_norm_gates(Stream& s, const RmsNormGatesArgs& a) {
  SWAX_TRY(validate(a));
  const int64_t dim = a.norm.x_TD.dims[1];
  const int64_t gates = 2 * a.gates.wi_ND.dims[0];
  const bool narrow = dim == 2048 && gates <= 8;
  const bool wide = dim == 4096 && gates > 8 && gates <= 16;
  const bool vectors = vector_rows(a.norm.x_TD) && vector_rows(a.norm.y_TD) &&
                       vector_rows(a.norm.w_D) && vector_rows(a.gates.wi_ND) &&
                       vector_rows(a.gates.wf_ND);
  // x is read as memory that nobody writes.
  const bool apart = !spec::overlap(a.norm.x_TD, a.norm.y_TD);
  if (!(narrow || wide) || !vectors || !apart || !all_bf16(a)) {
    SWAX_TRY(rms_norm(s, a.norm));
    return mlstm_gates(s, a.gates);
  }
  SWAX_TRY(need_data("rms_norm_gates",
                     {&a.norm.x_TD, &a.norm.w_D, &a.norm.y_TD, &a.norm.rstd_T, &a.gates.wi_ND,
                      &a.gates.wf_ND, &a.gates.bi_N, &a.gates.bf_N, &a.gates.i_TN, &a.gates.f_TN}));
  const NormGates n{data_of<bf16>(a.norm.x_TD),
                    data_of<bf16>(a.norm.w_D),
                    data_of<bf16>(a.gates.wi_ND),
                    data_of<bf16>(a.gates.wf_ND),
                    data_of<bf16>(a.gates.bi_N),
                    data_of<bf16>(a.gates.bf_N),
                    data_of<bf16>(a.norm.y_TD),
                    a.norm.rstd_T.f32(),
                    a.gates.i_TN.f32(),
                    a.gates.f_TN.f32(),
                    static_cast<CudaStream&>(s).tickets(),
                    row_stride(a.norm.x_TD),
                    row_stride(a.norm.y_TD),
                    row_stride(a.gates.wi_ND),
                    row_stride(a.gates.wf_ND),
                    a.norm.x_TD.dims[0],
                    static_cast<int>(gates / 2),
                    a.norm.eps,
                    a.gates.cap};
  return narrow ? launch_norm_gates<2048, 8, 3, 2>(raw(s), n)
                : launch_norm_gates<4096, 16, 2, 1>(raw(s), n);
}

}  // namespace swax::cuda
