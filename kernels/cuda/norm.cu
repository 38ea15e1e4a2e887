// RMSNorm forward. One warp holds one row in registers where it fits (width a multiple of 8 up to
// 4096 and aligned rows): one read, one write. Other rows: one block, three passes.
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

template <typename X, typename W>
struct RmsNorm {
  const X* x;
  const W* w;
  X* y;
  float* rstd;
  int64_t x_stride;
  int64_t y_stride;
  int64_t tokens;
  int64_t dim;
  float eps;
};

// y from x and rstd: the same rounding in forward and in re-forming.
__device__ __forceinline__ void normed(const float (&x)[kVec], const float (&w)[kVec], float rstd,
                                       float (&y)[kVec]) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) y[i] = (x[i] * rstd) * w[i];
}

constexpr int kRowWarps = 4;

template <typename X, typename W, int kPacks>
__global__ void __launch_bounds__(kRowWarps* kWarp) rms_norm_rows(RmsNorm<X, W> a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (t >= a.tokens) return;
  const X* x = a.x + t * a.x_stride;
  Pack<X> row[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t col = (p * kWarp + lane) * kVec;
    if (col < a.dim) {
      row[p] = load_pack(x + col);
    } else {
      zero(row[p]);
    }
  }
  float sums[kVec] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    float v[kVec];
    unpack(row[p], v);
#pragma unroll
    for (int i = 0; i < kVec; ++i) sums[i] = fmaf(v[i], v[i], sums[i]);
  }
  const float sum = lanes_sum(((sums[0] + sums[4]) + (sums[2] + sums[6])) +
                              ((sums[1] + sums[5]) + (sums[3] + sums[7])));
  const float rstd = 1.0F / sqrtf(sum / static_cast<float>(a.dim) + a.eps);
  if (lane == 0) a.rstd[t] = rstd;
  X* y = a.y + t * a.y_stride;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t col = (p * kWarp + lane) * kVec;
    if (col >= a.dim) continue;
    float v[kVec];
    float w[kVec];
    float out[kVec];
    unpack(row[p], v);
    unpack(load_pack(a.w + col), w);
    normed(v, w, rstd, out);
    store8<true>(y, col, a.dim, out);
  }
}

template <typename X, typename W>
__global__ void __launch_bounds__(kThreads) rms_norm_any(RmsNorm<X, W> a) {
  __shared__ float shared[kWarp];
  const int64_t t = blockIdx.x;
  const X* x = a.x + t * a.x_stride;
  float sum = 0.0F;
  for (int64_t i = threadIdx.x; i < a.dim; i += kThreads) {
    const float v = to_f32(x[i]);
    sum = fmaf(v, v, sum);
  }
  sum = block_sum(sum, shared);
  const float rstd = 1.0F / sqrtf(sum / static_cast<float>(a.dim) + a.eps);
  if (threadIdx.x == 0) a.rstd[t] = rstd;
  X* y = a.y + t * a.y_stride;
  for (int64_t i = threadIdx.x; i < a.dim; i += kThreads) {
    from_f32(y + i, (to_f32(x[i]) * rstd) * to_f32(a.w[i]));
  }
}

template <bool kAligned, typename X, typename W>
__global__ void __launch_bounds__(kThreads) rms_norm_apply_kernel(RmsNorm<X, W> a) {
  const int64_t packs = (a.dim + kVec - 1) / kVec;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; e < a.tokens * packs;
       e += step) {
    const int64_t t = e / packs;
    const int64_t col = e % packs * kVec;
    float x[kVec];
    float w[kVec];
    float y[kVec];
    load8<kAligned>(a.x + t * a.x_stride, col, a.dim, x);
    load8<kAligned>(a.w, col, a.dim, w);
    normed(x, w, a.rstd[t], y);
    store8<kAligned>(a.y + t * a.y_stride, col, a.dim, y);
  }
}

bool fits_vectors(const Tensor& x, const Tensor& y, const Tensor& w) {
  return x.dims[1] % kVec == 0 && vector_rows(x) && vector_rows(y) && vector_rows(w);
}

template <typename X, typename W>
void launch_norm(cudaStream_t stream, const RmsNorm<X, W>& a, bool vectors) {
  const auto blocks = static_cast<unsigned>(div_ceil(a.tokens, kRowWarps));
  const int64_t packs = vectors ? div_ceil(a.dim, kWarp * kVec) : 17;
  constexpr int kRowThreads = kRowWarps * kWarp;
  if (packs <= 1) {
    rms_norm_rows<X, W, 1><<<blocks, kRowThreads, 0, stream>>>(a);
  } else if (packs <= 2) {
    rms_norm_rows<X, W, 2><<<blocks, kRowThreads, 0, stream>>>(a);
  } else if (packs <= 4) {
    rms_norm_rows<X, W, 4><<<blocks, kRowThreads, 0, stream>>>(a);
  } else if (packs <= 8) {
    rms_norm_rows<X, W, 8><<<blocks, kRowThreads, 0, stream>>>(a);
  } else if (packs <= 16) {
    rms_norm_rows<X, W, 16><<<blocks, kRowThreads, 0, stream>>>(a);
  } else {
    rms_norm_any<X, W><<<static_cast<unsigned>(a.tokens), kThreads, 0, stream>>>(a);
  }
}

template <typename X, typename W>
void launch_apply(cudaStream_t stream, const RmsNorm<X, W>& a, bool vectors) {
  const unsigned blocks = blocks_for(a.tokens * div_ceil(a.dim, kVec));
  if (vectors) {
    rms_norm_apply_kernel<true><<<blocks, kThreads, 0, stream>>>(a);
  } else {
    rms_norm_apply_kernel<false><<<blocks, kThreads, 0, stream>>>(a);
  }
}

// Calls launch(RmsNorm<X, W>) with the types of x and w.
template <typename Launch>
void with_types(const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& rstd, float eps,
                Launch launch) {
  const auto fill = [&]<typename X, typename W>(X*, W*) {
    launch(RmsNorm<X, W>{data_of<X>(x), data_of<W>(w), data_of<X>(y), rstd.f32(), row_stride(x),
                         row_stride(y), x.dims[0], x.dims[1], eps});
  };
  bf16* narrow = nullptr;
  float* wide = nullptr;
  if (x.dtype == DType::kBF16) {
    w.dtype == DType::kBF16 ? fill(narrow, narrow) : fill(narrow, wide);
  } else {
    w.dtype == DType::kBF16 ? fill(wide, narrow) : fill(wide, wide);
  }
}

}  // namespace

Status CudaBackend::rms_norm(Stream& s, const RmsNormArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("rms_norm", {&a.x_TD, &a.w_D, &a.y_TD, &a.rstd_T}));
  const bool vectors = fits_vectors(a.x_TD, a.y_TD, a.w_D);
  with_types(a.x_TD, a.w_D, a.y_TD, a.rstd_T, a.eps,
             [&](const auto& args) { launch_norm(raw(s), args, vectors); });
  return last_launch("rms_norm");
}

Status CudaBackend::rms_norm_apply(Stream& s, const RmsNormApplyArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("rms_norm_apply", {&a.x_TD, &a.w_D, &a.rstd_T, &a.y_TD}));
  const bool vectors = fits_vectors(a.x_TD, a.y_TD, a.w_D);
  with_types(a.x_TD, a.w_D, a.y_TD, a.rstd_T, 0.0F,
             [&](const auto& args) { launch_apply(raw(s), args, vectors); });
  return last_launch("rms_norm_apply");
}

}  // namespace swax::cuda
