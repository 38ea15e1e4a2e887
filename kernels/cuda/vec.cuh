// What the row and element-wise kernels share: eight neighbouring elements at a time as f32, from
// f32 or bf16 memory, in 16-byte accesses where rows allow it; sums over a warp and over a block in
// a fixed order. Device only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/tensor.h"

namespace swax::cuda {

using bf16 = __nv_bfloat16;
constexpr int kWarp = 32;
constexpr int kVec = 8;  // elements of one access: 16 bytes of bf16, 32 of f32
constexpr unsigned kAllLanes = 0xffffffffU;

template <typename T>
T* data_of(const Tensor& t) {
  return static_cast<T*>(t.data);
}
template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kF32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::kBF16;
}

// Rows of this tensor can be read in accesses of 16 bytes: address and stride are multiples of it.
inline bool vector_rows(const Tensor& t) {
  const int64_t stride = t.rank > 1 && t.dims[0] > 1 ? t.row_stride * dtype_bytes(t.dtype) : 0;
  return reinterpret_cast<uint64_t>(t.data) % 16 == 0 && stride % 16 == 0;
}
inline int64_t row_stride(const Tensor& t) {
  return t.rank > 1 && t.dims[0] > 1 ? t.row_stride : t.row_elements();
}

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void from_f32(float* p, float x) { *p = x; }
__device__ __forceinline__ void from_f32(bf16* p, float x) { *p = __float2bfloat16_rn(x); }

// Eight elements as they lie in memory.
template <typename T>
struct Pack;
template <>
struct Pack<bf16> {
  uint4 v;
};
template <>
struct Pack<float> {
  float4 low, high;
};

__device__ __forceinline__ Pack<bf16> load_pack(const bf16* p) {
  return {*reinterpret_cast<const uint4*>(p)};
}
__device__ __forceinline__ Pack<float> load_pack(const float* p) {
  return {*reinterpret_cast<const float4*>(p), *reinterpret_cast<const float4*>(p + 4)};
}
// For memory that the kernel does not write: such a read may go ahead of the writes before it.
__device__ __forceinline__ Pack<bf16> read_pack(const bf16* p) {
  return {__ldg(reinterpret_cast<const uint4*>(p))};
}
__device__ __forceinline__ Pack<float> read_pack(const float* p) {
  return {__ldg(reinterpret_cast<const float4*>(p)), __ldg(reinterpret_cast<const float4*>(p + 4))};
}
__device__ __forceinline__ void store_pack(bf16* p, const Pack<bf16>& x) {
  *reinterpret_cast<uint4*>(p) = x.v;
}
__device__ __forceinline__ void store_pack(float* p, const Pack<float>& x) {
  *reinterpret_cast<float4*>(p) = x.low;
  *reinterpret_cast<float4*>(p + 4) = x.high;
}
__device__ __forceinline__ float low_half(uint32_t x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high_half(uint32_t x) { return __uint_as_float(x & 0xffff0000U); }
__device__ __forceinline__ void unpack(const Pack<bf16>& x, float (&y)[kVec]) {
  y[0] = low_half(x.v.x);
  y[1] = high_half(x.v.x);
  y[2] = low_half(x.v.y);
  y[3] = high_half(x.v.y);
  y[4] = low_half(x.v.z);
  y[5] = high_half(x.v.z);
  y[6] = low_half(x.v.w);
  y[7] = high_half(x.v.w);
}
__device__ __forceinline__ void unpack(const Pack<float>& x, float (&y)[kVec]) {
  y[0] = x.low.x;
  y[1] = x.low.y;
  y[2] = x.low.z;
  y[3] = x.low.w;
  y[4] = x.high.x;
  y[5] = x.high.y;
  y[6] = x.high.z;
  y[7] = x.high.w;
}
__device__ __forceinline__ uint32_t two_bf16(float low, float high) {
  const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&x);
}
__device__ __forceinline__ void pack(const float (&y)[kVec], Pack<bf16>& x) {
  x.v = make_uint4(two_bf16(y[0], y[1]), two_bf16(y[2], y[3]), two_bf16(y[4], y[5]),
                   two_bf16(y[6], y[7]));
}
__device__ __forceinline__ void pack(const float (&y)[kVec], Pack<float>& x) {
  x.low = make_float4(y[0], y[1], y[2], y[3]);
  x.high = make_float4(y[4], y[5], y[6], y[7]);
}

template <typename T>
__device__ __forceinline__ void zero(Pack<T>& x) {
  const float none[kVec] = {0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F};
  pack(none, x);
}

// Elements [col, col + 8) of a row of n; those beyond the end are 0. kAligned: 16-byte accesses, n
// a multiple of 8.
template <bool kAligned, typename T>
__device__ __forceinline__ void load8(const T* row, int64_t col, int64_t n, float (&y)[kVec]) {
  if constexpr (kAligned) {
    Pack<T> x;
    zero(x);
    if (col < n) x = load_pack(row + col);
    unpack(x, y);
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) y[i] = col + i < n ? to_f32(row[col + i]) : 0.0F;
  }
}
template <bool kAligned, typename T>
__device__ __forceinline__ void store8(T* row, int64_t col, int64_t n, const float (&y)[kVec]) {
  if constexpr (kAligned) {
    if (col < n) {
      Pack<T> x;
      pack(y, x);
      store_pack(row + col, x);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      if (col + i < n) from_f32(row + col + i, y[i]);
    }
  }
}
// The same without conversion, to keep rows in few registers; aligned rows only.
template <typename T>
__device__ __forceinline__ Pack<T> load_packed(const T* row, int64_t col, int64_t n) {
  Pack<T> x;
  zero(x);
  if (col < n) x = load_pack(row + col);
  return x;
}

// Sum over `lanes` neighbouring lanes (a power of two); every lane gets it.
__device__ __forceinline__ float lanes_sum(float x, int lanes = kWarp) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
__device__ __forceinline__ float lanes_max(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const float y = __shfl_xor_sync(kAllLanes, x, step);
    x = x != x || y != y ? x + y : fmaxf(x, y);  // NaN goes through
  }
  return x;
}

// Sum and maximum over a block; every thread gets it. `shared` holds 32 floats and may be reused
// after the next barrier of the caller.
__device__ __forceinline__ float block_sum(float x, float* shared) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  x = lanes_sum(x);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = shared[0];
  for (int w = 1; w < warps; ++w) sum += shared[w];
  return sum;
}
__device__ __forceinline__ float block_max(float x, float* shared) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  x = lanes_max(x);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  float top = shared[0];
  for (int w = 1; w < warps; ++w) {
    const float y = shared[w];
    top = top != top || y != y ? top + y : fmaxf(top, y);
  }
  return top;
}

// y of RMSNorm: the same rounding in forward, in re-forming and where backward forms it again.
__device__ __forceinline__ float normed(float x, float rstd, float w) { return (x * rstd) * w; }

}  // namespace swax::cuda
