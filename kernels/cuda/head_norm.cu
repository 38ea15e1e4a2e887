// Per-head LayerNorm with output gate: one warp a (token, head).
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

template <typename X, typename W>
struct HeadNorm {
  const X* h;
  const X* o;
  const W* w;
  X* y;
  float* mean;
  float* rstd;
  int64_t h_stride, o_stride, y_stride;
  int64_t tokens, heads, size;
  float eps;
};

constexpr int kHeadWarps = 8;

// One row of a warp, with its address in each tensor.
template <typename X, typename W>
struct HeadRow {
  const X* h;
  const X* o;
  const W* w;
  X* y;
  int64_t row;  // of mean and rstd
  int64_t size;

  __device__ __forceinline__ HeadRow(const HeadNorm<X, W>& a, int64_t at) : row(at), size(a.size) {
    const int64_t t = row / a.heads;
    const int64_t n = row - t * a.heads;
    h = a.h + t * a.h_stride + n * size;
    o = a.o + t * a.o_stride + n * size;
    w = a.w + n * size;
    y = a.y + t * a.y_stride + n * size;
  }
};

// Any size: the row is read again for each pass.
template <typename X, typename W>
__device__ __forceinline__ void head_row_any(const HeadNorm<X, W>& a, const HeadRow<X, W>& r) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float size = static_cast<float>(r.size);
  float sum = 0.0F;
  for (int64_t i = lane; i < r.size; i += kWarp) sum += to_f32(r.h[i]);
  const float mean = lanes_sum(sum) / size;
  float square = 0.0F;
  for (int64_t i = lane; i < r.size; i += kWarp) {
    const float d = to_f32(r.h[i]) - mean;
    square = fmaf(d, d, square);
  }
  const float rstd = 1.0F / sqrtf(lanes_sum(square) / size + a.eps);
  if (lane == 0) {
    a.mean[r.row] = mean;
    a.rstd[r.row] = rstd;
  }
  for (int64_t i = lane; i < r.size; i += kWarp) {
    const float hat = (to_f32(r.h[i]) - mean) * rstd;
    from_f32(r.y + i, sigmoid_of<X>(to_f32(r.o[i])).value * (hat * to_f32(r.w[i])));
  }
}

__device__ __forceinline__ float sum_of(const float (&x)[kVec]) {
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// The row in registers, kPacks vectors a lane.
template <int kPacks, typename X, typename W>
__device__ __forceinline__ void head_row(const HeadNorm<X, W>& a, const HeadRow<X, W>& r) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto col = [&](int p) { return static_cast<int64_t>(p * kWarp + lane) * kVec; };
  const float size = static_cast<float>(r.size);
  float v[kPacks][kVec];
  Pack<X> gate[kPacks];
  float sums[kVec] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    load8<true>(r.h, col(p), r.size, v[p]);
    gate[p] = load_packed(r.o, col(p), r.size);
#pragma unroll
    for (int i = 0; i < kVec; ++i) sums[i] += v[p][i];
  }
  const float mean = lanes_sum(sum_of(sums)) / size;
  float squares[kVec] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const bool in = col(p) < r.size;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const float d = in ? v[p][i] - mean : 0.0F;
      squares[i] = fmaf(d, d, squares[i]);
    }
  }
  const float rstd = 1.0F / sqrtf(lanes_sum(sum_of(squares)) / size + a.eps);
  if (lane == 0) {
    a.mean[r.row] = mean;
    a.rstd[r.row] = rstd;
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (col(p) >= r.size) continue;
    float vo[kVec];
    float vw[kVec];
    float out[kVec];
    unpack(gate[p], vo);
    unpack(read_pack(r.w + col(p)), vw);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      out[i] = sigmoid_of<X>(vo[i]).value * (((v[p][i] - mean) * rstd) * vw[i]);
    }
    store8<true>(r.y, col(p), r.size, out);
  }
}

// kPacks 0: any size.
template <typename X, typename W, int kPacks>
__global__ void __launch_bounds__(kHeadWarps* kWarp, kPacks == 4 ? 2 : 4)
    head_norm_rows(HeadNorm<X, W> a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / kWarp;
  if (row >= a.tokens * a.heads) return;
  const HeadRow<X, W> r(a, row);
  if constexpr (kPacks == 0) {
    head_row_any(a, r);
  } else {
    head_row<kPacks>(a, r);
  }
}

template <typename X, typename W>
void launch_forward(cudaStream_t stream, const HeadNormArgs& x) {
  const HeadNorm<X, W> a{data_of<X>(x.h_TNU),
                         data_of<X>(x.o_TNU),
                         data_of<W>(x.w_NU),
                         data_of<X>(x.y_TNU),
                         x.mean_TN.f32(),
                         x.rstd_TN.f32(),
                         row_stride(x.h_TNU),
                         row_stride(x.o_TNU),
                         row_stride(x.y_TNU),
                         x.h_TNU.dims[0],
                         x.h_TNU.dims[1],
                         x.h_TNU.dims[2],
                         x.eps};
  const auto blocks = static_cast<unsigned>(div_ceil(a.tokens * a.heads, kHeadWarps));
  constexpr int kBlock = kHeadWarps * kWarp;
  const bool vectors = a.size % kVec == 0 && vector_rows(x.h_TNU) && vector_rows(x.o_TNU) &&
                       vector_rows(x.y_TNU) && vector_rows(x.w_NU);
  const int64_t packs = vectors ? div_ceil(a.size, kWarp * kVec) : 5;
  if (packs <= 1) {
    head_norm_rows<X, W, 1><<<blocks, kBlock, 0, stream>>>(a);
  } else if (packs <= 2) {
    head_norm_rows<X, W, 2><<<blocks, kBlock, 0, stream>>>(a);
  } else if (packs <= 4) {
    head_norm_rows<X, W, 4><<<blocks, kBlock, 0, stream>>>(a);
  } else {
    head_norm_rows<X, W, 0><<<blocks, kBlock, 0, stream>>>(a);
  }
}

}  // namespace

Status CudaBackend::head_norm(Stream& s, const HeadNormArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("head_norm", {&a.h_TNU, &a.o_TNU, &a.w_NU, &a.y_TNU, &a.mean_TN, &a.rstd_TN}));
  const bool narrow_w = a.w_NU.dtype == DType::kBF16;
  if (a.h_TNU.dtype == DType::kBF16) {
    narrow_w ? launch_forward<bf16, bf16>(raw(s), a) : launch_forward<bf16, float>(raw(s), a);
  } else {
    narrow_w ? launch_forward<float, bf16>(raw(s), a) : launch_forward<float, float>(raw(s), a);
  }
  return last_launch("head_norm");
}

}  // namespace swax::cuda
