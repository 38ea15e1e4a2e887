// RMSNorm forward. Where rows are aligned and their width is a multiple of 8, one warp (width up to
// 1024) or one block (up to 8192) holds a row in registers: one read, one write. Other rows: one
// block, three passes.
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

__device__ __forceinline__ void norm_pack(const float (&x)[kVec], const float (&w)[kVec],
                                          float rstd, float (&y)[kVec]) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) y[i] = normed(x[i], rstd, w[i]);
}

__device__ __forceinline__ void add_squares(const float (&x)[kVec], float (&sums)[kVec]) {
#pragma unroll
  for (int i = 0; i < kVec; ++i) sums[i] = fmaf(x[i], x[i], sums[i]);
}
__device__ __forceinline__ float folded(const float (&s)[kVec]) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

constexpr int kRowWarps = 4;

// kFull: the row has kPacks vectors a lane.
template <typename X, typename W, int kPacks, bool kFull>
__global__ void __launch_bounds__(kRowWarps* kWarp, 8) rms_norm_rows(RmsNorm<X, W> a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / kWarp;
  if (t >= a.tokens) return;
  const X* x = a.x + t * a.x_stride;
  Pack<X> row[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t col = (p * kWarp + lane) * kVec;
    if (kFull || col < a.dim) {
      row[p] = load_pack(x + col);
    } else {
      zero(row[p]);
    }
  }
  constexpr bool kEarly = sizeof(W) == 2;  // registers for the weights too
  Pack<W> weight[kEarly ? kPacks : 1];
  if constexpr (kEarly) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t col = (p * kWarp + lane) * kVec;
      if (kFull || col < a.dim) weight[p] = read_pack(a.w + col);
    }
  }
  float sums[kVec] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    float v[kVec];
    unpack(row[p], v);
    add_squares(v, sums);
  }
  const float sum = lanes_sum(folded(sums));
  const float rstd = 1.0F / sqrtf(sum / static_cast<float>(a.dim) + a.eps);
  if (lane == 0) a.rstd[t] = rstd;
  X* y = a.y + t * a.y_stride;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t col = (p * kWarp + lane) * kVec;
    if (!kFull && col >= a.dim) continue;
    float v[kVec];
    float w[kVec];
    float out[kVec];
    unpack(row[p], v);
    if constexpr (kEarly) {
      unpack(weight[p], w);
    } else {
      unpack(read_pack(a.w + col), w);
    }
    norm_pack(v, w, rstd, out);
    store8<true>(y, col, a.dim, out);
  }
}

constexpr int kRowPacks = 2;  // vectors of a thread in a block that holds one row

// Short-lived blocks with few registers: those that start fill the bus for those that end.
template <typename X, typename W, int kRowThreads>
__global__ void __launch_bounds__(kRowThreads, 1024 / kRowThreads) rms_norm_block(RmsNorm<X, W> a) {
  __shared__ float shared[kRowThreads / kWarp];
  const int64_t t = blockIdx.x;
  const X* x = a.x + t * a.x_stride;
  Pack<X> row[kRowPacks];
  Pack<W> weight[kRowPacks];
#pragma unroll
  for (int p = 0; p < kRowPacks; ++p) {
    const int64_t col = (p * kRowThreads + static_cast<int64_t>(threadIdx.x)) * kVec;
    row[p] = load_packed(x, col, a.dim);
    if (col < a.dim) weight[p] = read_pack(a.w + col);
  }
  float sums[kVec] = {};
#pragma unroll
  for (int p = 0; p < kRowPacks; ++p) {
    float v[kVec];
    unpack(row[p], v);
    add_squares(v, sums);
  }
  const float mine = lanes_sum(folded(sums));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
  __syncthreads();
  float sum = shared[0];
#pragma unroll
  for (int w = 1; w < kRowThreads / kWarp; ++w) sum += shared[w];
  const float rstd = 1.0F / sqrtf(sum / static_cast<float>(a.dim) + a.eps);
  if (threadIdx.x == 0) a.rstd[t] = rstd;
#pragma unroll
  for (int p = 0; p < kRowPacks; ++p) {
    const int64_t col = (p * kRowThreads + static_cast<int64_t>(threadIdx.x)) * kVec;
    if (col >= a.dim) continue;
    float v[kVec];
    float w[kVec];
    float out[kVec];
    unpack(row[p], v);
    unpack(weight[p], w);
    norm_pack(v, w, rstd, out);
    store8<true>(a.y + t * a.y_stride, col, a.dim, out);
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
    from_f32(y + i, normed(to_f32(x[i]), rstd, to_f32(a.w[i])));
  }
}

constexpr int kApplyRows = 4;  // of one block: their reads are in flight together

template <bool kAligned, typename X, typename W>
__global__ void __launch_bounds__(kThreads, 4) rms_norm_apply_kernel(RmsNorm<X, W> a) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kApplyRows;
  float rstd[kApplyRows];
#pragma unroll
  for (int k = 0; k < kApplyRows; ++k) rstd[k] = first + k < a.tokens ? a.rstd[first + k] : 0.0F;
  for (int64_t col = static_cast<int64_t>(threadIdx.x) * kVec; col < a.dim;
       col += static_cast<int64_t>(blockDim.x) * kVec) {
    float x[kApplyRows][kVec];
    float w[kVec];
#pragma unroll
    for (int k = 0; k < kApplyRows; ++k) {
      if (first + k < a.tokens) {
        load8<kAligned>(a.x + (first + k) * a.x_stride, col, a.dim, x[k]);
      }
    }
    load8<kAligned>(a.w, col, a.dim, w);
#pragma unroll
    for (int k = 0; k < kApplyRows; ++k) {
      float y[kVec];
      norm_pack(x[k], w, rstd[k], y);
      if (first + k < a.tokens) store8<kAligned>(a.y + (first + k) * a.y_stride, col, a.dim, y);
    }
  }
}

bool fits_vectors(const Tensor& x, const Tensor& y, const Tensor& w) {
  return x.dims[1] % kVec == 0 && vector_rows(x) && vector_rows(y) && vector_rows(w);
}

template <typename X, typename W, int kPacks>
void launch_rows(cudaStream_t stream, const RmsNorm<X, W>& a) {
  const auto blocks = static_cast<unsigned>(div_ceil(a.tokens, kRowWarps));
  constexpr int kRowThreads = kRowWarps * kWarp;
  if (a.dim == kPacks * kWarp * kVec) {
    rms_norm_rows<X, W, kPacks, true><<<blocks, kRowThreads, 0, stream>>>(a);
  } else {
    rms_norm_rows<X, W, kPacks, false><<<blocks, kRowThreads, 0, stream>>>(a);
  }
}

template <typename X, typename W, int kRowThreads>
void launch_block(cudaStream_t stream, const RmsNorm<X, W>& a) {
  rms_norm_block<X, W, kRowThreads><<<static_cast<unsigned>(a.tokens), kRowThreads, 0, stream>>>(a);
}

template <typename X, typename W>
void launch_norm(cudaStream_t stream, const RmsNorm<X, W>& a, bool vectors) {
  const int64_t packs = vectors ? div_ceil(a.dim, kWarp * kVec) : 33;
  if (packs <= 1) {
    launch_rows<X, W, 1>(stream, a);
  } else if (packs <= 2) {
    launch_rows<X, W, 2>(stream, a);
  } else if (packs <= 4) {
    launch_rows<X, W, 4>(stream, a);
  } else if (packs <= 8) {
    launch_block<X, W, 128>(stream, a);
  } else if (packs <= 16) {
    launch_block<X, W, 256>(stream, a);
  } else if (packs <= 32) {
    launch_block<X, W, 512>(stream, a);
  } else {
    rms_norm_any<X, W><<<static_cast<unsigned>(a.tokens), kThreads, 0, stream>>>(a);
  }
}

template <typename X, typename W>
void launch_apply(cudaStream_t stream, const RmsNorm<X, W>& a, bool vectors) {
  const auto blocks = static_cast<unsigned>(div_ceil(a.tokens, kApplyRows));
  const unsigned threads = row_threads(a.dim);
  if (vectors) {
    rms_norm_apply_kernel<true><<<blocks, threads, 0, stream>>>(a);
  } else {
    rms_norm_apply_kernel<false><<<blocks, threads, 0, stream>>>(a);
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
