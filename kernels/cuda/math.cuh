// Elementary functions on the device, f32. expf and the divisions are those of CUDA without fast
// math (<= 2 ulp and correctly rounded); subnormals are kept. NaN gives NaN. Device only.
#pragma once

namespace swax::cuda {

// <= 3 ulp; for x below -88.7 the true value is below 2^-127 and this is 0 or close to it.
__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + expf(-x)); }

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
