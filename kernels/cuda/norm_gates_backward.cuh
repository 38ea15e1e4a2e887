// Backward of RMSNorm with gates: what a computing warp does. See norm_gates_backward.cu, the only
// file that takes it. Device only.
#pragma once

#include "kernels/cuda/norm_gates_feeder.cuh"
#include "kernels/cuda/small_product.cuh"

namespace swax::cuda {
namespace {

// A warp that computes: 128 columns; lane 4 l + q has columns 8 l ... 8 l + 7 and the eight that
// lie 64 further on, of rows 2 q and 2 q + 1 of a group.
template <int kCluster, int kGates>
struct Columns {
  using S = Shared<kCluster, kGates>;
  static constexpr int kTilePacks = kTileCols / kCols;  // of a row of a block of a tile
  static constexpr int kHalves = S::kHalves;
  static constexpr int kDim = kCluster * kSlice;

  const NormGatesBackward& a;
  S& s;
  Run<kCluster> run;
  int lane, warp;
  int col;                                          // the lane's first, of the row
  int row;                                          // 2 q
  int at[2];                                        // its first packs of a tile, of both rows
  uint32_t gate_w[kPacks][kCols / 2][2 * kHalves];  // gates 2 q and 2 q + 1 of two columns
  float gate_dw[kPacks][kCols / 2][kHalves][4];
  uint4 w[kPacks];
  float dw[kPacks][kCols];

  __device__ __forceinline__ Columns(const NormGatesBackward& args, S& shared)
      : a(args), s(shared), run(args) {
    lane = static_cast<int>(threadIdx.x) % kWarp;
    warp = static_cast<int>(threadIdx.x) / kWarp;
    col = run.rank * kSlice + warp * kWarpCols + lane / 4 * kCols;
    row = lane % 4 * 2;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      at[e] = (warp * kPacks * kRows + row + e) * kTilePacks + (lane / 4 ^ (row + e));
    }
  }
  __device__ __forceinline__ void start() {
    uint4 gates[kPacks][kHalves][2];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int at_col = col + p * kTileCols;
      w[p] = read_pack(a.w + at_col).v;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int g = 8 * h + row + k;
          gates[p][h][k] = make_uint4(0, 0, 0, 0);
          if (g < 2 * a.heads) gates[p][h][k] = read_pack(gate_row(a, g) + at_col).v;
        }
      }
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (float& v : dw[p]) v = 0.0F;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const uint4(&two)[2] = gates[p][h];
#pragma unroll
        for (int m = 0; m < kCols / 2; ++m) {
          gate_w[p][m][2 * h] = __byte_perm(word(two[0], m), word(two[1], m), 0x5410);
          gate_w[p][m][2 * h + 1] = __byte_perm(word(two[0], m), word(two[1], m), 0x7632);
#pragma unroll
          for (float& v : gate_dw[p][m][h]) v = 0.0F;
        }
      }
    }
  }
  __device__ __forceinline__ void get(int stage, int array, int p, uint4 (&v)[2]) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      v[e] = s.tiles[stage][array][at[e] + p * kRows * kTilePacks];
    }
  }
  // dy of columns 2 m and 2 m + 1 with the gates' share: of both rows the first, then the second.
  __device__ __forceinline__ void get_dy(const uint4 (&rows)[2], const uint4 (&d)[kHalves], int p,
                                         int m, float (&dy)[4]) const {
    dy[0] = low_half(word(rows[0], m));
    dy[1] = low_half(word(rows[1], m));
    dy[2] = high_half(word(rows[0], m));
    dy[3] = high_half(word(rows[1], m));
    const auto& u = gate_w[p][m];
    if constexpr (kHalves == 1) {
      mma_16_8_16(dy, u[0], u[1], u[0], u[1], d[0].x, d[0].y);
      mma_16_8_8(dy, u[0], u[1], d[0].z);
    } else {
      mma_16_8_16(dy, u[0], u[1], u[2], u[3], d[0].x, d[0].y);
      mma_16_8_16(dy, u[0], u[1], u[2], u[3], d[0].z, d[0].w);
      mma_16_8_16(dy, u[0], u[1], u[2], u[3], d[1].x, d[1].y);
    }
  }
  __device__ __forceinline__ void get_summands(int stage, uint4 (&d)[kHalves]) const {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) d[h] = s.by_token[stage][h][lane];
  }

  // y as rms_norm stored it gives the weights of the gates their share; the sums of y dy before
  // rounding go to shared memory.
  __device__ __forceinline__ void add(int group) {
    const int stage = group % kStages;
    wait_group(s.full, group);
    uint4 x[kPacks][2];
    uint4 rows_dy[kPacks][2];
    uint4 d[kHalves];
    uint4 weight[kHalves];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      get(stage, kX, p, x[p]);
      get(stage, kDy, p, rows_dy[p]);
    }
    get_summands(stage, d);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) weight[h] = s.by_gate[stage][h][lane];
    const float2 rstd = *reinterpret_cast<const float2*>(s.rstd[stage] + row);
    float sum[2] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int m = 0; m < kCols / 2; ++m) {
        float dy[4];
        get_dy(rows_dy[p], d, p, m, dy);
        const float two_w[2] = {low_half(word(w[p], m)), high_half(word(w[p], m))};
        const float y[4] = {normed(low_half(word(x[p][0], m)), rstd.x, two_w[0]),
                            normed(low_half(word(x[p][1], m)), rstd.y, two_w[0]),
                            normed(high_half(word(x[p][0], m)), rstd.x, two_w[1]),
                            normed(high_half(word(x[p][1], m)), rstd.y, two_w[1])};
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[k % 2] = fmaf(y[k], dy[k], sum[k % 2]);
        const uint32_t left = two_bf16(y[0], y[1]);
        const uint32_t right = two_bf16(y[2], y[3]);
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          float part[4] = {};
          mma_16_8_16(part, left, right, left, right, weight[h].x, weight[h].y);
          mma_16_8_8(part, left, right, weight[h].z);
#pragma unroll
          for (int k = 0; k < 4; ++k) gate_dw[p][m][h][k] += part[k];
        }
      }
    }
    const bool odd = lane / 4 % 2 != 0;
    float mine = odd ? sum[1] : sum[0];
    mine += __shfl_xor_sync(kAllLanes, odd ? sum[0] : sum[1], 4);
    mine += __shfl_xor_sync(kAllLanes, mine, 8);
    mine += __shfl_xor_sync(kAllLanes, mine, 16);
    if (lane < kRows) {
      s.sums[stage][warp][row + lane / 4] = mine;
      barrier_arrive(s.summed + stage);
    }
  }

  // dx = old + r w dy - x r^2 mean(y dy), and the weight gradient.
  __device__ __forceinline__ void write(int group) {
    const int stage = group % kStages;
    uint4 x[kPacks][2];
    uint4 rows_dy[kPacks][2];
    uint4 old[kPacks][2];
    uint4 d[kHalves];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      get(stage, kX, p, x[p]);
      get(stage, kDy, p, rows_dy[p]);
      get(stage, kOld, p, old[p]);
    }
    get_summands(stage, d);
    const float2 two = *reinterpret_cast<const float2*>(s.rstd[stage] + row);
    barrier_arrive(s.empty + stage);  // every lane: see Release of hopper_ring.cuh
    const float rstd[2] = {two.x, two.y};
    wait_group(s.exchanged, group);
    float back[2] = {};
#pragma unroll
    for (int k = 0; k < kCluster; ++k) {
      const float2 total = *reinterpret_cast<const float2*>(s.totals[stage][k] + row);
      back[0] += total.x;
      back[1] += total.y;
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      back[e] = -(rstd[e] * (rstd[e] * (back[e] / static_cast<float>(kDim))));
    }
    const int first = run.row_of(group) + row;
    bf16* to = a.dx + (run.first + first) * a.dx_stride + col;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      uint32_t out[2][kCols / 2];
#pragma unroll
      for (int m = 0; m < kCols / 2; ++m) {
        float g[4];
        get_dy(rows_dy[p], d, p, m, g);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float v[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float in_x = c == 0 ? low_half(word(x[p][e], m)) : high_half(word(x[p][e], m));
            const float in_old =
                c == 0 ? low_half(word(old[p][e], m)) : high_half(word(old[p][e], m));
            const float in_w = c == 0 ? low_half(word(w[p], m)) : high_half(word(w[p], m));
            const float scaled = rstd[e] * g[2 * c + e];
            float& sum = dw[p][2 * m + c];
            sum = fmaf(scaled, in_x, sum);
            v[c] = fmaf(in_w, scaled, fmaf(in_x, back[e], in_old));
          }
          out[e][m] = two_bf16(v[0], v[1]);
        }
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (first + e >= run.end) continue;
        // In one access: nvcc makes four of a plain store here.
        __stcg(reinterpret_cast<uint4*>(to + e * a.dx_stride + p * kTileCols),
               make_uint4(out[e][0], out[e][1], out[e][2], out[e][3]));
      }
    }
  }
  __device__ __forceinline__ void compute() {
    for (int k = 0; k <= run.count; ++k) {
      if (k < run.count) add(k);
      if (k > 0) write(k - 1);
    }
  }

  // The sums of the run. Of a column those of the four lanes: pairs first.
  __device__ __forceinline__ void store() {
    float* out =
        a.partial + static_cast<int64_t>(blockIdx.x / kCluster) * (1 + 2 * a.heads) * kDim + col;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float four[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) four[c] = lanes_sum(dw[p][4 * k + c], 4);
        if (row == 2 * k) {
          *reinterpret_cast<float4*>(out + p * kTileCols + 4 * k) =
              make_float4(four[0], four[1], four[2], four[3]);
        }
      }
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int gate = 8 * h + row + k;
          if (gate >= 2 * a.heads) continue;
          float* to = out + (1 + gate) * kDim + p * kTileCols;
#pragma unroll
          for (int m = 0; m < kCols / 2; m += 2) {
            const auto& one = gate_dw[p][m][h];
            const auto& other = gate_dw[p][m + 1][h];
            *reinterpret_cast<float4*>(to + 2 * m) =
                make_float4(one[k], one[2 + k], other[k], other[2 + k]);
          }
        }
      }
    }
  }
};

}  // namespace
}  // namespace swax::cuda
