// Embedding lookup and its scatter. A token outside the vocabulary cannot be reported from a
// device: its row becomes NaN, which shows in the loss; nothing outside the tables is touched.
//
// The scatter sorts the positions by token first (a stable counting sort in the stream's workspace:
// each block of it reads all tokens, so no block needs another one's counts), then every row of the
// table adds its positions in rising order. Reads wait long where memory is busy with writes: the
// rows with tokens come first, the zeros of the others after them.
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

constexpr int kSortRows = 512;  // rows of the table of one block at most
constexpr int kSortThreads = 512;
constexpr int kSortWarps = kSortThreads / kWarp;
constexpr int kSortAhead = 16;  // reads in flight
constexpr int kSortShiftMin = 7;

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

// positions: those of tokens of the vocabulary, rising for each token. ranges[v]: begin and end of
// token v in them. Of 2^shift blocks block b has the rows b, b + 2^shift, ...: frequent tokens are
// often neighbours. `count` < 2^31.
__global__ void __launch_bounds__(kSortThreads)
    sort_tokens_kernel(const int32_t* tokens, int64_t count, int64_t vocab, int shift, int2* ranges,
                       int32_t* positions) {
  __shared__ int next[kSortWarps][kSortRows];  // counts, then where the warp's next one goes
  __shared__ int before[kSortWarps];           // the warp's tokens of earlier blocks
  __shared__ int row_sums[kSortWarps];
  static_assert(kSortThreads == kSortRows);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = thread / kWarp;
  const uint32_t block = blockIdx.x;
  const uint32_t mask = gridDim.x - 1;
  const int64_t share = (count + kSortThreads - 1) / kSortThreads * kWarp;
  const int64_t begin = min(warp * share, count);
  const int64_t end = min(begin + share, count);
  for (int r = lane; r < kSortRows; r += kWarp) next[warp][r] = 0;
  __syncwarp();
  int smaller = 0;
  each_token(tokens, begin, end, [&](int64_t, int32_t v) {
    const uint32_t token = static_cast<uint32_t>(v);  // a negative one is beyond every row
    if (token >= vocab) return;
    if ((token & mask) < block) ++smaller;
    if ((token & mask) == block) atomicAdd(&next[warp][token >> shift], 1);
  });
  smaller = __reduce_add_sync(kAllLanes, smaller);
  if (lane == 0) before[warp] = smaller;
  __syncthreads();
  // Exclusive sum over (row, warp); a thread has a row.
  int mine = 0;
#pragma unroll
  for (int w = 0; w < kSortWarps; ++w) mine += next[w][thread];
  int inclusive = mine;
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == kWarp - 1) row_sums[warp] = inclusive;
  __syncthreads();
  int at = inclusive - mine;
  for (int w = 0; w < kSortWarps; ++w) at += before[w];
  for (int w = 0; w < warp; ++w) at += row_sums[w];
  const int64_t row = (static_cast<int64_t>(thread) << shift) + block;
  if (row < vocab) ranges[row] = make_int2(at, at + mine);
#pragma unroll
  for (int w = 0; w < kSortWarps; ++w) {
    const int n = next[w][thread];
    next[w][thread] = at;
    at += n;
  }
  __syncthreads();
  each_token(tokens, begin, end, [&](int64_t t, int32_t v) {
    const uint32_t token = static_cast<uint32_t>(v);
    const bool in = token < vocab && (token & mask) == block;
    if (__ballot_sync(kAllLanes, in) == 0) return;
    const uint32_t r = token >> shift;
    const unsigned same = __match_any_sync(kAllLanes, in ? static_cast<int>(r) : -1);
    const int rank = __popc(same & ((1U << lane) - 1));
    const int to = in ? next[warp][r] : 0;
    __syncwarp();
    if (in) positions[to + rank] = static_cast<int32_t>(t);
    if (in && rank == 0) next[warp][r] = to + __popc(same);
    __syncwarp();
  });
}

template <typename Y>
struct Gather {
  const int2* ranges;
  const int32_t* positions;
  const Y* dy;
  float* dweight;
  int64_t dy_stride, dweight_stride;
  int64_t vocab, dim;
  int tiles;   // of columns; a block that adds has one
  int groups;  // of rows: row v belongs to group v % groups
};

constexpr int kGatherRows = 32;  // of a group at most, one for each lane
constexpr int kGatherTogether = 4;
constexpr int kGatherThreads = 256;
constexpr int kGatherCols = 4;  // of one access: a warp writes 512 bytes of f32 without gaps
constexpr int kZeroRows = 4;    // of a block that writes zeros

// Four neighbouring elements as they wait for their addition. !kAligned: any address, any width.
template <bool kAligned, typename Y>
struct Waiting {
  static constexpr int kAhead =
      kAligned && sizeof(Y) == 2 ? 16 : 4;  // reads of one thread in flight
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
  const auto position = [&](int32_t i) { return i + lane < end ? a.positions[i + lane] : 0; };
  int32_t coming = position(begin);
  for (int32_t i = begin; i < end; i += kWarp) {
    const int count = min(end - i, kWarp);
    const int32_t mine = coming;
    coming = position(i + kWarp);
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

// One tile of columns of the rows of a group that have tokens. Their first positions are read
// together; few rows have more.
template <bool kAligned, typename Y>
__device__ __forceinline__ void add_rows(const Gather<Y>& a, int block) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = block / a.tiles;
  const int64_t col =
      (static_cast<int64_t>(block % a.tiles) * blockDim.x + threadIdx.x) * kGatherCols;
  const bool in = col < a.dim;
  const auto row = [&](int k) { return group + k * static_cast<int64_t>(a.groups); };
  const int2 range = row(lane) < a.vocab ? a.ranges[row(lane)] : make_int2(0, 0);
  const int32_t first = range.x < range.y ? a.positions[range.x] : 0;
  unsigned left = __ballot_sync(kAllLanes, range.x < range.y);
  while (left != 0) {
    int k[kGatherTogether];
    alignas(16) Waiting<kAligned, Y> one[kGatherTogether];
#pragma unroll
    for (int n = 0; n < kGatherTogether; ++n) {
      k[n] = __ffs(static_cast<int>(left)) - 1;  // -1: no more
      left &= left - 1;
      const int64_t t = __shfl_sync(kAllLanes, first, k[n]);
      if (in && k[n] >= 0) one[n].load(a.dy + t * a.dy_stride, col, a.dim);
    }
#pragma unroll
    for (int n = 0; n < kGatherTogether; ++n) {
      if (k[n] < 0) continue;
      float sum[kGatherCols] = {};
      one[n].add_to(sum);
      const int32_t begin = __shfl_sync(kAllLanes, range.x, k[n]) + 1;
      const int32_t end = __shfl_sync(kAllLanes, range.y, k[n]);
      add_positions<kAligned>(a, begin, end, col, in, sum);
      if (in) store_cols<kAligned>(a.dweight + row(k[n]) * a.dweight_stride, col, a.dim, sum);
    }
  }
}

// Zeros to those of kZeroRows neighbours that have no token.
template <bool kAligned, typename Y>
__device__ __forceinline__ void clear_rows(const Gather<Y>& a, int64_t first) {
  bool empty[kZeroRows];
#pragma unroll
  for (int k = 0; k < kZeroRows; ++k) {
    const int2 range = first + k < a.vocab ? a.ranges[first + k] : make_int2(0, 1);
    empty[k] = range.x == range.y;
  }
#pragma unroll
  for (int k = 0; k < kZeroRows; ++k) {
    if (!empty[k]) continue;
    const float none[kGatherCols] = {};
    for (int64_t col = int64_t{threadIdx.x} * kGatherCols; col < a.dim;
         col += int64_t{blockDim.x} * kGatherCols) {
      store_cols<kAligned>(a.dweight + (first + k) * a.dweight_stride, col, a.dim, none);
    }
  }
}

// The blocks of the rows with tokens come first.
template <bool kAligned, typename Y>
__global__ void __launch_bounds__(kGatherThreads, 4) gather_kernel(Gather<Y> a) {
  const int block = static_cast<int>(blockIdx.x);
  const int adding = a.tiles * a.groups;
  if (block < adding) {
    add_rows<kAligned>(a, block);
  } else {
    clear_rows<kAligned>(a, int64_t{block - adding} * kZeroRows);
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
void launch_gather(cudaStream_t stream, const EmbeddingBackwardArgs& a, const int2* ranges,
                   const int32_t* positions) {
  const int64_t vocab = a.dweight_VD.dims[0];
  const int64_t dim = a.dweight_VD.dims[1];
  const int64_t threads =
      std::min<int64_t>(kGatherThreads, round_up(div_ceil(dim, kGatherCols), int64_t{kWarp}));
  const int64_t tiles = div_ceil(dim, threads * kGatherCols);
  const int64_t groups = div_ceil(vocab, kGatherRows);
  const Gather<Y> x{ranges,
                    positions,
                    data_of<Y>(a.dy_TD),
                    a.dweight_VD.f32(),
                    row_stride(a.dy_TD),
                    row_stride(a.dweight_VD),
                    vocab,
                    dim,
                    static_cast<int>(tiles),
                    static_cast<int>(groups)};
  const auto blocks = static_cast<unsigned>(tiles * groups + div_ceil(vocab, kZeroRows));
  const auto block = static_cast<unsigned>(threads);
  if (dim % kVec == 0 && vector_rows(a.dy_TD) && vector_rows(a.dweight_VD)) {
    gather_kernel<true><<<blocks, block, 0, stream>>>(x);
  } else {
    gather_kernel<false><<<blocks, block, 0, stream>>>(x);
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
  if (tokens + 2 * vocab > kEntriesMax) {
    return invalid_argument("embedding_backward: T + 2 V=" + to_text(tokens + 2 * vocab) +
                            ": must be at most " + to_text(kEntriesMax));
  }
  auto* ranges = static_cast<int2*>(static_cast<CudaStream&>(s).workspace());
  auto* positions = reinterpret_cast<int32_t*>(ranges + vocab);
  int shift = kSortShiftMin;
  while (int64_t{kSortRows} << shift < vocab) ++shift;
  sort_tokens_kernel<<<1U << shift, kSortThreads, 0, raw(s)>>>(a.tokens_T.i32(), tokens, vocab,
                                                               shift, ranges, positions);
  SWAX_TRY(last_launch("embedding_backward sort"));
  if (a.dy_TD.dtype == DType::kBF16) {
    launch_gather<bf16>(raw(s), a, ranges, positions);
  } else {
    launch_gather<float>(raw(s), a, ranges, positions);
  }
  return last_launch("embedding_backward");
}

}  // namespace swax::cuda
