// Backward of the head norm. A block owns kNormRowBlock tokens and its threads own columns, as in
// norm_backward.cu. A warp has whole heads, so that no sum leaves it: heads of 8, 16, ... 256
// columns share a warp or fill it, larger ones give each lane several vectors; other shapes take
// the plain kernels.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/fold_rows.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

constexpr int kHeadWarps = 8;

template <typename X, typename W>
struct HeadBackward {
  const X* h;
  const X* o;
  const W* w;
  const float* mean;
  const float* rstd;
  const X* dy;
  X* dh;
  X* d_o;
  float* scratch;
  int64_t h_stride, o_stride, dy_stride, dh_stride, do_stride;
  int64_t tokens, heads, size;
};

struct ElementGrad {
  float hat;   // normed h
  float v;     // gradient of it, dy sigmoid(o) w
  float gate;  // gradient of o
  float dw;
};
template <typename X>
__device__ __forceinline__ ElementGrad element_grad(float h, float o, float w, float dy, float mean,
                                                    float rstd) {
  const float hat = (h - mean) * rstd;
  const Sigmoid s = sigmoid_of<X>(o);
  const float through = dy * s.value;
  return {hat, through * w, through * s.rest * (hat * w), through * hat};
}

constexpr int kColumnWarps = 4;

// What one lane reads of a token.
template <typename X, int kPacks>
struct HeadToken {
  Pack<X> h[kPacks];
  Pack<X> o[kPacks];
  Pack<X> dy[kPacks];
  float mean, rstd;
};

// kPacks vectors a lane, kWarp vectors apart; one token at a time, the reads of the next two in
// flight. kPacks > 1: a head is a warp. kPacks == 1: a head is `lanes` neighbouring lanes.
template <typename X, typename W, int kPacks>
__global__ void __launch_bounds__(kColumnWarps* kWarp, kPacks == 1 ? 4 : 2)
    head_backward_columns(HeadBackward<X, W> a, int lanes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t warp =
      static_cast<int64_t>(blockIdx.y) * kColumnWarps + static_cast<int64_t>(threadIdx.x) / kWarp;
  const int64_t first = (warp * kPacks * kWarp + lane) * kVec;
  const int64_t width = a.heads * a.size;
  if (warp * kPacks * kWarp * kVec >= width) return;  // whole warps: no barrier below
  const bool in = first < width;
  const int64_t head = min(first / a.size, a.heads - 1);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kNormRowBlock;
  const int64_t end = min(begin + kNormRowBlock, a.tokens);
  const float size = static_cast<float>(a.size);
  const auto col = [&](int p) { return first + p * kWarp * kVec; };
  float w[kPacks][kVec] = {};
  float dw[kPacks][kVec] = {};
  HeadToken<X, kPacks> ahead[2];
  const auto fetch = [&](int64_t t, HeadToken<X, kPacks>& next) {
    if (t >= end) return;
    next.mean = a.mean[t * a.heads + head];
    next.rstd = a.rstd[t * a.heads + head];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!in) continue;
      next.h[p] = load_pack(a.h + t * a.h_stride + col(p));
      next.o[p] = load_pack(a.o + t * a.o_stride + col(p));
      next.dy[p] = load_pack(a.dy + t * a.dy_stride + col(p));
    }
  };
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (HeadToken<X, kPacks>& next : ahead) {
      zero(next.h[p]);
      zero(next.o[p]);
      zero(next.dy[p]);
    }
    if (in) unpack(load_pack(a.w + col(p)), w[p]);
  }
  const auto step = [&](int64_t t, HeadToken<X, kPacks>& next) {
    if (t >= end) return;
    const HeadToken<X, kPacks> now = next;
    fetch(t + 2, next);
    float hat[kPacks][kVec];
    float v[kPacks][kVec];
    float sum_v = 0.0F;
    float sum_hat_v = 0.0F;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float h[kVec];
      float o[kVec];
      float dy[kVec];
      float gate[kVec];
      unpack(now.h[p], h);
      unpack(now.o[p], o);
      unpack(now.dy[p], dy);
      float part_v[2] = {};
      float part_hat_v[2] = {};
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const ElementGrad g = element_grad<X>(h[i], o[i], w[p][i], dy[i], now.mean, now.rstd);
        gate[i] = g.gate;
        hat[p][i] = g.hat;
        v[p][i] = g.v;
        dw[p][i] += g.dw;
        part_v[i % 2] += g.v;
        part_hat_v[i % 2] = fmaf(g.v, g.hat, part_hat_v[i % 2]);
      }
      sum_v += part_v[0] + part_v[1];
      sum_hat_v += part_hat_v[0] + part_hat_v[1];
      if (in) store8<true>(a.d_o + t * a.do_stride, col(p), width, gate);
    }
    const float mean_v = lanes_sum(sum_v, lanes) / size;
    const float mean_hat_v = lanes_sum(sum_hat_v, lanes) / size;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        v[p][i] = now.rstd * (v[p][i] - mean_v - hat[p][i] * mean_hat_v);
      }
      if (in) store8<true>(a.dh + t * a.dh_stride, col(p), width, v[p]);
    }
  };
  fetch(begin, ahead[0]);
  fetch(begin + 1, ahead[1]);
  for (int64_t t = begin; t < end; t += 2) {
    step(t, ahead[0]);
    step(t + 1, ahead[1]);
  }
  float* out = a.scratch + static_cast<int64_t>(blockIdx.x) * width;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (in) store8<true>(out, col(p), width, dw[p]);
  }
}

// Any shape: the weight gradient of a block of tokens, one column a thread.
template <typename X, typename W>
__global__ void head_weight_any(HeadBackward<X, W> a) {
  const int64_t width = a.heads * a.size;
  const int64_t col = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (col >= width) return;
  const int64_t head = col / a.size;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kNormRowBlock;
  const int64_t end = min(begin + kNormRowBlock, a.tokens);
  const float w = to_f32(a.w[col]);
  float dw = 0.0F;
  for (int64_t t = begin; t < end; ++t) {
    dw += element_grad<X>(to_f32(a.h[t * a.h_stride + col]), to_f32(a.o[t * a.o_stride + col]), w,
                          to_f32(a.dy[t * a.dy_stride + col]), a.mean[t * a.heads + head],
                          a.rstd[t * a.heads + head])
              .dw;
  }
  a.scratch[static_cast<int64_t>(blockIdx.x) * width + col] = dw;
}

// Two passes over the row of one (token, head), one warp each.
template <typename X, typename W>
__global__ void __launch_bounds__(kHeadWarps* kWarp) head_backward_any(HeadBackward<X, W> a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / kWarp;
  if (row >= a.tokens * a.heads) return;
  const int64_t t = row / a.heads;
  const int64_t at = (row - t * a.heads) * a.size;
  const float mean = a.mean[row];
  const float rstd = a.rstd[row];
  const auto grad = [&](int64_t i) {
    return element_grad<X>(to_f32(a.h[t * a.h_stride + at + i]),
                           to_f32(a.o[t * a.o_stride + at + i]), to_f32(a.w[at + i]),
                           to_f32(a.dy[t * a.dy_stride + at + i]), mean, rstd);
  };
  float sum_v = 0.0F;
  float sum_hat_v = 0.0F;
  for (int64_t i = lane; i < a.size; i += kWarp) {
    const ElementGrad g = grad(i);
    sum_v += g.v;
    sum_hat_v = fmaf(g.v, g.hat, sum_hat_v);
  }
  const float mean_v = lanes_sum(sum_v) / static_cast<float>(a.size);
  const float mean_hat_v = lanes_sum(sum_hat_v) / static_cast<float>(a.size);
  for (int64_t i = lane; i < a.size; i += kWarp) {
    const ElementGrad g = grad(i);
    from_f32(a.d_o + t * a.do_stride + at + i, g.gate);
    from_f32(a.dh + t * a.dh_stride + at + i, rstd * (g.v - mean_v - g.hat * mean_hat_v));
  }
}

// Vectors a lane of head_backward_columns; 0: not a shape of it.
int column_packs(const HeadNormBackwardArgs& x, int64_t size) {
  const bool vectors = vector_rows(x.h_TNU) && vector_rows(x.o_TNU) && vector_rows(x.w_NU) &&
                       vector_rows(x.dy_TNU) && vector_rows(x.dh_TNU) && vector_rows(x.do_TNU) &&
                       vector_rows(x.scratch);
  const int64_t lanes = size / kVec;
  if (!vectors || size % kVec != 0) return 0;
  if (lanes <= kWarp) return (lanes & (lanes - 1)) == 0 ? 1 : 0;
  if (lanes == 2 * kWarp) return 2;
  return lanes == 4 * kWarp && x.h_TNU.dtype == DType::kBF16 ? 4 : 0;  // registers
}

template <typename X, typename W>
void launch_backward(cudaStream_t stream, const HeadNormBackwardArgs& x) {
  const HeadBackward<X, W> a{data_of<X>(x.h_TNU),  data_of<X>(x.o_TNU),  data_of<W>(x.w_NU),
                             x.mean_TN.f32(),      x.rstd_TN.f32(),      data_of<X>(x.dy_TNU),
                             data_of<X>(x.dh_TNU), data_of<X>(x.do_TNU), x.scratch.f32(),
                             row_stride(x.h_TNU),  row_stride(x.o_TNU),  row_stride(x.dy_TNU),
                             row_stride(x.dh_TNU), row_stride(x.do_TNU), x.h_TNU.dims[0],
                             x.h_TNU.dims[1],      x.h_TNU.dims[2]};
  const auto blocks = static_cast<unsigned>(div_ceil(a.tokens, kNormRowBlock));
  const int64_t width = a.heads * a.size;
  const int packs = column_packs(x, a.size);
  if (packs > 0) {
    const int64_t warps = div_ceil(width, packs * kWarp * kVec);
    const dim3 grid(blocks, static_cast<unsigned>(div_ceil(warps, kColumnWarps)));
    const int lanes = static_cast<int>(std::min<int64_t>(a.size / kVec, kWarp));
    constexpr int kBlock = kColumnWarps * kWarp;
    if (packs == 1) {
      head_backward_columns<X, W, 1><<<grid, kBlock, 0, stream>>>(a, lanes);
    } else if (packs == 2) {
      head_backward_columns<X, W, 2><<<grid, kBlock, 0, stream>>>(a, lanes);
    } else if constexpr (sizeof(X) == 2) {
      head_backward_columns<X, W, 4><<<grid, kBlock, 0, stream>>>(a, lanes);
    }
    return;
  }
  const dim3 columns(blocks, static_cast<unsigned>(div_ceil(width, kThreads)));
  head_weight_any<X, W><<<columns, kThreads, 0, stream>>>(a);
  const auto rows = static_cast<unsigned>(div_ceil(a.tokens * a.heads, kHeadWarps));
  head_backward_any<X, W><<<rows, kHeadWarps * kWarp, 0, stream>>>(a);
}

}  // namespace

Status CudaBackend::head_norm_backward(Stream& s, const HeadNormBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(
      need_data("head_norm_backward", {&a.h_TNU, &a.o_TNU, &a.w_NU, &a.mean_TN, &a.rstd_TN,
                                       &a.dy_TNU, &a.dh_TNU, &a.do_TNU, &a.dw_NU, &a.scratch}));
  const bool narrow_w = a.w_NU.dtype == DType::kBF16;
  if (a.h_TNU.dtype == DType::kBF16) {
    narrow_w ? launch_backward<bf16, bf16>(raw(s), a) : launch_backward<bf16, float>(raw(s), a);
  } else {
    narrow_w ? launch_backward<float, bf16>(raw(s), a) : launch_backward<float, float>(raw(s), a);
  }
  SWAX_TRY(last_launch("head_norm_backward"));
  fold_rows(raw(s), a.scratch.f32(), div_ceil(a.h_TNU.dims[0], kNormRowBlock),
            a.h_TNU.dims[1] * a.h_TNU.dims[2], a.dw_NU.f32());
  return last_launch("head_norm_backward fold");
}

}  // namespace swax::cuda
