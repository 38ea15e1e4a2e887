// Embedding lookup and its scatter. A token outside the vocabulary cannot be reported from a
// device: its row becomes NaN, which shows in the loss; nothing outside the tables is touched.
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

template <typename W, typename Y>
struct Lookup {
  const int32_t* tokens;
  const W* weight;
  Y* y;
  int64_t weight_stride, y_stride;
  int64_t count, vocab, dim;
};

template <bool kAligned, typename W, typename Y>
__global__ void __launch_bounds__(kThreads) embedding_kernel(Lookup<W, Y> a) {
  const int64_t packs = (a.dim + kVec - 1) / kVec;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; e < a.count * packs;
       e += step) {
    const int64_t t = e / packs;
    const int64_t col = (e - t * packs) * kVec;
    const int64_t v = a.tokens[t];
    float x[kVec];
    if (v >= 0 && v < a.vocab) {
      load8<kAligned>(a.weight + v * a.weight_stride, col, a.dim, x);
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i) x[i] = __int_as_float(0x7fc00000);
    }
    store8<kAligned>(a.y + t * a.y_stride, col, a.dim, x);
  }
}

template <typename Y>
struct Scatter {
  const int32_t* tokens;
  const Y* dy;
  float* dweight;
  int64_t dy_stride, dweight_stride;
  int64_t count, vocab, dim;
};

constexpr int kScatterRows = 8;       // rows of the table of one block
constexpr int kPerThreadTokens = 16;  // neighbouring tokens that one thread looks at
constexpr int kTokenChunk = kThreads * kPerThreadTokens;

// The positions of this chunk whose token lies in the block's rows, in rising order: position in
// the chunk times kScatterRows plus row. Returns their number. All threads of the block.
template <typename Y>
__device__ int list_matches(const Scatter<Y>& a, int64_t first_row, int64_t chunk, uint16_t* list,
                            int* warp_counts) {
  uint32_t found = 0;  // bit i: my token i matches
  uint32_t rows[kPerThreadTokens];
  const int64_t base = chunk + static_cast<int64_t>(threadIdx.x) * kPerThreadTokens;
#pragma unroll
  for (int i = 0; i < kPerThreadTokens; ++i) {
    const int64_t row = base + i < a.count ? a.tokens[base + i] - first_row : -1;
    rows[i] = static_cast<uint32_t>(row);
    if (row >= 0 && row < kScatterRows && first_row + row < a.vocab) found |= 1U << i;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int mine = __popc(found);
  int before = mine;  // inclusive scan over the warp
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, before, step);
    if (lane >= step) before += other;
  }
  if (lane == kWarp - 1) warp_counts[warp] = before;
  before -= mine;
  __syncthreads();
  int total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w == warp) before += total;
    total += warp_counts[w];
  }
#pragma unroll
  for (int i = 0; i < kPerThreadTokens; ++i) {
    if ((found >> i & 1U) == 0) continue;
    const uint32_t position = threadIdx.x * kPerThreadTokens + static_cast<uint32_t>(i);
    list[before++] = static_cast<uint16_t>(position * kScatterRows + rows[i]);
  }
  __syncthreads();
  return total;
}

// Adds the listed positions of one row in order; several reads are in flight.
template <bool kAligned, typename Y>
__device__ void add_row(const Scatter<Y>& a, int64_t chunk, const uint16_t* list, int matches,
                        int row, int64_t col, float (&sum)[kVec]) {
  constexpr int kAhead = 4;
  int64_t next[kAhead];
  int waiting = 0;
  const auto flush = [&] {
    float x[kAhead][kVec];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (k < waiting) load8<kAligned>(a.dy + next[k] * a.dy_stride, col, a.dim, x[k]);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (k >= waiting) break;
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[i] += x[k][i];
    }
    waiting = 0;
  };
  for (int i = 0; i < matches; ++i) {
    if (list[i] % kScatterRows != row) continue;
    const int64_t t = chunk + list[i] / kScatterRows;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (k == waiting) next[k] = t;
    }
    if (++waiting == kAhead) flush();
  }
  flush();
}

template <bool kAligned, typename Y>
__global__ void __launch_bounds__(kThreads) scatter_kernel(Scatter<Y> a) {
  static_assert(kTokenChunk * kScatterRows <= 1 << 16);
  __shared__ uint16_t list[kTokenChunk];
  __shared__ int warp_counts[kThreads / kWarp];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kScatterRows;
  for (int64_t chunk = 0; chunk < a.count; chunk += kTokenChunk) {
    const int matches = list_matches(a, first_row, chunk, list, warp_counts);
    for (int r = 0; r < kScatterRows && first_row + r < a.vocab; ++r) {
      bool any = chunk == 0;  // the first chunk writes every row
      for (int i = 0; i < matches && !any; ++i) any = list[i] % kScatterRows == r;
      if (!any) continue;
      float* out = a.dweight + (first_row + r) * a.dweight_stride;
      for (int64_t col = static_cast<int64_t>(threadIdx.x) * kVec; col < a.dim;
           col += int64_t{kThreads} * kVec) {
        float sum[kVec] = {};
        if (chunk > 0) load8<kAligned>(out, col, a.dim, sum);
        add_row<kAligned>(a, chunk, list, matches, r, col, sum);
        store8<kAligned>(out, col, a.dim, sum);
      }
    }
    __syncthreads();  // the list is written again
  }
}

template <typename W, typename Y>
void launch_lookup(cudaStream_t stream, const EmbeddingArgs& a) {
  const Lookup<W, Y> x{a.tokens_T.i32(),        data_of<W>(a.weight_VD), data_of<Y>(a.y_TD),
                       row_stride(a.weight_VD), row_stride(a.y_TD),      a.tokens_T.dims[0],
                       a.weight_VD.dims[0],     a.y_TD.dims[1]};
  const unsigned blocks = blocks_for(x.count * div_ceil(x.dim, kVec));
  if (x.dim % kVec == 0 && vector_rows(a.weight_VD) && vector_rows(a.y_TD)) {
    embedding_kernel<true><<<blocks, kThreads, 0, stream>>>(x);
  } else {
    embedding_kernel<false><<<blocks, kThreads, 0, stream>>>(x);
  }
}

template <typename Y>
void launch_scatter(cudaStream_t stream, const EmbeddingBackwardArgs& a) {
  const Scatter<Y> x{a.tokens_T.i32(),     data_of<Y>(a.dy_TD),      a.dweight_VD.f32(),
                     row_stride(a.dy_TD),  row_stride(a.dweight_VD), a.tokens_T.dims[0],
                     a.dweight_VD.dims[0], a.dweight_VD.dims[1]};
  const auto blocks = static_cast<unsigned>(div_ceil(x.vocab, kScatterRows));
  if (x.dim % kVec == 0 && vector_rows(a.dy_TD) && vector_rows(a.dweight_VD)) {
    scatter_kernel<true><<<blocks, kThreads, 0, stream>>>(x);
  } else {
    scatter_kernel<false><<<blocks, kThreads, 0, stream>>>(x);
  }
}

}  // namespace

Status CudaBackend::embedding(Stream& s, const EmbeddingArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("embedding", {&a.tokens_T, &a.weight_VD, &a.y_TD}));
  const bool narrow_y = a.y_TD.dtype == DType::kBF16;
  if (a.weight_VD.dtype == DType::kBF16) {
    narrow_y ? launch_lookup<bf16, bf16>(raw(s), a) : launch_lookup<bf16, float>(raw(s), a);
  } else {
    narrow_y ? launch_lookup<float, bf16>(raw(s), a) : launch_lookup<float, float>(raw(s), a);
  }
  return last_launch("embedding");
}

Status CudaBackend::embedding_backward(Stream& s, const EmbeddingBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("embedding_backward", {&a.tokens_T, &a.dy_TD, &a.dweight_VD}));
  if (a.dy_TD.dtype == DType::kBF16) {
    launch_scatter<bf16>(raw(s), a);
  } else {
    launch_scatter<float>(raw(s), a);
  }
  return last_launch("embedding_backward");
}

}  // namespace swax::cuda
