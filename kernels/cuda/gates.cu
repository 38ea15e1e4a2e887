// Gate pre-activations of the mLSTM with their soft cap. In bf16 2 N <= 32 gates are the columns of
// a small tensor-core product, up to 8 its rows where D allows it; any other shape has one warp a
// token, weights from the cache.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/small_product.cuh"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

// Gates of one pass over x; gate g < N is i of head g, else f of head g - N.
constexpr int kGroup = 8;
constexpr int kGateWarps = 8;

template <typename X, typename W>
struct Gates {
  const X* x;
  const W* wi;
  const W* wf;
  const W* bi;
  const W* bf;
  float* i;
  float* f;
  int64_t x_stride, wi_stride, wf_stride;
  int64_t tokens, dim, heads;
  float cap;
};
template <typename G>
__device__ __forceinline__ auto gate_row(const G& a, int64_t gate) {
  return gate < a.heads ? a.wi + gate * a.wi_stride : a.wf + (gate - a.heads) * a.wf_stride;
}
// Element [t, head] of i_TN or f_TN.
template <typename G>
__device__ __forceinline__ float* gate_value(float* i, float* f, const G& a, int64_t t,
                                             int64_t gate) {
  return gate < a.heads ? i + t * a.heads + gate : f + t * a.heads + gate - a.heads;
}

__device__ __forceinline__ float capped_gate(float z, float cap) {
  return cap > 0.0F ? cap * tanh_slope(z / cap).tanh : z;
}

template <bool kAligned, typename X, typename W>
__global__ void __launch_bounds__(kGateWarps* kWarp) gates_kernel(Gates<X, W> a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kGateWarps + threadIdx.x / kWarp;
  if (t >= a.tokens) return;
  const X* x = a.x + t * a.x_stride;
  for (int64_t first = 0; first < 2 * a.heads; first += kGroup) {
    const int gates = static_cast<int>(min(int64_t{kGroup}, 2 * a.heads - first));
    float sum[kGroup] = {};
    for (int64_t col = lane * kVec; col < a.dim; col += kWarp * kVec) {
      float vx[kVec];
      load8<kAligned>(x, col, a.dim, vx);
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        if (g >= gates) break;
        float w[kVec];
        load8<kAligned>(gate_row(a, first + g), col, a.dim, w);
        float part = vx[0] * w[0];
#pragma unroll
        for (int k = 1; k < kVec; ++k) part = fmaf(vx[k], w[k], part);
        sum[g] += part;
      }
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      if (g >= gates) break;
      const int64_t gate = first + g;
      const W* bias = gate < a.heads ? a.bi + gate : a.bf + (gate - a.heads);
      const float z = lanes_sum(sum[g]) + to_f32(*bias);
      if (lane == 0) *gate_value(a.i, a.f, a, t, gate) = capped_gate(z, a.cap);
    }
  }
}

constexpr int kTileTokens = 16;
constexpr int kTileGates = 8;
constexpr int kTileCols = 32;  // of one step of a warp
constexpr int64_t kTileDimMax = 65536;

// 16 tokens a block; its warps share the columns and their sums are added in the order of warps.
// The order of columns inside a product is free, so a lane takes the eight neighbouring columns of
// one access for two products: its first four stand for columns 2 q, 2 q + 1, 2 q + 8, 2 q + 9 of
// the first (q = lane mod 4), in x as in the weights. Sums: a warp's chain has D / 128 products,
// each cut below the last place of the sum: at most D / 128 * 2^-23, within the spec's
// 1.5 sqrt(D) * 2^-24 * 2 as long as D <= kTileDimMax.
template <int kTiles>
__global__ void __launch_bounds__(kGateWarps* kWarp, kTiles == 1 ? 3 : 2)
    gates_tile_kernel(Gates<bf16, bf16> a) {
  __shared__ float parts[kGateWarps][kTileTokens][kTiles * kTileGates + 1];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int across = lane / 4;
  const int part = lane % 4;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTileTokens;
  const auto row = [&](int64_t t) { return a.x + min(t, a.tokens - 1) * a.x_stride + part * kVec; };
  const bf16* low = row(first + across);
  const bf16* high = row(first + across + kTileTokens / 2);
  const bf16* weight[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int64_t gate = min(int64_t{n * kTileGates + across}, 2 * a.heads - 1);
    weight[n] = gate_row(a, gate) + part * kVec;
  }
  float sum[kTiles][4] = {};
#pragma unroll 4
  for (int64_t col = warp * kTileCols; col < a.dim; col += kGateWarps * kTileCols) {
    const uint4 x = read_pack(low + col).v;
    const uint4 y = read_pack(high + col).v;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4 w = read_pack(weight[n] + col).v;
      mma_16_8_16(sum[n], x.x, y.x, x.y, y.y, w.x, w.y);
      mma_16_8_16(sum[n], x.z, y.z, x.w, y.w, w.z, w.w);
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      parts[warp][across + k / 2 * (kTileTokens / 2)][n * kTileGates + 2 * part + k % 2] =
          sum[n][k];
    }
  }
  __syncthreads();
  constexpr int kGates = kTiles * kTileGates;
  for (int e = static_cast<int>(threadIdx.x); e < kTileTokens * kGates; e += kGateWarps * kWarp) {
    const int64_t t = first + e / kGates;
    const int gate = e % kGates;
    if (t >= a.tokens || gate >= 2 * a.heads) continue;
    float z = parts[0][e / kGates][gate];
    for (int w = 1; w < kGateWarps; ++w) z += parts[w][e / kGates][gate];
    z += to_f32(gate < a.heads ? a.bi[gate] : a.bf[gate - a.heads]);
    *gate_value(a.i, a.f, a, t, gate) = capped_gate(z, a.cap);
  }
}

// The same without a wave of blocks that ends late, for N <= 4 and D a multiple of kOwnCols: a
// block strides over tiles of 8 tokens, its warps share the columns and keep their weights in
// registers. The weights are the left operand here, its lower half zero. A warp's chain has 16
// products, within the bound from D = 256 on; at D = 2048 the sums have the order of the kernel
// above.
constexpr int kOwnTokens = 8;
constexpr int kOwnSteps = 8;  // of kTileCols: of a warp
constexpr int64_t kOwnCols = kOwnSteps * kTileCols;
constexpr int kOwnWarpsMax = 16;  // 128 registers a thread

__global__ void __launch_bounds__(kOwnWarpsMax* kWarp, 1) gates_own_kernel(Gates<bf16, bf16> a) {
  __shared__ float parts[2][kOwnWarpsMax][kOwnTokens][kTileGates + 1];
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int across = lane / 4;
  const int part = lane % 4;
  const int64_t wide = warps * kTileCols;
  const int64_t own = warp * kTileCols + part * kVec;
  const auto row = [&](int64_t tile) {
    return a.x + min(tile * kOwnTokens + across, a.tokens - 1) * a.x_stride + own;
  };
  const int64_t tiles = (a.tokens + kOwnTokens - 1) / kOwnTokens;
  int64_t tile = blockIdx.x;
  uint4 x[kOwnSteps];
  uint4 w[kOwnSteps];
#pragma unroll
  for (int j = 0; j < kOwnSteps; ++j) x[j] = read_pack(row(tile) + j * wide).v;
  const bf16* weight = gate_row(a, min(int64_t{across}, 2 * a.heads - 1)) + own;
#pragma unroll
  for (int j = 0; j < kOwnSteps; ++j) w[j] = read_pack(weight + j * wide).v;
  for (int side = 0; tile < tiles; tile += gridDim.x, side ^= 1) {
    float sum[4] = {};
#pragma unroll
    for (int j = 0; j < kOwnSteps; ++j) {
      mma_16_8_16(sum, w[j].x, 0, w[j].y, 0, x[j].x, x[j].y);
      mma_16_8_16(sum, w[j].z, 0, w[j].w, 0, x[j].z, x[j].w);
    }
    if (tile + gridDim.x < tiles) {
#pragma unroll
      for (int j = 0; j < kOwnSteps; ++j) x[j] = read_pack(row(tile + gridDim.x) + j * wide).v;
    }
    parts[side][warp][2 * part][across] = sum[0];
    parts[side][warp][2 * part + 1][across] = sum[1];
    __syncthreads();
    for (int e = static_cast<int>(threadIdx.x); e < kOwnTokens * kTileGates;
         e += static_cast<int>(blockDim.x)) {
      const int64_t t = tile * kOwnTokens + e / kTileGates;
      const int gate = e % kTileGates;
      if (t >= a.tokens || gate >= 2 * a.heads) continue;
      float z = parts[side][0][e / kTileGates][gate];
      for (int k = 1; k < warps; ++k) z += parts[side][k][e / kTileGates][gate];
      z += to_f32(gate < a.heads ? a.bi[gate] : a.bf[gate - a.heads]);
      *gate_value(a.i, a.f, a, t, gate) = capped_gate(z, a.cap);
    }
  }
}

bool fits_own(const Gates<bf16, bf16>& a) {
  return 2 * a.heads <= kTileGates && a.dim % kOwnCols == 0 && a.dim <= kOwnWarpsMax * kOwnCols;
}
void launch_own(cudaStream_t stream, const Gates<bf16, bf16>& a) {
  const int64_t tiles = div_ceil(a.tokens, int64_t{kOwnTokens});
  const int64_t wave = kOneWave * (kOwnWarpsMax * kOwnCols / a.dim);  // as registers allow
  const auto threads = static_cast<unsigned>(a.dim / kOwnCols * kWarp);
  gates_own_kernel<<<static_cast<unsigned>(std::min(tiles, wave)), threads, 0, stream>>>(a);
}

template <typename X, typename W>
Status forward(cudaStream_t stream, const MlstmGatesArgs& g) {
  const Gates<X, W> a{data_of<X>(g.x_TD),  data_of<W>(g.wi_ND),
                      data_of<W>(g.wf_ND), data_of<W>(g.bi_N),
                      data_of<W>(g.bf_N),  g.i_TN.f32(),
                      g.f_TN.f32(),        row_stride(g.x_TD),
                      row_stride(g.wi_ND), row_stride(g.wf_ND),
                      g.x_TD.dims[0],      g.x_TD.dims[1],
                      g.wi_ND.dims[0],     g.cap};
  const auto blocks = static_cast<unsigned>(div_ceil(a.tokens, kGateWarps));
  const bool vectors =
      a.dim % kVec == 0 && vector_rows(g.x_TD) && vector_rows(g.wi_ND) && vector_rows(g.wf_ND);
  if constexpr (sizeof(X) == 2 && sizeof(W) == 2) {
    const int64_t tiles = div_ceil(2 * a.heads, kTileGates);
    if (vectors && a.dim % kTileCols == 0 && a.dim <= kTileDimMax && tiles <= 4) {
      const auto tokens = static_cast<unsigned>(div_ceil(a.tokens, kTileTokens));
      constexpr int kBlock = kGateWarps * kWarp;
      if (fits_own(a)) {
        launch_own(stream, a);
      } else if (tiles == 1) {
        gates_tile_kernel<1><<<tokens, kBlock, 0, stream>>>(a);
      } else if (tiles == 2) {
        gates_tile_kernel<2><<<tokens, kBlock, 0, stream>>>(a);
      } else {
        gates_tile_kernel<4><<<tokens, kBlock, 0, stream>>>(a);
      }
      return last_launch("mlstm_gates");
    }
  }
  if (vectors) {
    gates_kernel<true><<<blocks, kGateWarps * kWarp, 0, stream>>>(a);
  } else {
    gates_kernel<false><<<blocks, kGateWarps * kWarp, 0, stream>>>(a);
  }
  return last_launch("mlstm_gates");
}

}  // namespace

Status CudaBackend::mlstm_gates(Stream& s, const MlstmGatesArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(
      need_data("mlstm_gates", {&a.x_TD, &a.wi_ND, &a.wf_ND, &a.bi_N, &a.bf_N, &a.i_TN, &a.f_TN}));
  const bool narrow_w = a.wi_ND.dtype == DType::kBF16;
  if (a.x_TD.dtype == DType::kBF16) {
    return narrow_w ? forward<bf16, bf16>(raw(s), a) : forward<bf16, float>(raw(s), a);
  }
  return narrow_w ? forward<float, bf16>(raw(s), a) : forward<float, float>(raw(s), a);
}

}  // namespace swax::cuda
