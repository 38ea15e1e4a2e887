// Per-head LayerNorm with output gate. Forward: one warp a (token, head). Backward: a block owns
// kNormRowBlock tokens and its threads own columns, as in norm_backward.cu, where the columns of a
// head are a power of two of lanes or whole warps; other shapes take the plain kernels.
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/fold_rows.h"
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

// kPacks vectors a lane; 0: any size, read again for each pass.
template <typename X, typename W, int kPacks>
__global__ void __launch_bounds__(kHeadWarps* kWarp) head_norm_rows(HeadNorm<X, W> a) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kHeadWarps + threadIdx.x / kWarp;
  if (row >= a.tokens * a.heads) return;
  const int64_t t = row / a.heads;
  const int64_t n = row - t * a.heads;
  const X* h = a.h + t * a.h_stride + n * a.size;
  const X* o = a.o + t * a.o_stride + n * a.size;
  const W* w = a.w + n * a.size;
  X* y = a.y + t * a.y_stride + n * a.size;
  const float size = static_cast<float>(a.size);
  if constexpr (kPacks == 0) {
    float sum = 0.0F;
    for (int64_t i = lane; i < a.size; i += kWarp) sum += to_f32(h[i]);
    const float mean = lanes_sum(sum) / size;
    float square = 0.0F;
    for (int64_t i = lane; i < a.size; i += kWarp) {
      const float d = to_f32(h[i]) - mean;
      square = fmaf(d, d, square);
    }
    const float rstd = 1.0F / sqrtf(lanes_sum(square) / size + a.eps);
    if (lane == 0) {
      a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
    for (int64_t i = lane; i < a.size; i += kWarp) {
      const float hat = (to_f32(h[i]) - mean) * rstd;
      from_f32(y + i, sigmoid(to_f32(o[i])) * (hat * to_f32(w[i])));
    }
  } else {
    float v[kPacks][kVec];
    Pack<X> gate[kPacks];
    float sums[kVec] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t col = (p * kWarp + lane) * kVec;
      load8<true>(h, col, a.size, v[p]);
      zero(gate[p]);
      if (col < a.size) gate[p] = load_pack(o + col);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sums[i] += v[p][i];
    }
    const float mean = lanes_sum(((sums[0] + sums[4]) + (sums[2] + sums[6])) +
                                 ((sums[1] + sums[5]) + (sums[3] + sums[7]))) /
                       size;
    float squares[kVec] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const bool in = (p * kWarp + lane) * kVec < a.size;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float d = in ? v[p][i] - mean : 0.0F;
        squares[i] = fmaf(d, d, squares[i]);
      }
    }
    const float variance = lanes_sum(((squares[0] + squares[4]) + (squares[2] + squares[6])) +
                                     ((squares[1] + squares[5]) + (squares[3] + squares[7]))) /
                           size;
    const float rstd = 1.0F / sqrtf(variance + a.eps);
    if (lane == 0) {
      a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t col = (p * kWarp + lane) * kVec;
      if (col >= a.size) continue;
      float vo[kVec];
      float vw[kVec];
      float out[kVec];
      unpack(gate[p], vo);
      unpack(load_pack(w + col), vw);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        out[i] = sigmoid(vo[i]) * (((v[p][i] - mean) * rstd) * vw[i]);
      }
      store8<true>(y, col, a.size, out);
    }
  }
}

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
__device__ __forceinline__ ElementGrad element_grad(float h, float o, float w, float dy, float mean,
                                                    float rstd) {
  const float hat = (h - mean) * rstd;
  const float s = sigmoid(o);
  const float through = dy * s;
  return {hat, through * w, through * (1.0F - s) * (hat * w), through * hat};
}

constexpr int kHeadThreadsMax = 512;

// One vector a thread, one token at a time with the next one's reads in flight.
template <typename X, typename W>
__global__ void __launch_bounds__(kHeadThreadsMax) head_backward_columns(HeadBackward<X, W> a) {
  __shared__ float2 shared[2][kHeadThreadsMax / kWarp];
  const int64_t col = static_cast<int64_t>(threadIdx.x) * kVec;
  const int64_t width = a.heads * a.size;
  const int64_t head = min(col / a.size, a.heads - 1);
  const int lanes_of_head = static_cast<int>(min(a.size / kVec, int64_t{kWarp}));
  const int warps_of_head = static_cast<int>(a.size / (kVec * kWarp));  // 0: part of a warp
  const int first_warp = static_cast<int>(head) * warps_of_head;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kNormRowBlock;
  const int64_t end = min(begin + kNormRowBlock, a.tokens);
  const bool in = col < width;
  const float size = static_cast<float>(a.size);
  float w[kVec];
  float dw[kVec] = {};
  load8<true>(a.w, col, width, w);
  Pack<X> h;
  Pack<X> o;
  Pack<X> dy;
  zero(h);
  zero(o);
  zero(dy);
  const auto fetch = [&](int64_t t) {
    if (!in) return;
    h = load_pack(a.h + t * a.h_stride + col);
    o = load_pack(a.o + t * a.o_stride + col);
    dy = load_pack(a.dy + t * a.dy_stride + col);
  };
  fetch(begin);
  for (int64_t t = begin; t < end; ++t) {
    const float mean = a.mean[t * a.heads + head];
    const float rstd = a.rstd[t * a.heads + head];
    float vh[kVec];
    float vo[kVec];
    float vdy[kVec];
    unpack(h, vh);
    unpack(o, vo);
    unpack(dy, vdy);
    if (t + 1 < end) fetch(t + 1);
    float gate[kVec];
    float hat[kVec];
    float v[kVec];
    float sum_v = 0.0F;
    float sum_hat_v = 0.0F;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const ElementGrad g = element_grad(vh[i], vo[i], w[i], vdy[i], mean, rstd);
      gate[i] = g.gate;
      hat[i] = g.hat;
      v[i] = g.v;
      dw[i] += g.dw;
      sum_v += g.v;
      sum_hat_v = fmaf(g.v, g.hat, sum_hat_v);
    }
    store8<true>(a.d_o + t * a.do_stride, col, width, gate);
    sum_v = lanes_sum(sum_v, lanes_of_head);
    sum_hat_v = lanes_sum(sum_hat_v, lanes_of_head);
    if (warps_of_head > 1) {
      float2* slot = shared[(t - begin) % 2];
      if (threadIdx.x % kWarp == 0) slot[threadIdx.x / kWarp] = make_float2(sum_v, sum_hat_v);
      __syncthreads();
      float2 sum = slot[first_warp];
      for (int k = 1; k < warps_of_head; ++k) {
        sum.x += slot[first_warp + k].x;
        sum.y += slot[first_warp + k].y;
      }
      sum_v = sum.x;
      sum_hat_v = sum.y;
    }
    const float mean_v = sum_v / size;
    const float mean_hat_v = sum_hat_v / size;
#pragma unroll
    for (int i = 0; i < kVec; ++i) v[i] = rstd * (v[i] - mean_v - hat[i] * mean_hat_v);
    store8<true>(a.dh + t * a.dh_stride, col, width, v);
  }
  store8<true>(a.scratch + static_cast<int64_t>(blockIdx.x) * width, col, width, dw);
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
    dw += element_grad(to_f32(a.h[t * a.h_stride + col]), to_f32(a.o[t * a.o_stride + col]), w,
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
    return element_grad(to_f32(a.h[t * a.h_stride + at + i]), to_f32(a.o[t * a.o_stride + at + i]),
                        to_f32(a.w[at + i]), to_f32(a.dy[t * a.dy_stride + at + i]), mean, rstd);
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

bool columns_fit(const HeadNormBackwardArgs& x, int64_t heads, int64_t size) {
  const int64_t lanes = size / kVec;
  const bool whole =
      size % kVec == 0 && (lanes % kWarp == 0 || (lanes < kWarp && (lanes & (lanes - 1)) == 0));
  return whole && heads * lanes <= kHeadThreadsMax && vector_rows(x.h_TNU) &&
         vector_rows(x.o_TNU) && vector_rows(x.w_NU) && vector_rows(x.dy_TNU) &&
         vector_rows(x.dh_TNU) && vector_rows(x.do_TNU) && vector_rows(x.scratch);
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
  if (columns_fit(x, a.heads, a.size)) {
    const auto threads = static_cast<unsigned>(round_up(width / kVec, kWarp));
    head_backward_columns<X, W><<<blocks, threads, 0, stream>>>(a);
    return;
  }
  const dim3 columns(blocks, static_cast<unsigned>(div_ceil(width, kThreads)));
  head_weight_any<X, W><<<columns, kThreads, 0, stream>>>(a);
  const auto rows = static_cast<unsigned>(div_ceil(a.tokens * a.heads, kHeadWarps));
  head_backward_any<X, W><<<rows, kHeadWarps * kWarp, 0, stream>>>(a);
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
