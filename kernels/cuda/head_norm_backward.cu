// Backward of the head norm. A block owns the columns of a warp in kNormRowBlock tokens. A warp has
// whole heads, so that no sum of a token leaves it: heads of 8, 16, ... 256 columns share a warp or
// fill it, larger ones give each lane several vectors; other shapes take the plain kernels. The
// weight gradients of the blocks are folded as in norm_backward.cu.
#include <algorithm>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/early_launch.cuh"
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
  const float dw = through * hat;
  return {hat, through * w, (dw * s.rest) * w, dw};
}

constexpr int kTokenWarps = 4;

// What one lane reads of a token.
template <typename X, int kPacks>
struct HeadToken {
  Pack<X> h[kPacks];
  Pack<X> o[kPacks];
  Pack<X> dy[kPacks];
  float mean, rstd;
};

// One lane: kPacks vectors, kWarp vectors apart. kPacks > 1: a head is a warp. kPacks == 1: a head
// is `lanes` neighbouring lanes, and those beyond the last column have zeros.
template <typename X, typename W, int kPacks>
struct HeadColumns {
  using Token = HeadToken<X, kPacks>;
  int64_t begin;  // first token of the block
  int first;      // column of the first vector
  int head;
  int lanes;
  bool in;
  float inverse_size;
  float w[kPacks][kVec];
  float dw[kPacks][kVec];

  __device__ __forceinline__ void start(const HeadBackward<X, W>& a) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      load8<true>(a.w, at(p), in ? at(p) + kVec : 0, w[p]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) dw[p][i] = 0.0F;
    }
  }
  __device__ __forceinline__ int at(int p) const { return first + p * kWarp * kVec; }
  // Rows are shorter than 2^31.
  template <typename T>
  __device__ __forceinline__ T* place(T* x, int64_t stride, int t, int p) const {
    return x + (begin + t) * static_cast<int>(stride) + at(p);
  }
  // Token t of the block.
  __device__ __forceinline__ void fetch(const HeadBackward<X, W>& a, int t, Token& x) const {
    x.mean = a.mean[(begin + t) * a.heads + head];
    x.rstd = a.rstd[(begin + t) * a.heads + head];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      zero(x.h[p]);
      zero(x.o[p]);
      zero(x.dy[p]);
      if (!in) continue;
      x.h[p] = load_pack(place(a.h, a.h_stride, t, p));
      x.o[p] = load_pack(place(a.o, a.o_stride, t, p));
      x.dy[p] = load_pack(place(a.dy, a.dy_stride, t, p));
    }
  }
  // hat: normed h; v: its gradient. Writes the gradient of o.
  __device__ __forceinline__ void gate(const HeadBackward<X, W>& a, int t, int p, const Token& x,
                                       float (&hat)[kVec], float (&v)[kVec]) {
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
    if (in) put(place(a.d_o, a.do_stride, t, p), d_o);
  }
  __device__ __forceinline__ static void put(X* to, const float (&y)[kVec]) {
    Pack<X> x;
    pack(y, x);
    store_pack(to, x);
  }
  __device__ __forceinline__ void step(const HeadBackward<X, W>& a, int t, const Token& x) {
    float hat[kPacks][kVec];
    float v[kPacks][kVec];
    float sum_v = 0.0F;
    float sum_hat_v = 0.0F;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      gate(a, t, p, x, hat[p], v[p]);
      float part_v[2] = {};
      float part_hat_v[2] = {};
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        part_v[i % 2] += v[p][i];
        part_hat_v[i % 2] = fmaf(v[p][i], hat[p][i], part_hat_v[i % 2]);
      }
      sum_v += part_v[0] + part_v[1];
      sum_hat_v += part_hat_v[0] + part_hat_v[1];
    }
    if constexpr (kPacks == 1) {
      sum_v = lanes_sum(sum_v, lanes);
      sum_hat_v = lanes_sum(sum_hat_v, lanes);
    } else {
      sum_v = lanes_sum(sum_v);
      sum_hat_v = lanes_sum(sum_hat_v);
    }
    // rstd (v - mean v - hat mean(hat v))
    const float shift = -(x.rstd * (sum_v * inverse_size));
    const float slope = -(x.rstd * (sum_hat_v * inverse_size));
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        v[p][i] = fmaf(v[p][i], x.rstd, fmaf(hat[p][i], slope, shift));
      }
      if (in) put(place(a.dh, a.dh_stride, t, p), v[p]);
    }
  }
};

// Blocks of a multiprocessor: as many as have their registers without spilling (a spill costs more
// than the warps gain).
template <typename X, int kPacks>
constexpr int kHeadBlocks = sizeof(X) * kPacks <= 2   ? 4
                            : sizeof(X) * kPacks <= 4 ? 3
                                                      : 2;

// One block for kPacks * kWarp vectors of kNormRowBlock tokens. Its warp l has the tokens l,
// l + kTokenWarps, ..., the reads of the next one in flight; the sums of the warps are added in
// order. Many short blocks: they even out what multiprocessors differ in.
template <typename X, typename W, int kPacks>
__global__ void __launch_bounds__(kTokenWarps* kWarp, kHeadBlocks<X, kPacks>)
    head_backward_columns(HeadBackward<X, W> a, int lanes, unsigned groups) {
  constexpr int kCols = kPacks * kWarp * kVec;
  __shared__ __align__(16) float sums[kTokenWarps][kCols];
  let_next_start();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned block = blockIdx.x / groups;
  const int group = static_cast<int>(blockIdx.x - block * groups);
  const int size = static_cast<int>(a.size);
  const int width = static_cast<int>(a.heads) * size;
  HeadColumns<X, W, kPacks> c;
  c.begin = static_cast<int64_t>(block) * kNormRowBlock;
  c.first = group * kCols + lane * kVec;
  c.in = kPacks > 1 || c.first < width;
  c.head = kPacks > 1 ? group : min(c.first / size, static_cast<int>(a.heads) - 1);
  c.lanes = lanes;
  c.inverse_size = 1.0F / static_cast<float>(size);
  const int count = static_cast<int>(min(kNormRowBlock, a.tokens - c.begin));
  HeadToken<X, kPacks> even;
  HeadToken<X, kPacks> odd;
  int t = warp;
  if (t < count) c.fetch(a, t, even);
  c.start(a);
  for (; t < count; t += 2 * kTokenWarps) {
    if (t + kTokenWarps < count) c.fetch(a, t + kTokenWarps, odd);
    c.step(a, t, even);
    if (t + 2 * kTokenWarps < count) c.fetch(a, t + 2 * kTokenWarps, even);
    if (t + kTokenWarps < count) c.step(a, t + kTokenWarps, odd);
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    store8<true>(sums[warp], (p * kWarp + lane) * kVec, kCols, c.dw[p]);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < kCols; e += kTokenWarps * kWarp) {
    float sum = sums[0][e];
#pragma unroll
    for (int k = 1; k < kTokenWarps; ++k) sum += sums[k][e];
    if (group * kCols + e < width) a.scratch[block * int64_t{width} + group * kCols + e] = sum;
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
    const auto groups = static_cast<unsigned>(div_ceil(width, packs * kWarp * kVec));
    const int lanes = static_cast<int>(std::min<int64_t>(a.size / kVec, kWarp));
    constexpr int kBlock = kTokenWarps * kWarp;
    if (packs == 1) {
      head_backward_columns<X, W, 1><<<blocks * groups, kBlock, 0, stream>>>(a, lanes, groups);
    } else if (packs == 2) {
      head_backward_columns<X, W, 2><<<blocks * groups, kBlock, 0, stream>>>(a, lanes, groups);
    } else if constexpr (sizeof(X) == 2) {
      head_backward_columns<X, W, 4><<<blocks * groups, kBlock, 0, stream>>>(a, lanes, groups);
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
