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

// One lane: kPacks vectors, kWarp vectors apart. kPacks > 1: a head is a warp. kPacks == 1: a head
// is `lanes` neighbouring lanes.
template <typename X, typename W, int kPacks>
struct HeadColumns {
  using Token = HeadToken<X, kPacks>;
  int64_t first;  // column of the first vector
  int64_t width;
  int64_t head;
  int lanes;
  float size;
  float w[kPacks][kVec];
  float dw[kPacks][kVec];

  __device__ __forceinline__ int64_t col(int p) const { return first + p * kWarp * kVec; }
  __device__ __forceinline__ void start(const HeadBackward<X, W>& a) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      load8<true>(a.w, col(p), width, w[p]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) dw[p][i] = 0.0F;
    }
  }
  // Tokens t, t + 1, ...
  template <int kTokens>
  __device__ __forceinline__ void fetch(const HeadBackward<X, W>& a, int64_t t,
                                        Token (&tokens)[kTokens]) const {
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      Token& x = tokens[k];
      x.mean = a.mean[(t + k) * a.heads + head];
      x.rstd = a.rstd[(t + k) * a.heads + head];
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        x.h[p] = load_packed(a.h + (t + k) * a.h_stride, col(p), width);
        x.o[p] = load_packed(a.o + (t + k) * a.o_stride, col(p), width);
        x.dy[p] = load_packed(a.dy + (t + k) * a.dy_stride, col(p), width);
      }
    }
  }
  // hat: normed h; v: its gradient. Writes the gradient of o.
  __device__ __forceinline__ void gate(const HeadBackward<X, W>& a, int64_t t, int p,
                                       const Token& x, float (&hat)[kVec], float (&v)[kVec]) {
    float h[kVec];
    float o[kVec];
    float dy[kVec];
    float d_o[kVec];
    unpack(x.h[p], h);
    unpack(x.o[p], o);
    unpack(x.dy[p], dy);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const ElementGrad g = element_grad<X>(h[i], o[i], w[p][i], dy[i], x.mean, x.rstd);
      d_o[i] = g.gate;
      hat[i] = g.hat;
      v[i] = g.v;
      dw[p][i] += g.dw;
    }
    store8<true>(a.d_o + t * a.do_stride, col(p), width, d_o);
  }
  // Tokens t, t + 1, ... together: their sums over lanes wait for each other's.
  template <int kTokens>
  __device__ __forceinline__ void step(const HeadBackward<X, W>& a, int64_t t,
                                       const Token (&tokens)[kTokens]) {
    float hat[kTokens][kPacks][kVec];
    float v[kTokens][kPacks][kVec];
    float sum_v[kTokens] = {};
    float sum_hat_v[kTokens] = {};
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        gate(a, t + k, p, tokens[k], hat[k][p], v[k][p]);
        float part_v[2] = {};
        float part_hat_v[2] = {};
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          part_v[i % 2] += v[k][p][i];
          part_hat_v[i % 2] = fmaf(v[k][p][i], hat[k][p][i], part_hat_v[i % 2]);
        }
        sum_v[k] += part_v[0] + part_v[1];
        sum_hat_v[k] += part_hat_v[0] + part_hat_v[1];
      }
    }
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      sum_v[k] = lanes_sum(sum_v[k], lanes);
      sum_hat_v[k] = lanes_sum(sum_hat_v[k], lanes);
    }
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      const float mean_v = sum_v[k] / size;
      const float mean_hat_v = sum_hat_v[k] / size;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          v[k][p][i] = tokens[k].rstd * (v[k][p][i] - mean_v - hat[k][p][i] * mean_hat_v);
        }
        store8<true>(a.dh + (t + k) * a.dh_stride, col(p), width, v[k][p]);
      }
    }
  }
};

// The tokens of a block go through in groups, the reads of the next group in flight.
template <typename X, typename W, int kPacks>
__global__ void __launch_bounds__(kColumnWarps* kWarp, kPacks == 1 ? 4 : 2)
    head_backward_columns(HeadBackward<X, W> a, int lanes) {
  constexpr int kTokens = sizeof(X) == 2 && kPacks <= 2 ? 2 : 1;  // registers
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t warp =
      static_cast<int64_t>(blockIdx.y) * kColumnWarps + static_cast<int64_t>(threadIdx.x) / kWarp;
  HeadColumns<X, W, kPacks> c;
  c.first = (warp * kPacks * kWarp + lane) * kVec;
  c.width = a.heads * a.size;
  if (warp * kPacks * kWarp * kVec >= c.width) return;  // whole warps: no barrier below
  c.head = min(c.first / a.size, a.heads - 1);
  c.lanes = lanes;
  c.size = static_cast<float>(a.size);
  c.start(a);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kNormRowBlock;
  const int64_t end = min(begin + kNormRowBlock, a.tokens);
  HeadToken<X, kPacks> even[kTokens];
  HeadToken<X, kPacks> odd[kTokens];
  int64_t t = begin;
  if (t + kTokens <= end) c.fetch(a, t, even);
  for (; t + 2 * kTokens <= end; t += 2 * kTokens) {
    c.fetch(a, t + kTokens, odd);
    c.step(a, t, even);
    if (t + 3 * kTokens <= end) c.fetch(a, t + 2 * kTokens, even);
    c.step(a, t + kTokens, odd);
  }
  if (t + kTokens <= end) {
    c.step(a, t, even);
    t += kTokens;
  }
  for (; t < end; ++t) {
    HeadToken<X, kPacks> one[1];
    c.fetch(a, t, one);
    c.step(a, t, one);
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    store8<true>(a.scratch + static_cast<int64_t>(blockIdx.x) * c.width, c.col(p), c.width,
                 c.dw[p]);
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
