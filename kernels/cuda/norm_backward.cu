// RMSNorm backward. A block owns kNormRowBlock rows; its threads own columns, so the weight
// gradient of the block is a left fold over rows in registers, written to the block's row of
// scratch and folded over blocks by a second kernel. Rows go through in groups, the reads of the
// next group in flight, and one barrier serves the sums of a group.
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/early_launch.cuh"
#include "kernels/cuda/fold_rows.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

template <typename X, typename W>
struct RmsBackward {
  const X* x;
  const W* w;
  const float* rstd;
  const X* dy;
  X* dx;
  float* scratch;
  int64_t x_stride, dy_stride, dx_stride;
  int64_t tokens, dim;
  bool accumulate;
};

// dx = r (w dy - xhat mean(xhat w dy)), xhat = x r.
struct RowScale {
  float rstd, mean;
};
__device__ __forceinline__ float row_gradient(float x, float w, float dy, RowScale s) {
  return s.rstd * (w * dy - (x * s.rstd) * s.mean);
}

// What a thread has: kPacks vectors of each row. kRows rows go through together.
template <typename X, int kPacks, int kRows>
struct RowGroup {
  Pack<X> x[kRows][kPacks];
  Pack<X> dy[kRows][kPacks];
  Pack<X> old[kRows][kPacks];
  float rstd[kRows];
};

template <typename X, typename W, int kPacks, int kRows>
struct RowColumns {
  using Group = RowGroup<X, kPacks, kRows>;
  int64_t end;  // of the block's rows
  float w[kPacks][kVec];
  float dw[kPacks][kVec];

  __device__ __forceinline__ static int64_t col(int p) {
    return static_cast<int64_t>(p * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) *
           kVec;
  }
  __device__ __forceinline__ void start(const RmsBackward<X, W>& a) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      load8<true>(a.w, col(p), a.dim, w[p]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) dw[p][i] = 0.0F;
    }
  }
  __device__ __forceinline__ void fetch(const RmsBackward<X, W>& a, int64_t t0, Group& g) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      g.rstd[r] = t0 + r < end ? a.rstd[t0 + r] : 0.0F;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        zero(g.x[r][p]);
        zero(g.dy[r][p]);
        zero(g.old[r][p]);
        if (t0 + r >= end || col(p) >= a.dim) continue;
        g.x[r][p] = load_pack(a.x + (t0 + r) * a.x_stride + col(p));
        g.dy[r][p] = load_pack(a.dy + (t0 + r) * a.dy_stride + col(p));
        if (a.accumulate) g.old[r][p] = load_pack(a.dx + (t0 + r) * a.dx_stride + col(p));
      }
    }
  }
  // Of x w dy over the warp's columns of row r.
  __device__ __forceinline__ float projected(const Group& g, int r) const {
    float part[kVec] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float vx[kVec];
      float vdy[kVec];
      unpack(g.x[r][p], vx);
      unpack(g.dy[r][p], vdy);
#pragma unroll
      for (int i = 0; i < kVec; ++i) part[i] = fmaf(vx[i], w[p][i] * vdy[i], part[i]);
    }
    return lanes_sum(((part[0] + part[4]) + (part[2] + part[6])) +
                     ((part[1] + part[5]) + (part[3] + part[7])));
  }
  // Row t, which is row r of the group.
  __device__ __forceinline__ void write(const RmsBackward<X, W>& a, const Group& g, int r,
                                        int64_t t, RowScale scale) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      float vx[kVec];
      float vdy[kVec];
      float vold[kVec];
      float out[kVec];
      unpack(g.x[r][p], vx);
      unpack(g.dy[r][p], vdy);
      unpack(g.old[r][p], vold);
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        dw[p][i] += vdy[i] * (vx[i] * scale.rstd);
        const float dx = row_gradient(vx[i], w[p][i], vdy[i], scale);
        out[i] = a.accumulate ? vold[i] + dx : dx;
      }
      store8<true>(a.dx + t * a.dx_stride, col(p), a.dim, out);
    }
  }
};

// kBlock: most threads of a block.
template <typename X, typename W, int kPacks, int kRows, int kBlock>
__global__ void __launch_bounds__(kBlock, kBlock == 256 && kPacks == 1 ? 2 : 1)
    rms_backward_rows(RmsBackward<X, W> a) {
  __shared__ float shared[2][kRows][kBlock / kWarp];
  let_next_start();
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kNormRowBlock;
  RowColumns<X, W, kPacks, kRows> c;
  c.end = min(begin + kNormRowBlock, a.tokens);
  c.start(a);
  int buffer = 0;
  RowGroup<X, kPacks, kRows> next;
  c.fetch(a, begin, next);
  for (int64_t t0 = begin; t0 < c.end; t0 += kRows, buffer ^= 1) {
    const RowGroup<X, kPacks, kRows> g = next;
    c.fetch(a, t0 + kRows, next);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = c.projected(g, r);
      if (threadIdx.x % kWarp == 0) shared[buffer][r][threadIdx.x / kWarp] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (t0 + r >= c.end) continue;
      float projected = shared[buffer][r][0];
      for (int i = 1; i < warps; ++i) projected += shared[buffer][r][i];
      const RowScale scale{g.rstd[r], projected * g.rstd[r] / static_cast<float>(a.dim)};
      c.write(a, g, r, t0 + r, scale);
    }
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    store8<true>(a.scratch + static_cast<int64_t>(blockIdx.x) * a.dim, c.col(p), a.dim, c.dw[p]);
  }
}

// Any width: the weight gradient of a block of rows, one column a thread.
template <typename X, typename W>
__global__ void rms_weight_any(RmsBackward<X, W> a) {
  const int64_t col = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (col >= a.dim) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kNormRowBlock;
  const int64_t end = min(begin + kNormRowBlock, a.tokens);
  float dw = 0.0F;
  for (int64_t t = begin; t < end; ++t) {
    dw += to_f32(a.dy[t * a.dy_stride + col]) * (to_f32(a.x[t * a.x_stride + col]) * a.rstd[t]);
  }
  a.scratch[static_cast<int64_t>(blockIdx.x) * a.dim + col] = dw;
}

template <typename X, typename W>
__global__ void __launch_bounds__(kThreads) rms_backward_any(RmsBackward<X, W> a) {
  __shared__ float shared[kWarp];
  const int64_t t = blockIdx.x;
  const X* x = a.x + t * a.x_stride;
  const X* dy = a.dy + t * a.dy_stride;
  X* dx = a.dx + t * a.dx_stride;
  float sum = 0.0F;
  for (int64_t i = threadIdx.x; i < a.dim; i += kThreads) {
    sum = fmaf(to_f32(x[i]), to_f32(a.w[i]) * to_f32(dy[i]), sum);
  }
  sum = block_sum(sum, shared);
  const float rstd = a.rstd[t];
  const RowScale scale{rstd, sum * rstd / static_cast<float>(a.dim)};
  for (int64_t i = threadIdx.x; i < a.dim; i += kThreads) {
    const float g = row_gradient(to_f32(x[i]), to_f32(a.w[i]), to_f32(dy[i]), scale);
    from_f32(dx + i, a.accumulate ? to_f32(dx[i]) + g : g);
  }
}

// kFoldCols columns a block, few: there are few columns and many processors. A column's rows are
// kFoldRuns runs, each a left fold of one thread; the runs are added in order.
constexpr int kFoldCols = 32;
constexpr int kFoldRuns = 16;

__global__ void __launch_bounds__(kFoldCols* kFoldRuns)
    fold_rows_kernel(const float* rows_RD, int64_t rows, int64_t dim, float* out_D) {
  __shared__ float part[kFoldRuns][kFoldCols];
  const int at = static_cast<int>(threadIdx.x) % kFoldCols;
  const int run = static_cast<int>(threadIdx.x) / kFoldCols;
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kFoldCols + at;
  const int64_t share = (rows + kFoldRuns - 1) / kFoldRuns;
  const int64_t end = min((run + 1) * share, rows);
  wait_for_previous();
  float sum = 0.0F;
  if (col < dim) {
#pragma unroll 16
    for (int64_t r = run * share; r < end; ++r) sum += __ldcg(rows_RD + r * dim + col);
  }
  part[run][at] = sum;
  __syncthreads();
  if (run > 0 || col >= dim) return;
#pragma unroll
  for (int k = 1; k < kFoldRuns; ++k) sum += part[k][at];
  out_D[col] = sum;
}

template <int kPacks, int kRows, int kBlock, typename X, typename W>
void launch_rows(cudaStream_t stream, const RmsBackward<X, W>& a) {
  const int64_t threads = round_up(div_ceil(a.dim, int64_t{kVec} * kPacks), int64_t{kWarp});
  rms_backward_rows<X, W, kPacks, kRows, kBlock>
      <<<static_cast<unsigned>(div_ceil(a.tokens, kNormRowBlock)), static_cast<unsigned>(threads),
         0, stream>>>(a);
}

template <typename X, typename W>
void launch_backward(cudaStream_t stream, const RmsBackward<X, W>& a, bool vectors) {
  if constexpr (sizeof(X) == 2) {
    if (vectors && a.dim <= 256 * kVec) return launch_rows<1, 2, 256>(stream, a);
    if (vectors && a.dim <= 512 * kVec) return launch_rows<1, 2, 512>(stream, a);
    if (vectors && a.dim <= 1024 * kVec) return launch_rows<2, 1, 512>(stream, a);
  } else {
    if (vectors && a.dim <= 256 * kVec) return launch_rows<1, 1, 256>(stream, a);
    if (vectors && a.dim <= 512 * kVec) return launch_rows<2, 1, 256>(stream, a);
  }
  const auto blocks = static_cast<unsigned>(div_ceil(a.tokens, kNormRowBlock));
  const dim3 columns(blocks, static_cast<unsigned>(div_ceil(a.dim, kThreads)));
  rms_weight_any<X, W><<<columns, kThreads, 0, stream>>>(a);  // first: dx may be dy
  rms_backward_any<X, W><<<static_cast<unsigned>(a.tokens), kThreads, 0, stream>>>(a);
}

}  // namespace

void fold_rows(cudaStream_t stream, const float* rows_RD, int64_t rows, int64_t dim, float* out_D) {
  launch_early(stream, fold_rows_kernel, static_cast<unsigned>(div_ceil(dim, int64_t{kFoldCols})),
               kFoldCols * kFoldRuns, rows_RD, rows, dim, out_D);
}

Status CudaBackend::rms_norm_backward(Stream& s, const RmsNormBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("rms_norm_backward",
                     {&a.x_TD, &a.w_D, &a.rstd_T, &a.dy_TD, &a.dx_TD, &a.dw_D, &a.scratch}));
  const int64_t tokens = a.x_TD.dims[0];
  const int64_t dim = a.x_TD.dims[1];
  const bool vectors = dim % kVec == 0 && vector_rows(a.x_TD) && vector_rows(a.dy_TD) &&
                       vector_rows(a.dx_TD) && vector_rows(a.w_D) && vector_rows(a.scratch);
  const auto go = [&]<typename X, typename W>(X*, W*) {
    launch_backward(raw(s),
                    RmsBackward<X, W>{data_of<X>(a.x_TD), data_of<W>(a.w_D), a.rstd_T.f32(),
                                      data_of<X>(a.dy_TD), data_of<X>(a.dx_TD), a.scratch.f32(),
                                      row_stride(a.x_TD), row_stride(a.dy_TD), row_stride(a.dx_TD),
                                      tokens, dim, a.accumulate_dx},
                    vectors);
  };
  bf16* narrow = nullptr;
  float* wide = nullptr;
  if (a.x_TD.dtype == DType::kBF16) {
    a.w_D.dtype == DType::kBF16 ? go(narrow, narrow) : go(narrow, wide);
  } else {
    a.w_D.dtype == DType::kBF16 ? go(wide, narrow) : go(wide, wide);
  }
  SWAX_TRY(last_launch("rms_norm_backward"));
  fold_rows(raw(s), a.scratch.f32(), div_ceil(tokens, kNormRowBlock), dim, a.dw_D.f32());
  return last_launch("rms_norm_backward fold");
}

}  // namespace swax::cuda
