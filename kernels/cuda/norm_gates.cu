// RMSNorm with the gates that read it, at the widths of the models: a row is read and written once,
// and the gates take y from the registers in which it was rounded. A block strides over tiles of 8
// tokens. Its warps share the columns; four lanes have a token, eight neighbouring columns of 32
// each, which is the right operand of a small product whose left one are the weights (see gates.cu
// for the free order of columns). Sums: 2 D / 256 products in a warp's chain, then warps in order.
// Other shapes take the two ops.
#include <algorithm>

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/kernel_launch.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/small_product.cuh"
#include "kernels/cuda/vec.cuh"

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

constexpr int kTile = 8;    // tokens
constexpr int kSteps = 8;   // of 32 columns: of a warp
constexpr int kWide = 256;  // columns of a warp

// kStages: tiles of x on their way into shared memory; 0: the next one is read into registers.
template <int kWarps, int kGates, int kStages>
struct Shared {
  static constexpr int kDim = kWarps * kWide;
  static constexpr int kPitch = kDim + 32;  // elements of a row: two rows share no banks
  static constexpr int kHalves = kGates / 8;
  // Where registers hold x, the weights lie here.
  static constexpr int kFragments = kStages == 0 ? kWarps * kSteps * kHalves * kWarp : 1;

  bf16 ring[kStages == 0 ? 1 : kStages * kTile * kPitch];
  uint4 weights[kFragments];
  bf16 w[kDim];
  float squares[2][kTile][kWarps];
  float z[2][kWarps][kTile][kGates + 1];
  float bias[kGates];
  uint64_t full[kStages == 0 ? 1 : kStages];
};

template <int kWarps, int kGates, int kStages>
struct Tiles {
  using S = Shared<kWarps, kGates, kStages>;
  static constexpr int kBlock = kWarps * kWarp;
  static constexpr bool kRing = kStages > 0;

  const NormGates& a;
  S& s;
  int lane, warp;
  int token;  // of the tile
  int col;    // first column
  int count;  // tiles of the block
  uint4 next[kRing ? 1 : kSteps];
  uint4 weights[kRing ? kSteps : 1];

  __device__ __forceinline__ Tiles(const NormGates& args, S& shared) : a(args), s(shared) {
    lane = static_cast<int>(threadIdx.x) % kWarp;
    warp = static_cast<int>(threadIdx.x) / kWarp;
    token = lane / 4;
    col = warp * kWide + lane % 4 * kVec;
    const auto tiles = static_cast<unsigned>((a.tokens + kTile - 1) / kTile);
    count = static_cast<int>((tiles - blockIdx.x + gridDim.x - 1) / gridDim.x);
  }
  __device__ __forceinline__ int64_t first(int k) const {
    return (blockIdx.x + static_cast<int64_t>(k) * gridDim.x) * kTile;
  }
  __device__ __forceinline__ bf16* in_ring(int stage, int row) const {
    return s.ring + (stage * kTile + row) * S::kPitch;
  }
  // Of tile k, if there is one. In a ring: by one warp.
  __device__ __forceinline__ void fetch(int k) {
    if (k >= count) return;
    if constexpr (kRing) {
      const int stage = k % kStages;
      const int rows = static_cast<int>(min(int64_t{kTile}, a.tokens - first(k)));
      constexpr uint32_t kBytes = S::kDim * sizeof(bf16);
      if (lane == 0) barrier_expect(s.full + stage, static_cast<uint32_t>(rows) * kBytes);
      __syncwarp();
      fence_to_async();
      if (lane >= rows) return;
      bulk_load(in_ring(stage, lane), a.x + (first(k) + lane) * a.x_stride, kBytes, s.full + stage);
    } else {
      const bf16* x = a.x + min(first(k) + token, a.tokens - 1) * a.x_stride + col;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) next[j] = read_pack(x + j * kWarp).v;
    }
  }
  __device__ __forceinline__ void start() {
    if constexpr (kRing) {
      if (threadIdx.x == 0) {
        for (int k = 0; k < kStages; ++k) barrier_init(s.full + k, 1);
        barrier_init_fence();
      }
      __syncthreads();
      for (int k = 0; warp == 0 && k < kStages; ++k) fetch(k);
    } else {
      fetch(0);
    }
    for (int c = static_cast<int>(threadIdx.x) * kVec; c < S::kDim; c += kBlock * kVec) {
      store_pack(s.w + c, read_pack(a.w + c));
    }
    const int gate = static_cast<int>(threadIdx.x);
    if (gate < kGates) {
      const int g = min(gate, 2 * a.heads - 1);
      s.bias[gate] = to_f32(g < a.heads ? a.bi[g] : a.bf[g - a.heads]);
    }
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
#pragma unroll
      for (int h = 0; h < S::kHalves; ++h) {
        const uint4 w = read_pack(gate_row(a, token + 8 * h) + col + j * kWarp).v;
        if constexpr (kRing) {
          weights[j] = w;
        } else {
          s.weights[((warp * kSteps + j) * S::kHalves + h) * kWarp + lane] = w;
        }
      }
    }
    __syncthreads();
  }
  // Row `token` of tile k; the next tile is on its way afterwards, or can be.
  __device__ __forceinline__ void take(int k, uint4 (&x)[kSteps]) {
    if constexpr (kRing) {
      barrier_wait(s.full + k % kStages, static_cast<uint32_t>(k / kStages) & 1U);
      const bf16* row = in_ring(k % kStages, token) + col;
#pragma unroll
      for (int j = 0; j < kSteps; ++j) x[j] = load_pack(row + j * kWarp).v;
    } else {
#pragma unroll
      for (int j = 0; j < kSteps; ++j) x[j] = next[j];
      fetch(k + 1);
    }
  }
  // rstd of the row; one barrier of the block.
  __device__ __forceinline__ float scale(int k, const uint4 (&x)[kSteps]) {
    float sums[4] = {};
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      float v[kVec];
      unpack(Pack<bf16>{x[j]}, v);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sums[i % 4] = fmaf(v[i], v[i], sums[i % 4]);
    }
    const float sum = lanes_sum((sums[0] + sums[2]) + (sums[1] + sums[3]), 4);
    float(&squares)[kTile][kWarps] = s.squares[k & 1];
    if (lane % 4 == 0) squares[token][warp] = sum;
    __syncthreads();
    float total = 0.0F;
#pragma unroll
    for (int w = 0; w < kWarps; w += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&squares[token][w]);
      total += (four.x + four.y) + (four.z + four.w);
    }
    return 1.0F / sqrtf(total / static_cast<float>(S::kDim) + a.eps);
  }
  // y and the warp's shares of the gates.
  __device__ __forceinline__ void write(int k, const uint4 (&x)[kSteps], float rstd) {
    const int64_t t = first(k) + token;
    const bool there = t < a.tokens;
    if (warp == 0 && lane % 4 == 0 && there) a.rstd[t] = rstd;
    float sum[4] = {};
    bf16* y = a.y + t * a.y_stride + col;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      float v[kVec];
      float w[kVec];
      unpack(Pack<bf16>{x[j]}, v);
      unpack(load_pack(s.w + col + j * kWarp), w);
#pragma unroll
      for (int i = 0; i < kVec; ++i) v[i] = normed(v[i], rstd, w[i]);
      Pack<bf16> out;
      pack(v, out);
      if (there) store_pack(y + j * kWarp, out);
      if constexpr (kRing) {
        mma_16_8_16(sum, weights[j].x, 0, weights[j].y, 0, out.v.x, out.v.y);
        mma_16_8_16(sum, weights[j].z, 0, weights[j].w, 0, out.v.z, out.v.w);
      } else {
        const uint4* both = s.weights + (warp * kSteps + j) * S::kHalves * kWarp + lane;
        const uint4 u = both[0];
        const uint4 l = both[kWarp];
        mma_16_8_16(sum, u.x, l.x, u.y, l.y, out.v.x, out.v.y);
        mma_16_8_16(sum, u.z, l.z, u.w, l.w, out.v.z, out.v.w);
      }
    }
    const int q = lane % 4;
#pragma unroll
    for (int e = 0; e < 2 * S::kHalves; ++e) {
      s.z[k & 1][warp][2 * q + e % 2][token + e / 2 * 8] = sum[e];
    }
  }
  // i and f of tile k, whose shares are there.
  __device__ __forceinline__ void finish(int k) {
    for (int e = static_cast<int>(threadIdx.x); e < kTile * kGates; e += kBlock) {
      const int gate = e % kGates;
      const int64_t t = first(k) + e / kGates;
      if (t >= a.tokens || gate >= 2 * a.heads) continue;
      float z = s.z[k & 1][0][e / kGates][gate];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) z += s.z[k & 1][w][e / kGates][gate];
      z += s.bias[gate];
      const float value = a.cap > 0.0F ? a.cap * tanh_slope(z / a.cap).tanh : z;
      (gate < a.heads ? a.i + t * a.heads + gate : a.f + t * a.heads + gate - a.heads)[0] = value;
    }
  }
};

template <int kWarps, int kGates, int kStages>
__global__ void __launch_bounds__(kWarps* kWarp, kWarps == 8 ? 2 : 1)
    norm_gates_kernel(NormGates a) {
  extern __shared__ __align__(128) unsigned char memory[];
  using T = Tiles<kWarps, kGates, kStages>;
  T tiles(a, *reinterpret_cast<typename T::S*>(memory));
  tiles.start();
  for (int k = 0; k < tiles.count; ++k) {
    uint4 x[kSteps];
    tiles.take(k, x);
    const float rstd = tiles.scale(k, x);
    // Behind the barrier: everybody has taken tile k and has left the shares of the one before.
    if constexpr (T::kRing) {
      if (tiles.warp == 0) tiles.fetch(k + kStages);
    }
    if (k > 0) tiles.finish(k - 1);
    tiles.write(k, x, rstd);
  }
  __syncthreads();
  if (tiles.count > 0) tiles.finish(tiles.count - 1);
}

template <int kWarps, int kGates, int kStages>
Status launch_norm_gates(cudaStream_t stream, const NormGates& a) {
  const int64_t wave = kOneWave * (kWarps == 8 ? 2 : 1);
  const int64_t tiles = div_ceil(a.tokens, int64_t{kTile});
  Launch l;
  l.grid = dim3(static_cast<unsigned>(std::min(tiles, wave)));
  l.block = dim3(kWarps * kWarp);
  l.shared_bytes = sizeof(Shared<kWarps, kGates, kStages>);
  l.stream = stream;
  return launch("rms_norm_gates", l, norm_gates_kernel<kWarps, kGates, kStages>, a);
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
  const bool apart = a.norm.x_TD.data != a.norm.y_TD.data;
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
                    row_stride(a.norm.x_TD),
                    row_stride(a.norm.y_TD),
                    row_stride(a.gates.wi_ND),
                    row_stride(a.gates.wf_ND),
                    a.norm.x_TD.dims[0],
                    static_cast<int>(gates / 2),
                    a.norm.eps,
                    a.gates.cap};
  return narrow ? launch_norm_gates<8, 8, 3>(raw(s), n) : launch_norm_gates<16, 16, 0>(raw(s), n);
}

}  // namespace swax::cuda
