// Embedding lookup and its scatter. A token outside the vocabulary cannot be reported from a
// device: its row becomes NaN, which shows in the loss; nothing outside the tables is touched.
//
// The scatter sorts the positions by token first (a stable counting sort in the stream's workspace:
// each block of it reads all tokens, so no block needs another one's counts), then every row of the
// table adds its positions in rising order.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"
#include "proto/base/text.h"

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

constexpr int kLookupTokens = 4;  // of one block: their reads are in flight together

template <bool kAligned, typename W, typename Y>
__global__ void __launch_bounds__(kThreads) embedding_kernel(Lookup<W, Y> a) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kLookupTokens;
  int64_t row[kLookupTokens];
#pragma unroll
  for (int k = 0; k < kLookupTokens; ++k) {
    row[k] = first + k < a.count ? a.tokens[first + k] : -1;
  }
  for (int64_t col = static_cast<int64_t>(threadIdx.x) * kVec; col < a.dim;
       col += static_cast<int64_t>(blockDim.x) * kVec) {
    float x[kLookupTokens][kVec];
#pragma unroll
    for (int k = 0; k < kLookupTokens; ++k) {
      if (row[k] >= 0 && row[k] < a.vocab) {
        load8<kAligned>(a.weight + row[k] * a.weight_stride, col, a.dim, x[k]);
      } else {
#pragma unroll
        for (int i = 0; i < kVec; ++i) x[k][i] = __int_as_float(0x7fc00000);
      }
    }
#pragma unroll
    for (int k = 0; k < kLookupTokens; ++k) {
      if (first + k < a.count) store8<kAligned>(a.y + (first + k) * a.y_stride, col, a.dim, x[k]);
    }
  }
}

constexpr int kSortRows = 512;  // rows of the table of one block
constexpr int kSortThreads = 512;
constexpr int kSortWarps = kSortThreads / kWarp;
constexpr int kSortAhead = 4;  // reads in flight

// Calls body(t, token) for the tokens of this warp, all lanes together, in rising order.
template <typename Body>
__device__ __forceinline__ void each_token(const int32_t* tokens, int64_t begin, int64_t end,
                                           Body body) {
  const int64_t lane = threadIdx.x % kWarp;
  for (int64_t t = begin; t < end; t += kSortAhead * kWarp) {
    int32_t v[kSortAhead];
#pragma unroll
    for (int k = 0; k < kSortAhead; ++k) {
      const int64_t at = t + k * kWarp + lane;
      v[k] = at < end ? tokens[at] : -1;
    }
#pragma unroll
    for (int k = 0; k < kSortAhead; ++k) body(t + k * kWarp + lane, v[k]);
  }
}

// positions: those of tokens of the vocabulary, by token, then rising. starts[v]: the first of
// token v; starts[vocab]: their number. A block writes what belongs to its rows. `count` < 2^31.
__global__ void __launch_bounds__(kSortThreads)
    sort_tokens_kernel(const int32_t* tokens, int64_t count, int64_t vocab, int32_t* starts,
                       int32_t* positions) {
  __shared__ int next[kSortWarps][kSortRows];  // counts, then where the warp's next one goes
  __shared__ int before[kSortWarps];           // the warp's tokens of earlier rows
  __shared__ int row_sums[kSortRows / kWarp];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kSortRows;
  const uint32_t first = static_cast<uint32_t>(first_row);
  const uint32_t rows = static_cast<uint32_t>(min(int64_t{kSortRows}, vocab - first_row));
  const int64_t share = (count + kSortThreads - 1) / kSortThreads * kWarp;
  const int64_t begin = min(warp * share, count);
  const int64_t end = min(begin + share, count);
  for (int r = lane; r < kSortRows; r += kWarp) next[warp][r] = 0;
  __syncwarp();
  int smaller = 0;
  each_token(tokens, begin, end, [&](int64_t, int32_t v) {
    // Unsigned: a negative token is beyond every row.
    const uint32_t token = static_cast<uint32_t>(v);
    if (token < first) ++smaller;
    if (token - first < rows) atomicAdd(&next[warp][token - first], 1);
  });
  smaller = __reduce_add_sync(kAllLanes, smaller);
  if (lane == 0) before[warp] = smaller;
  __syncthreads();
  // Exclusive sum over (row, warp).
  int mine = 0;
  int inclusive = 0;
  if (thread < kSortRows) {
    for (int w = 0; w < kSortWarps; ++w) mine += next[w][thread];
    inclusive = mine;
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, inclusive, step);
      if (lane >= step) inclusive += other;
    }
    if (lane == kWarp - 1) row_sums[warp] = inclusive;
  }
  __syncthreads();
  if (thread < kSortRows) {
    int at = inclusive - mine;
    for (int w = 0; w < kSortWarps; ++w) at += before[w];
    for (int w = 0; w < warp; ++w) at += row_sums[w];
    if (static_cast<uint32_t>(thread) < rows) starts[first_row + thread] = at;
    if (first_row + thread == vocab - 1) starts[vocab] = at + mine;
    for (int w = 0; w < kSortWarps; ++w) {
      const int n = next[w][thread];
      next[w][thread] = at;
      at += n;
    }
  }
  __syncthreads();
  each_token(tokens, begin, end, [&](int64_t t, int32_t v) {
    const uint32_t r = static_cast<uint32_t>(v) - first;
    const bool in = r < rows;
    if (__ballot_sync(kAllLanes, in) == 0) return;
    const unsigned same = __match_any_sync(kAllLanes, in ? static_cast<int>(r) : -1);
    const int rank = __popc(same & ((1U << lane) - 1));
    const int at = in ? next[warp][r] : 0;
    __syncwarp();
    if (in) positions[at + rank] = static_cast<int32_t>(t);
    if (in && rank == 0) next[warp][r] = at + __popc(same);
    __syncwarp();
  });
}

template <typename Y>
struct Gather {
  const int32_t* starts;
  const int32_t* positions;
  const Y* dy;
  float* dweight;
  int64_t dy_stride, dweight_stride;
  int64_t vocab, dim;
};

constexpr int kGatherRows = 4;  // of one block, far apart: frequent tokens are often neighbours
constexpr int kGatherThreads = 256;
constexpr int kGatherCols = 4;  // of one access: a warp writes 512 bytes of f32 without gaps

// Four neighbouring elements as they wait for their addition. !kAligned: any address, any width.
template <bool kAligned, typename Y>
struct Waiting {
  static constexpr int kAhead = sizeof(Y) == 2 ? 8 : 4;  // reads of one thread in flight
  Y x[kGatherCols];
  __device__ __forceinline__ void load(const Y* row, int64_t col, int64_t dim) {
    if constexpr (kAligned) {
      using Access = std::conditional_t<sizeof(Y) == 2, uint2, uint4>;
      *reinterpret_cast<Access*>(x) = __ldg(reinterpret_cast<const Access*>(row + col));
    } else {
#pragma unroll
      for (int i = 0; i < kGatherCols; ++i) {
        if (col + i < dim) x[i] = row[col + i];
      }
    }
  }
  __device__ __forceinline__ void add_to(float (&sum)[kGatherCols]) const {
#pragma unroll
    for (int i = 0; i < kGatherCols; ++i) sum[i] += to_f32(x[i]);
  }
};

template <bool kAligned>
__device__ __forceinline__ void store_cols(float* row, int64_t col, int64_t dim,
                                           const float (&x)[kGatherCols]) {
  if constexpr (kAligned) {
    *reinterpret_cast<float4*>(row + col) = make_float4(x[0], x[1], x[2], x[3]);
  } else {
#pragma unroll
    for (int i = 0; i < kGatherCols; ++i) {
      if (col + i < dim) row[col + i] = x[i];
    }
  }
}

// sum += dy[positions[begin]] + ... in rising order; the lanes of a warp come together, those that
// are not `in` have positions for the others.
template <bool kAligned, typename Y>
__device__ __forceinline__ void add_positions(const Gather<Y>& a, int32_t begin, int32_t end,
                                              int64_t col, bool in, float (&sum)[kGatherCols]) {
  using Next = Waiting<kAligned, Y>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int32_t i = begin; i < end; i += kWarp) {
    const int count = min(end - i, kWarp);
    const int32_t mine = lane < count ? a.positions[i + lane] : 0;
    for (int j = 0; j < count; j += Next::kAhead) {
      alignas(16) Next next[Next::kAhead];
#pragma unroll
      for (int n = 0; n < Next::kAhead; ++n) {
        const int64_t t = __shfl_sync(kAllLanes, mine, j + n);
        if (in && j + n < count) next[n].load(a.dy + t * a.dy_stride, col, a.dim);
      }
#pragma unroll
      for (int n = 0; n < Next::kAhead; ++n) {
        if (j + n < count) next[n].add_to(sum);
      }
    }
  }
}

// The first position of each row is read for all rows together; few rows have more. Most rows have
// none: their zeros go out while those reads are on their way.
template <bool kAligned, typename Y>
__global__ void __launch_bounds__(kGatherThreads, 4) gather_kernel(Gather<Y> a) {
  const auto row = [&](int k) { return blockIdx.x + k * static_cast<int64_t>(gridDim.x); };
  int32_t begin[kGatherRows];
  int32_t end[kGatherRows];
  int32_t first[kGatherRows];
#pragma unroll
  for (int k = 0; k < kGatherRows; ++k) {
    const bool in = row(k) < a.vocab;
    begin[k] = in ? a.starts[row(k)] : 0;
    end[k] = in ? a.starts[row(k) + 1] : 0;
  }
#pragma unroll
  for (int k = 0; k < kGatherRows; ++k) first[k] = begin[k] < end[k] ? a.positions[begin[k]] : 0;
  for (int64_t first_col = 0; first_col < a.dim;
       first_col += static_cast<int64_t>(blockDim.x) * kGatherCols) {
    const int64_t col = first_col + static_cast<int64_t>(threadIdx.x) * kGatherCols;
    const bool in = col < a.dim;
    alignas(16) Waiting<kAligned, Y> one[kGatherRows];
#pragma unroll
    for (int k = 0; k < kGatherRows; ++k) {
      if (in && begin[k] < end[k]) one[k].load(a.dy + first[k] * a.dy_stride, col, a.dim);
    }
#pragma unroll
    for (int k = 0; k < kGatherRows; ++k) {
      const float none[kGatherCols] = {};
      if (!in || begin[k] < end[k] || row(k) >= a.vocab) continue;
      store_cols<kAligned>(a.dweight + row(k) * a.dweight_stride, col, a.dim, none);
    }
#pragma unroll
    for (int k = 0; k < kGatherRows; ++k) {
      if (begin[k] >= end[k]) continue;
      float sum[kGatherCols] = {};
      one[k].add_to(sum);
      add_positions<kAligned>(a, begin[k] + 1, end[k], col, in, sum);
      if (in) store_cols<kAligned>(a.dweight + row(k) * a.dweight_stride, col, a.dim, sum);
    }
  }
}

template <typename W, typename Y>
void launch_lookup(cudaStream_t stream, const EmbeddingArgs& a) {
  const Lookup<W, Y> x{a.tokens_T.i32(),        data_of<W>(a.weight_VD), data_of<Y>(a.y_TD),
                       row_stride(a.weight_VD), row_stride(a.y_TD),      a.tokens_T.dims[0],
                       a.weight_VD.dims[0],     a.y_TD.dims[1]};
  const auto blocks = static_cast<unsigned>(div_ceil(x.count, kLookupTokens));
  const unsigned threads = row_threads(x.dim);
  if (x.dim % kVec == 0 && vector_rows(a.weight_VD) && vector_rows(a.y_TD)) {
    embedding_kernel<true><<<blocks, threads, 0, stream>>>(x);
  } else {
    embedding_kernel<false><<<blocks, threads, 0, stream>>>(x);
  }
}

template <typename Y>
void launch_gather(cudaStream_t stream, const EmbeddingBackwardArgs& a, const int32_t* starts,
                   const int32_t* positions) {
  const Gather<Y> x{starts,
                    positions,
                    data_of<Y>(a.dy_TD),
                    a.dweight_VD.f32(),
                    row_stride(a.dy_TD),
                    row_stride(a.dweight_VD),
                    a.dweight_VD.dims[0],
                    a.dweight_VD.dims[1]};
  const auto blocks = static_cast<unsigned>(div_ceil(x.vocab, kGatherRows));
  const auto threads = static_cast<unsigned>(
      std::min<int64_t>(kGatherThreads, round_up(div_ceil(x.dim, kGatherCols), int64_t{kWarp})));
  if (x.dim % kVec == 0 && vector_rows(a.dy_TD) && vector_rows(a.dweight_VD)) {
    gather_kernel<true><<<blocks, threads, 0, stream>>>(x);
  } else {
    gather_kernel<false><<<blocks, threads, 0, stream>>>(x);
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
  const int64_t tokens = a.tokens_T.dims[0];
  const int64_t vocab = a.dweight_VD.dims[0];
  constexpr int64_t kEntriesMax = kStreamWorkspace / static_cast<int64_t>(sizeof(int32_t));
  if (tokens + vocab + 1 > kEntriesMax) {
    return invalid_argument("embedding_backward: T + V=" + to_text(tokens + vocab) +
                            ": must be below " + to_text(kEntriesMax));
  }
  auto* starts = static_cast<int32_t*>(static_cast<CudaStream&>(s).workspace());
  int32_t* positions = starts + vocab + 1;
  sort_tokens_kernel<<<static_cast<unsigned>(div_ceil(vocab, kSortRows)), kSortThreads, 0,
                       raw(s)>>>(a.tokens_T.i32(), tokens, vocab, starts, positions);
  SWAX_TRY(last_launch("embedding_backward sort"));
  if (a.dy_TD.dtype == DType::kBF16) {
    launch_gather<bf16>(raw(s), a, starts, positions);
  } else {
    launch_gather<float>(raw(s), a, starts, positions);
  }
  return last_launch("embedding_backward");
}

}  // namespace swax::cuda
