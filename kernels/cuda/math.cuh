// Elementary functions on the device, f32. expf and the divisions are those of CUDA without fast
// math (<= 2 ulp and correctly rounded); subnormals are kept. The forms named _fast use the
// special-function unit and say what they are for. NaN gives NaN. Device only.
#pragma once

#include "kernels/cuda/hopper.cuh"

namespace swax::cuda {

constexpr float kLog2E = 1.44269504F;  // relative error 1.4e-8
constexpr double kLn2 = 0.69314718055994531;

// <= 3 ulp; for x below -88.7 the true value is below 2^-127 and this is 0 or close to it.
__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

// 1 / x, <= 1 ulp for 2^-126 <= |x| <= 2^126.
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Sigmoid s and 1 - s, neither by cancellation.
struct Sigmoid {
  float value;
  float rest;
};
// <= 8 ulp for x > -87; s is 0 below -87.5, and 1 - s then has no meaning. From e = e^{-x}:
// s = 1 / (1 + e), 1 - s = e / (1 + e). log2 e = high + low with 16 bits in high: x has 8, so
// x high is exact, and e^{-x low ln 2} differs from 1 - x low ln 2 by less than 2^-23 as long as e
// is not 0.
__device__ __forceinline__ Sigmoid sigmoid_of_bf16(float x) {
  constexpr float kHigh = 0x1.7154p+0F;
  constexpr float kLowLn2 = 4.88849494e-6F;
  const float e = exp2_fast(-(x * kHigh));
  const float exact = fmaf(e, -(x * kLowLn2), e);
  const float s = reciprocal_fast(1.0F + exact);
  return {s, fminf(exact, 0x1p126F) * s};  // not infinity times 0
}
// x is a value of memory of type X.
template <typename X>
__device__ __forceinline__ Sigmoid sigmoid_of(float x) {
  if constexpr (sizeof(X) == 2) {
    return sigmoid_of_bf16(x);
  } else {
    const float s = sigmoid(x);
    return {s, 1.0F - s};
  }
}

struct TanhSlope {
  float tanh;   // <= 3 ulp
  float slope;  // 1 - tanh^2, <= 5 ulp also where tanh is close to 1
};
// With e = e^{-2|x|}: tanh = (1 - e) / (1 + e), or a polynomial below 0.625 where 1 - e cancels;
// slope = 4 e / (1 + e)^2.
__device__ __forceinline__ TanhSlope tanh_slope(float x) {
  const float z = x * x;
  float p = -0.00571704507F;
  p = fmaf(p, z, 0.0206505871F);
  p = fmaf(p, z, -0.0537434979F);
  p = fmaf(p, z, 0.133314913F);
  p = fmaf(p, z, -0.333332839F);
  const float a = fabsf(x);
  const float small = fmaf(p * z, a, a);
  const float e = expf(-(a + a));
  const float inverse = 1.0F / (1.0F + e);
  const float magnitude = a < 0.625F ? small : (1.0F - e) * inverse;
  return {copysignf(magnitude, x), 4.0F * e * (inverse * inverse)};
}

}  // namespace swax::cuda
