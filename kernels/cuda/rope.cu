// The rotary embedding: a thread turns eight pairs of one head of a token.
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

template <typename X>
struct Rope {
  X* x;
  const float* cos;
  const float* sin;
  int64_t x_stride, cos_stride, sin_stride;
  int64_t tokens, heads, pairs;
  int64_t packs;  // of eight pairs, of a head
  float sign;
};

// A vector of a row that has `n` elements.
template <bool kAligned, typename T>
__device__ __forceinline__ Pack<T> load_inside(const T* row, int64_t col, int64_t n) {
  if constexpr (kAligned) return load_pack(row + col);
  float y[kVec];
  load8<false>(row, col, n, y);
  Pack<T> x;
  pack(y, x);
  return x;
}

template <bool kAligned, typename X>
__device__ __forceinline__ void turn(const Rope<X>& r, int64_t t, int64_t head, int64_t col) {
  X* low = r.x + t * r.x_stride + head * 2 * r.pairs;
  const Pack<X> x = load_inside<kAligned>(low, col, r.pairs);
  const Pack<X> y = load_inside<kAligned>(low + r.pairs, col, r.pairs);
  float c[kVec];
  float s[kVec];
  unpack(load_inside<kAligned>(r.cos + t * r.cos_stride, col, r.pairs), c);
  unpack(load_inside<kAligned>(r.sin + t * r.sin_stride, col, r.pairs), s);
  float u[kVec];
  float v[kVec];
  unpack(x, u);
  unpack(y, v);
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const float by = r.sign * s[i];
    const float turned = fmaf(-v[i], by, u[i] * c[i]);
    v[i] = fmaf(u[i], by, v[i] * c[i]);
    u[i] = turned;
  }
  store8<kAligned>(low, col, r.pairs, u);
  store8<kAligned>(low + r.pairs, col, r.pairs, v);
}

// Indices of 32 bits: the divisions of wider ones take longer than the turn.
template <typename X>
__global__ void __launch_bounds__(kThreads, 4) rope_kernel(Rope<X> r) {
  const auto packs = static_cast<uint32_t>(r.packs);
  const auto heads = static_cast<uint32_t>(r.heads);
  const uint32_t e = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t row = e / packs;
  const uint32_t t = row / heads;
  if (t >= r.tokens) return;
  turn<true>(r, t, row - t * heads, (e - row * packs) * kVec);
}

template <typename X>
__global__ void __launch_bounds__(kThreads, 4) rope_any(Rope<X> r) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = e / r.packs;
  const int64_t t = row / r.heads;
  if (t >= r.tokens) return;
  turn<false>(r, t, row - t * r.heads, (e - row * r.packs) * kVec);
}

template <typename X>
void launch_rope(cudaStream_t stream, const RopeArgs& a) {
  Rope<X> r;
  r.x = data_of<X>(a.x_THE);
  r.cos = a.cos_TP.f32();
  r.sin = a.sin_TP.f32();
  r.x_stride = row_stride(a.x_THE);
  r.cos_stride = row_stride(a.cos_TP);
  r.sin_stride = row_stride(a.sin_TP);
  r.tokens = a.x_THE.dims[0];
  r.heads = a.x_THE.dims[1];
  r.pairs = a.x_THE.dims[2] / 2;
  r.packs = div_ceil(r.pairs, int64_t{kVec});
  r.sign = a.inverse ? -1.0F : 1.0F;
  const int64_t all = r.tokens * r.heads * r.packs;
  const auto blocks = static_cast<unsigned>(div_ceil(all, int64_t{kThreads}));
  const bool vectors = r.pairs % kVec == 0 && vector_rows(a.x_THE) && vector_rows(a.cos_TP) &&
                       vector_rows(a.sin_TP) && all <= int64_t{1} << 31;
  if (vectors) {
    rope_kernel<<<blocks, kThreads, 0, stream>>>(r);
  } else {
    rope_any<<<blocks, kThreads, 0, stream>>>(r);
  }
}

}  // namespace

Status CudaBackend::rope(Stream& s, const RopeArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("rope", {&a.x_THE, &a.cos_TP, &a.sin_TP}));
  a.x_THE.dtype == DType::kBF16 ? launch_rope<bf16>(raw(s), a) : launch_rope<float>(raw(s), a);
  return last_launch("rope");
}

}  // namespace swax::cuda
