// The product without cuBLASLt: 64 x 64 tiles, each thread 4 x 4 elements, each element one chain
// of fused multiply-adds over rising k. For shapes and addresses that cuBLASLt refuses, and the
// form that tests compare with.
#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

constexpr int kTile = 64;
constexpr int kDepth = 16;
constexpr int kPerThread = 4;

struct Sizes {
  int64_t m, n, k, a_stride, b_stride, c_stride;
  bool trans_a, trans_b, accumulate;
};

template <typename In, typename Out>
__global__ void __launch_bounds__(256)
    plain_gemm_kernel(const In* a, const In* b, const Out* from, Out* c, Sizes s) {
  __shared__ float ta[kDepth][kTile + 1];
  __shared__ float tb[kDepth][kTile + 1];
  const int tx = static_cast<int>(threadIdx.x) % 16;
  const int ty = static_cast<int>(threadIdx.x) / 16;
  const int64_t tiles_n = (s.n + kTile - 1) / kTile;
  const int64_t row0 = static_cast<int64_t>(blockIdx.x) / tiles_n * kTile;
  const int64_t col0 = static_cast<int64_t>(blockIdx.x) % tiles_n * kTile;
  float acc[kPerThread][kPerThread];
  for (int i = 0; i < kPerThread; ++i) {
    for (int j = 0; j < kPerThread; ++j) {
      const int64_t r = row0 + ty + 16 * i;
      const int64_t col = col0 + tx + 16 * j;
      acc[i][j] = s.accumulate && r < s.m && col < s.n ? to_f32(from[r * s.c_stride + col]) : 0.0F;
    }
  }
  for (int64_t k0 = 0; k0 < s.k; k0 += kDepth) {
    for (int e = static_cast<int>(threadIdx.x); e < kTile * kDepth; e += 256) {
      // Neighbouring threads read neighbouring addresses in either storage order.
      const int ra = s.trans_a ? e % kTile : e / kDepth;
      const int ka = s.trans_a ? e / kTile : e % kDepth;
      const bool in_a = row0 + ra < s.m && k0 + ka < s.k;
      const int64_t at_a =
          s.trans_a ? (k0 + ka) * s.a_stride + row0 + ra : (row0 + ra) * s.a_stride + k0 + ka;
      ta[ka][ra] = in_a ? to_f32(a[at_a]) : 0.0F;
      const int cb = s.trans_b ? e / kDepth : e % kTile;
      const int kb = s.trans_b ? e % kDepth : e / kTile;
      const bool in_b = col0 + cb < s.n && k0 + kb < s.k;
      const int64_t at_b =
          s.trans_b ? (col0 + cb) * s.b_stride + k0 + kb : (k0 + kb) * s.b_stride + col0 + cb;
      tb[kb][cb] = in_b ? to_f32(b[at_b]) : 0.0F;
    }
    __syncthreads();
    const int depth = static_cast<int>(s.k - k0 < kDepth ? s.k - k0 : kDepth);
    for (int k = 0; k < depth; ++k) {
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) {
          acc[i][j] = fmaf(ta[k][ty + 16 * i], tb[k][tx + 16 * j], acc[i][j]);
        }
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kPerThread; ++i) {
    for (int j = 0; j < kPerThread; ++j) {
      const int64_t r = row0 + ty + 16 * i;
      const int64_t col = col0 + tx + 16 * j;
      if (r < s.m && col < s.n) from_f32(c + r * s.c_stride + col, acc[i][j]);
    }
  }
}

template <typename In, typename Out>
Status launch(cudaStream_t stream, const GemmArgs& g, const Sizes& s) {
  const int64_t blocks = div_ceil(s.m, kTile) * div_ceil(s.n, kTile);
  plain_gemm_kernel<In, Out><<<static_cast<unsigned>(blocks), 256, 0, stream>>>(
      data_of<In>(g.a), data_of<In>(g.b), data_of<Out>(g.addend.empty() ? g.c : g.addend),
      data_of<Out>(g.c), s);
  return last_launch("gemm (plain)");
}

}  // namespace

Status plain_gemm(cudaStream_t stream, const GemmArgs& g) {
  const GemmShape shape = gemm_shape(g);
  const Sizes s{shape.m,        shape.n,       shape.k,       shape.a_stride,  shape.b_stride,
                shape.c_stride, shape.trans_a, shape.trans_b, shape.accumulate};
  const bool in16 = shape.in == DType::kBF16;
  const bool out16 = shape.out == DType::kBF16;
  if (in16 && out16) return launch<bf16, bf16>(stream, g, s);
  if (in16) return launch<bf16, float>(stream, g, s);
  if (out16) return launch<float, bf16>(stream, g, s);
  return launch<float, float>(stream, g, s);
}

}  // namespace swax::cuda
