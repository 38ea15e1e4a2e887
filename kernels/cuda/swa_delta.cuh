// delta = do . o, which both forms of the backward pass need, in one order of sums. Internal to
// kernels/cuda.
#pragma once

#include "kernels/cuda/swa_backward.cuh"

namespace swax::cuda {

// Of one row: the quad of a row shares it, every lane gets the sum.
__device__ __forceinline__ float row_delta(const SwaBackwardParams& p, int t, int head) {
  const int64_t column = static_cast<int64_t>(head) * kSwaSize + threadIdx.x % 4 * 8;
  const __nv_bfloat16* o = p.o + t * p.o_stride + column;
  const __nv_bfloat16* d_o = p.d_o_rows + t * p.do_stride + column;
  constexpr int kParts = kSwaSize / 32;
  uint4 a[kParts];
  uint4 b[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    a[i] = *reinterpret_cast<const uint4*>(o + 32 * i);
    b[i] = *reinterpret_cast<const uint4*>(d_o + 32 * i);
  }
  float sum = 0.0F;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const uint32_t x[4] = {a[part].x, a[part].y, a[part].z, a[part].w};
    const uint32_t y[4] = {b[part].x, b[part].y, b[part].z, b[part].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum = fmaf(__uint_as_float(x[i] << 16), __uint_as_float(y[i] << 16), sum);
      sum = fmaf(__uint_as_float(x[i] & 0xffff0000U), __uint_as_float(y[i] & 0xffff0000U), sum);
    }
  }
  sum += __shfl_xor_sync(0xffffffffU, sum, 1);
  return sum + __shfl_xor_sync(0xffffffffU, sum, 2);
}

}  // namespace swax::cuda
