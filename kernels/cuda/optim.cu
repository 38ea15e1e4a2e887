// Row norms, the norm tree and AdamW. Segments travel as kernel parameters, in batches, so that a
// call needs no device memory and few launches.
#include <algorithm>
#include <vector>

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vec.cuh"

namespace swax::cuda {
namespace {

constexpr int kBatch = 80;  // segments of one launch: below the 4 KiB of kernel parameters

// Segment s holds the items [first[s], first[s + 1]).
template <typename Segment>
struct Batch {
  int count = 0;
  int64_t first[kBatch + 1] = {};
  Segment segments[kBatch] = {};
};
template <typename Segment>
__device__ __forceinline__ int find_segment(const Batch<Segment>& b, int64_t item) {
  int low = 0;
  int high = b.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (b.first[middle] <= item) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Calls launch(batch) for all segments; items(segment) is the number of its work items.
template <typename Segment, typename Items, typename Launch>
void in_batches(std::span<const Segment> all, Items items, Launch launch) {
  size_t next = 0;
  while (next < all.size()) {
    Batch<Segment> b;
    while (next < all.size() && b.count < kBatch) {
      const Segment& s = all[next++];
      const int64_t n = items(s);
      if (n == 0) continue;
      b.segments[b.count] = s;
      b.first[b.count + 1] = b.first[b.count] + n;
      ++b.count;
    }
    if (b.count > 0) launch(b);
  }
}

// Two neighbouring lanes a row: one takes the elements e with e mod 8 in 0..3, the other 4..7. Each
// keeps four of the eight partial sums, so every partial is a left fold over the row. The square
// of an f32 is exact in f64, so the fused form rounds as the separate one does. Rows on 16 bytes
// come through shared memory, kSumCols elements of each at a time, so that memory is read in long
// runs.
constexpr int kSumWarps = 4;
constexpr int kSumRows = kWarp / 2;
constexpr int kSumCols = 256;
constexpr int kSumStride = kSumCols + 8;  // lanes that read together meet different banks
constexpr int kSumShared = kSumWarps * kSumRows * kSumStride * static_cast<int>(sizeof(float));

struct RowHalf {
  int half;  // which four of eight
  double p[4] = {0.0, 0.0, 0.0, 0.0};

  __device__ __forceinline__ void add(const float4& v) {
    const double d[4] = {static_cast<double>(v.x), static_cast<double>(v.y),
                         static_cast<double>(v.z), static_cast<double>(v.w)};
#pragma unroll
    for (int k = 0; k < 4; ++k) p[k] = fma(d[k], d[k], p[k]);
  }
  // Elements 8 i + 4 half .. + 3 below n.
  __device__ __forceinline__ void add_any(const float* row, int64_t n) {
    for (int64_t e = half * 4; e < n; e += 8) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const double d = e + k < n ? static_cast<double>(row[e + k]) : 0.0;
        if (e + k < n) p[k] = fma(d, d, p[k]);
      }
    }
  }
  // The same by way of the warp's `stage`; all lanes together, each with its row.
  __device__ __forceinline__ void add_staged(const float* row, int64_t n, float* stage,
                                             uint64_t* barrier) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float* mine = stage + lane / 2 * kSumStride;
    uint32_t parity = 0;
    for (int64_t done = 0; __any_sync(kAllLanes, done < n); done += kSumCols, parity ^= 1) {
      const int count = static_cast<int>(max(int64_t{0}, min(int64_t{kSumCols}, n - done)));
      const int all = __reduce_add_sync(kAllLanes, half == 0 ? count : 0);
      if (lane == 0) barrier_expect(barrier, static_cast<uint32_t>(all) * 4U);
      __syncwarp();
      if (half == 0 && count > 0) {
        fence_to_async();
        bulk_load(mine, row + done, static_cast<uint32_t>(count) * 4U, barrier);
      }
      barrier_wait(barrier, parity);
#pragma unroll 8
      for (int e = half * 4; e < count; e += 8) add(*reinterpret_cast<const float4*>(mine + e));
      __syncwarp();
    }
  }
};

__global__ void __launch_bounds__(kSumWarps* kWarp, 3)
    row_sumsq_kernel(const float* x, Batch<RowSegment> batch, double* row_sums) {
  extern __shared__ __align__(16) float stages[];
  __shared__ uint64_t barriers[kSumWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) {
    barrier_init(&barriers[warp], 1);
    barrier_init_fence();
  }
  __syncwarp();
  const int64_t total = batch.first[batch.count];
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * kSumWarps + warp) * kSumRows + lane / 2;
  const bool in = index < total;
  const int64_t item = in ? index : total - 1;  // all lanes of a warp stay together
  const int at = find_segment(batch, item);
  const RowSegment& segment = batch.segments[at];
  const int64_t r = item - batch.first[at];
  const int64_t n = segment.row_elements;
  const float* row = x + segment.begin + r * n;
  RowHalf sum{lane % 2};
  const bool aligned = n % 4 == 0 && reinterpret_cast<uint64_t>(row) % 16 == 0;
  if (__all_sync(kAllLanes, aligned)) {
    sum.add_staged(row, n, stages + warp * kSumRows * kSumStride, &barriers[warp]);
  } else {
    sum.add_any(row, n);
  }
  const double mine = (sum.p[0] + sum.p[1]) + (sum.p[2] + sum.p[3]);
  const double other = __shfl_xor_sync(kAllLanes, mine, 1);
  if (in && sum.half == 0) row_sums[segment.first_row + r] = mine + other;
}

constexpr int kTreeLeaves = 2048;  // of one block: a power of two
constexpr int kTreeThreads = 512;

__device__ void finish(StepScalars* s, double total) {
  s->grad_norm = sqrt(total);
  s->nonfinite = fabs(s->grad_norm) <= 1.7976931348623157e308 ? 0 : 1;
  const double limit = static_cast<double>(s->max_norm);
  const bool clipped = s->nonfinite == 0 && limit > 0.0 && s->grad_norm + 1e-6 > limit;
  s->clip = clipped ? static_cast<float>(limit / (s->grad_norm + 1e-6)) : 1.0F;
}

// One node of level 11 a block. An odd last node moves up unchanged: it has no partner in its
// block. order == nullptr: leaves are `from` itself. The last call has one block and finishes the
// scalars.
__global__ void __launch_bounds__(kTreeThreads)
    tree_kernel(const double* from, int64_t from_count, const int64_t* order, int64_t count,
                double* to, StepScalars* scalars) {
  __shared__ double v[kTreeLeaves];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kTreeLeaves;
  int n = static_cast<int>(min(int64_t{kTreeLeaves}, count - begin));
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kTreeThreads) {
    const int64_t at = order == nullptr ? begin + i : order[begin + i];
    v[i] = at >= 0 && at < from_count ? from[at] : __longlong_as_double(0x7ff8000000000000LL);
  }
  __syncthreads();
  while (n > 1) {
    constexpr int kPairs = kTreeLeaves / 2 / kTreeThreads;
    double sum[kPairs];
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kTreeThreads;
      if (2 * i + 1 < n) {
        sum[k] = v[2 * i] + v[2 * i + 1];
      } else if (2 * i < n) {
        sum[k] = v[2 * i];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kTreeThreads;
      if (2 * i < n) v[i] = sum[k];
    }
    __syncthreads();
    n = (n + 1) / 2;
  }
  if (threadIdx.x != 0) return;
  if (scalars != nullptr) {
    finish(scalars, v[0]);
  } else {
    to[blockIdx.x] = v[0];
  }
}

constexpr int kAdamTile = kThreads * 4;

struct AdamW {
  float* master;
  float* m;
  float* v;
  const float* grad;
  const StepScalars* scalars;
  bf16* values;  // or null
  float beta1, beta2, eps;
  bool aligned;  // all addresses
};
struct AdamStep {
  float lr, clip, beta1, rest1, beta2, rest2, bias1, bias2, eps, decay;
};
// Every operation rounded by itself, in the order of the CPU form: the same bits.
__device__ __forceinline__ void adam_element(const AdamStep& s, float& p, float& m, float& v,
                                             float grad) {
  const float g = grad * s.clip;
  m = s.beta1 * m + s.rest1 * g;
  v = s.beta2 * v + s.rest2 * g * g;
  const float update = (m / s.bias1) / (sqrtf(v / s.bias2) + s.eps) + s.decay * p;
  p = p - s.lr * update;
}

__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamW a, Batch<DecaySegment> batch) {
  const StepScalars& in = *a.scalars;
  if (in.skip != 0 || in.nonfinite != 0) return;
  const int at = find_segment(batch, blockIdx.x);
  const DecaySegment& segment = batch.segments[at];
  const AdamStep s{
      in.lr,          in.clip,  a.beta1,  1.0F - a.beta1, a.beta2,
      1.0F - a.beta2, in.bias1, in.bias2, a.eps,          segment.decay ? in.weight_decay : 0.0F};
  const int64_t tile =
      segment.begin + (static_cast<int64_t>(blockIdx.x) - batch.first[at]) * kAdamTile;
  const int64_t end = min(tile + kAdamTile, segment.end);
  const int64_t i = tile + static_cast<int64_t>(threadIdx.x) * 4;
  if (a.aligned && segment.begin % 4 == 0 && i + 4 <= end) {
    float4 p = *reinterpret_cast<const float4*>(a.master + i);
    float4 m = *reinterpret_cast<const float4*>(a.m + i);
    float4 v = *reinterpret_cast<const float4*>(a.v + i);
    const float4 g = *reinterpret_cast<const float4*>(a.grad + i);
    adam_element(s, p.x, m.x, v.x, g.x);
    adam_element(s, p.y, m.y, v.y, g.y);
    adam_element(s, p.z, m.z, v.z, g.z);
    adam_element(s, p.w, m.w, v.w, g.w);
    *reinterpret_cast<float4*>(a.master + i) = p;
    *reinterpret_cast<float4*>(a.m + i) = m;
    *reinterpret_cast<float4*>(a.v + i) = v;
    if (a.values != nullptr) {
      *reinterpret_cast<uint2*>(a.values + i) = make_uint2(two_bf16(p.x, p.y), two_bf16(p.z, p.w));
    }
    return;
  }
  for (int64_t e = i; e < min(i + 4, end); ++e) {
    adam_element(s, a.master[e], a.m[e], a.v[e], a.grad[e]);
    if (a.values != nullptr) from_f32(a.values + e, a.master[e]);
  }
}

bool aligned16(const Tensor& t) { return reinterpret_cast<uint64_t>(t.data) % 16 == 0; }

}  // namespace

Status CudaBackend::row_sumsq(Stream& s, const RowSumsqArgs& a) {
  SWAX_TRY(validate(a));
  if (a.segments.empty()) return ok();
  SWAX_TRY(need_data("row_sumsq", {&a.x_S, &a.row_sums_R}));
  SWAX_CUDA_TRY("row_sumsq",
                cudaFuncSetAttribute(reinterpret_cast<const void*>(row_sumsq_kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, kSumShared));
  in_batches(
      a.segments, [](const RowSegment& r) { return r.rows; },
      [&](const Batch<RowSegment>& b) {
        const auto blocks =
            static_cast<unsigned>(div_ceil(b.first[b.count], int64_t{kSumWarps} * kSumRows));
        row_sumsq_kernel<<<blocks, kSumWarps * kWarp, kSumShared, raw(s)>>>(a.x_S.f32(), b,
                                                                            a.row_sums_R.f64());
      });
  return last_launch("row_sumsq");
}

Status CudaBackend::norm_tree(Stream& s, const NormTreeArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("norm_tree", {&a.gathered_R, &a.order, &a.scratch}));
  if (a.scalars == nullptr) return invalid_argument("norm_tree: scalars must not be null");
  const double* from = a.gathered_R.f64();
  int64_t from_count = a.gathered_R.dims[0];
  const int64_t* order = a.order.i64();
  int64_t count = a.order.dims[0];
  double* to = a.scratch.f64();
  // Levels lie behind each other in scratch: together at most a 2047th of the leaves.
  while (count > kTreeLeaves) {
    const int64_t nodes = div_ceil(count, kTreeLeaves);
    tree_kernel<<<static_cast<unsigned>(nodes), kTreeThreads, 0, raw(s)>>>(from, from_count, order,
                                                                           count, to, nullptr);
    from = to;
    from_count = nodes;
    order = nullptr;
    count = nodes;
    to += nodes;
  }
  tree_kernel<<<1, kTreeThreads, 0, raw(s)>>>(from, from_count, order, count, nullptr, a.scalars);
  return last_launch("norm_tree");
}

Status CudaBackend::adamw(Stream& s, const AdamWArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("adamw", {&a.master_S, &a.m_S, &a.v_S, &a.grad_S, &a.values_S}));
  if (a.scalars == nullptr) return invalid_argument("adamw: scalars must not be null");
  const AdamW args{a.master_S.f32(),
                   a.m_S.f32(),
                   a.v_S.f32(),
                   a.grad_S.f32(),
                   a.scalars,
                   data_of<bf16>(a.values_S),
                   a.beta1,
                   a.beta2,
                   a.eps,
                   aligned16(a.master_S) && aligned16(a.m_S) && aligned16(a.v_S) &&
                       aligned16(a.grad_S) && aligned16(a.values_S)};
  in_batches(
      a.segments, [](const DecaySegment& r) { return div_ceil(r.end - r.begin, kAdamTile); },
      [&](const Batch<DecaySegment>& b) {
        adamw_kernel<<<static_cast<unsigned>(b.first[b.count]), kThreads, 0, raw(s)>>>(args, b);
      });
  return last_launch("adamw");
}

}  // namespace swax::cuda
