// Cross-entropy of long bf16 rows: one block a row at a time, the next two rows on their way into
// shared memory. A row is read and written once. What the gradient needs of it is kept in registers
// in f32, so that the row's buffer is free for another row as soon as the sum is known.
//
// With a cap no maximum is needed: |z| <= cap <= kCapMax, so e^z and its sum over a row neither
// overflow nor vanish. y = z log2 e is a polynomial in u where |u| <= limit = 0.9 cap, with a
// relative error below 2.5 * 2^-24 (fit 0.25, roundings), so e^z has that of the exponent, |z|
// times it, plus 2^-22 of exp2_fast. Vectors with a larger logit, or NaN, go through tanh_slope.
// Without a cap the exponent is fma(u, log2 e, -shift): relative error of the sum at most
// 2^-24 ln V + 2^-22, because the mean of -log p is at most ln V. Device code.
#pragma once

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/spec/step_scalars.h"

namespace swax::cuda {

// The loss of a row is log(total) + offset; 1 and 0 where there is none.
struct RowLoss {
  double total;
  double offset;
};

template <typename X>
struct Loss {
  X* logits;
  int64_t stride;
  const int32_t* targets;
  RowLoss* losses;
  const StepScalars* scalars;
  int64_t tokens;
  int64_t vocab;
  float cap;  // 0: none
  bool write_gradient;
};

struct Capped {
  float z;
  float slope;  // dz / du = 1 - (z / cap)^2, from u: no cancellation where z is close to the cap
};
__device__ __forceinline__ Capped capped(float u, float cap) {
  if (!(cap > 0.0F)) return {u, 1.0F};
  const TanhSlope t = tanh_slope(u / cap);
  return {cap * t.tanh, t.slope};
}

__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fc00000); }
__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

__device__ __forceinline__ __nv_bfloat162 pair(uint32_t two) {
  return *reinterpret_cast<const __nv_bfloat162*>(&two);
}

constexpr float kCapMin = 0.125F;
constexpr float kCapMax = 40.0F;
constexpr int kCapTerms = 7;
// z log2 e = u (c[0] + c[1] u^2 + ...); slope = 1 - curve (z log2 e)^2.
struct CapPolynomial {
  float limit = 0.0F;
  float curve = 0.0F;
  float c[kCapTerms] = {};
};
inline CapPolynomial cap_polynomial(float cap) {
  // tanh(x) / x in powers of x^2, interpolated at the Chebyshev nodes of x^2 in [0, 0.81].
  constexpr double kTanh[kCapTerms] = {
      0.9999999854687495,   -0.33333156934212504,  0.13329789047557467, -0.05369664552630547,
      0.020852023565206546, -0.006807868670418104, 0.001283919386423608};
  const double wide = static_cast<double>(cap);
  CapPolynomial p;
  p.limit = static_cast<float>(0.9 * wide);
  p.curve = static_cast<float>(kLn2 * kLn2 / (wide * wide));
  double scale = 1.0 / kLn2;
  for (int k = 0; k < kCapTerms; ++k, scale /= wide * wide) {
    p.c[k] = static_cast<float>(kTanh[k] * scale);
  }
  return p;
}

constexpr int kRowWarps = 16;  // with them 128 registers a thread
constexpr int kRowThreads = kRowWarps * kWarp;
constexpr int kKeptPacks = 13;  // of a thread: 104 registers
constexpr int64_t kRowLongest = int64_t{kRowThreads} * kKeptPacks * kVec;  // 53,248

// e^(z - shift) and the slope of one logit.
struct Term {
  float e;
  float slope;
};

template <bool kCapped>
struct RowMath {
  CapPolynomial poly;
  float cap;
  float shift;  // in units of log2

  __device__ __forceinline__ Term near(float u) const {
    if constexpr (kCapped) {
      const float square = u * u;
      float p = poly.c[kCapTerms - 1];
#pragma unroll
      for (int k = kCapTerms - 2; k >= 0; --k) p = fmaf(p, square, poly.c[k]);
      const float y = u * p;
      return {exp2_fast(y), fmaf(y * y, -poly.curve, 1.0F)};
    } else {
      return {exp2_fast(fmaf(u, kLog2E, -shift)), 1.0F};
    }
  }
  __device__ __forceinline__ Term far(float u) const {
    const Capped c = capped(u, cap);
    return {exp2_fast(c.z * kLog2E), c.slope};
  }
  // One of the eight logits is outside the polynomial's range or NaN.
  __device__ __forceinline__ bool is_far(const Pack<bf16>& x) const {
    if constexpr (!kCapped) return false;
    const __nv_bfloat162 limit = __bfloat162bfloat162(__float2bfloat16_rz(poly.limit));
    const __nv_bfloat162 top =
        __hmax2_nan(__hmax2_nan(__hmax2_nan(pair(x.v.x), pair(x.v.y)), pair(x.v.z)), pair(x.v.w));
    const __nv_bfloat162 low =
        __hmin2_nan(__hmin2_nan(__hmin2_nan(pair(x.v.x), pair(x.v.y)), pair(x.v.z)), pair(x.v.w));
    return !(__hble2(top, limit) && __hbge2(low, __hneg2(limit)));
  }
};

// State of one thread in one row. kWhole: each thread has kKeptPacks - 1 vectors or more.
template <bool kCapped, bool kWhole>
struct RowPass {
  RowMath<kCapped> math;
  const bf16* row;  // in shared memory
  bf16* out;
  int vocab;
  uint32_t far = 0;    // bit p: vector p goes through RowMath::far
  float sum = 0.0F;    // of e
  float scale = 0.0F;  // inv_targets / total

  __device__ __forceinline__ static int col(int p) {
    return (p * kRowThreads + static_cast<int>(threadIdx.x)) * kVec;
  }
  __device__ __forceinline__ bool has(int p) const {
    return (kWhole && p < kKeptPacks - 1) || col(p) < vocab;
  }
  template <bool kFar>
  __device__ __forceinline__ void form(const Pack<bf16>& x, float (&e)[kVec],
                                       float (&gradient)[kVec]) const {
    float u[kVec];
    unpack(x, u);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const Term t = kFar ? math.far(u[i]) : math.near(u[i]);
      e[i] = t.e;
      gradient[i] = kCapped ? t.e * t.slope : t.e;
    }
  }
  template <bool kFar>
  __device__ __forceinline__ void add(const Pack<bf16>& x, float (&gradient)[kVec]) {
    float e[kVec];
    form<kFar>(x, e, gradient);
    sum += ((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7]));
  }
  __device__ __forceinline__ void write(int p, const float (&gradient)[kVec]) const {
    float du[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) du[i] = gradient[i] * scale;
    Pack<bf16> x;
    pack(du, x);
    store_pack(out + col(p), x);
  }
  // As the pass over the row has it.
  __device__ __forceinline__ float e_of(int at) const {
    const float u = to_f32(row[at]);
    return math.is_far(load_pack(row + at / kVec * kVec)) ? math.far(u).e : math.near(u).e;
  }

  // Sum of e over this thread's vectors; what the gradient needs of those that are not far.
  __device__ __forceinline__ void forward(float (&kept)[kKeptPacks][kVec]) {
#pragma unroll
    for (int p = 0; p < kKeptPacks; ++p) {
      if (!has(p)) continue;
      const Pack<bf16> x = load_pack(row + col(p));
      if (math.is_far(x)) {
        far |= 1U << p;
      } else {
        add<false>(x, kept[p]);
      }
    }
    float gradient[kVec];
    for (uint32_t left = far; left != 0; left &= left - 1) {
      add<true>(load_pack(row + col(__ffs(static_cast<int>(left)) - 1)), gradient);
    }
  }
  // The row's buffer may hold another row by now: a far vector is read where it is written.
  __device__ __forceinline__ void backward(const float (&kept)[kKeptPacks][kVec]) const {
#pragma unroll
    for (int p = 0; p < kKeptPacks; ++p) {
      if (has(p) && (far >> p & 1U) == 0) write(p, kept[p]);
    }
    float e[kVec];
    float gradient[kVec];
    for (uint32_t left = far; left != 0; left &= left - 1) {
      const int p = __ffs(static_cast<int>(left)) - 1;
      form<true>(load_pack(out + col(p)), e, gradient);
      write(p, gradient);
    }
  }
  // Largest logit of this thread's vectors; NaN goes through.
  __device__ __forceinline__ float largest() const {
    __nv_bfloat162 top = __float2bfloat162_rn(minus_infinity());
#pragma unroll
    for (int p = 0; p < kKeptPacks; ++p) {
      if (!has(p)) continue;
      const Pack<bf16> x = load_pack(row + col(p));
      top = __hmax2_nan(top, __hmax2_nan(__hmax2_nan(pair(x.v.x), pair(x.v.y)),
                                         __hmax2_nan(pair(x.v.z), pair(x.v.w))));
    }
    const float low = __low2float(top);
    const float high = __high2float(top);
    return low != low || high != high ? low + high : fmaxf(low, high);
  }
};

// Sum or maximum over the block by way of `parts`; every thread gets it. The next call with the
// same parts must be two barriers later.
template <typename Combine>
__device__ __forceinline__ float over_row_warps(float mine, float* parts, Combine combine) {
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = mine;
  __syncthreads();
  float all = parts[0];
#pragma unroll
  for (int w = 1; w < kRowWarps; ++w) all = combine(all, parts[w]);
  return all;
}

// The rows of a block in two buffers; row n = 0, 1, ... of the block lies in buffer n % 2.
struct RowBuffers {
  char* rows;
  int row_bytes;
  uint64_t* full;

  // By one thread, when nobody reads the buffer's last row any more.
  __device__ __forceinline__ void load(const Loss<bf16>& a, int64_t t, int n) const {
    if (t >= a.tokens) return;
    const uint32_t bytes = static_cast<uint32_t>(a.vocab) * 2U;
    barrier_expect(&full[n % 2], bytes);
    bulk_load(rows + n % 2 * row_bytes, a.logits + t * a.stride, bytes, &full[n % 2]);
  }
};

// The gradient where there is no loss, or no such target: `value` everywhere.
__device__ __forceinline__ void flat_row(bf16* out, int vocab, float value) {
  const float all[kVec] = {value, value, value, value, value, value, value, value};
  for (int c = static_cast<int>(threadIdx.x) * kVec; c < vocab; c += kRowThreads * kVec) {
    store8<true>(out, c, vocab, all);
  }
}

template <bool kCapped, bool kWhole>
__global__ void __launch_bounds__(kRowThreads, 1)
    loss_rows_kernel(Loss<bf16> a, CapPolynomial poly, int row_bytes) {
  extern __shared__ __align__(128) char rows[];
  __shared__ uint64_t full[2];
  __shared__ float parts[2][2][kRowWarps];
  const RowBuffers buffers{rows, row_bytes, full};
  if (threadIdx.x == 0) {
    barrier_init(&full[0], 1);
    barrier_init(&full[1], 1);
    barrier_init_fence();
    buffers.load(a, blockIdx.x, 0);
    buffers.load(a, blockIdx.x + int64_t{gridDim.x}, 1);
  }
  __syncthreads();
  const float inv_targets = a.write_gradient ? a.scalars->inv_targets : 0.0F;
  int n = 0;
  int next_target = blockIdx.x < a.tokens ? a.targets[blockIdx.x] : -1;
  for (int64_t t = blockIdx.x; t < a.tokens; t += gridDim.x, ++n) {
    const int at = n % 2;
    const int target = next_target;
    if (t + gridDim.x < a.tokens) next_target = a.targets[t + gridDim.x];
    RowPass<kCapped, kWhole> r;
    r.math = {poly, a.cap, 0.0F};
    r.row = reinterpret_cast<const bf16*>(rows + at * row_bytes);
    r.out = a.logits + t * a.stride;
    r.vocab = static_cast<int>(a.vocab);
    barrier_wait(&full[at], static_cast<uint32_t>(n / 2) & 1U);
    if (target < 0 || target >= r.vocab) {
      __syncthreads();  // everybody has seen the row: the barrier may go on
      if (threadIdx.x == 0) buffers.load(a, t + 2 * int64_t{gridDim.x}, n);
      const float value = target < 0 ? 0.0F : not_a_number();
      if (threadIdx.x == 0) a.losses[t] = {1.0, static_cast<double>(value)};
      if (a.write_gradient) flat_row(r.out, r.vocab, value);
      continue;
    }
    if constexpr (!kCapped) {
      const float top = over_row_warps(lanes_max(r.largest()), parts[at][0], [](float x, float y) {
        return x != x || y != y ? x + y : fmaxf(x, y);
      });
      r.math.shift = top * kLog2E;
    }
    float kept[kKeptPacks][kVec];
    r.forward(kept);
    const bool mine = target / kVec % kRowThreads == static_cast<int>(threadIdx.x);
    const float u = mine ? to_f32(r.row[target]) : 0.0F;
    const float e_target = mine ? r.e_of(target) : 0.0F;
    const float total =
        over_row_warps(lanes_sum(r.sum), parts[at][1], [](float x, float y) { return x + y; });
    if (threadIdx.x == 0) buffers.load(a, t + 2 * int64_t{gridDim.x}, n);
    r.scale = inv_targets / total;
    if (a.write_gradient) r.backward(kept);
    if (mine) {
      const Capped c = capped(u, kCapped ? a.cap : 0.0F);
      const double z = kCapped ? static_cast<double>(c.z)
                               : kLn2 * (static_cast<double>(kLog2E) * static_cast<double>(u) -
                                         static_cast<double>(r.math.shift));
      a.losses[t] = {static_cast<double>(total), -z};
      const float du = (e_target / total - 1.0F) * (inv_targets * c.slope);
      // After its vector, which this thread wrote.
      if (a.write_gradient) from_f32(r.out + target, du);
    }
  }
}

}  // namespace swax::cuda
