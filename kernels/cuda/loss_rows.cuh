// Cross-entropy of long bf16 rows: one block a row at a time, the next two rows on their way into
// shared memory. A row is read and written once. What the gradient needs of it is kept in f32 and
// written while the next row takes its place, vector by vector: writes go along with the arithmetic
// instead of waiting for it. Each warp reads what it brought itself, so it brings its part of the
// row after the next as soon as it has taken that of this one: no barrier of the block holds up the
// reads. Device code.
#pragma once

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/loss_math.cuh"
#include "kernels/spec/step_scalars.h"

namespace swax::cuda {

// The loss of a row is log(total) + offset; 1 and 0 where there is none.
struct RowLoss {
  double total;
  double offset;
};

template <typename X>
struct Loss {
  X* logits;
  int64_t stride;
  const int32_t* targets;
  RowLoss* losses;
  const StepScalars* scalars;
  int64_t tokens;
  int64_t vocab;
  float cap;  // 0: none
  bool write_gradient;
};

constexpr int kRowWarps = 16;  // with them 128 registers a thread
constexpr int kRowThreads = kRowWarps * kWarp;
constexpr int kKeptPacks = 12;  // in registers: 96 of a thread; one more is in shared memory
constexpr int kRowPacks = kKeptPacks + 1;
constexpr int kPackCols = kWarp * kVec;                                   // of a warp
constexpr int64_t kRowLongest = int64_t{kRowThreads} * kRowPacks * kVec;  // 53,248

// A row is brought in groups of vectors of each warp: groups of kGroup, then one of one.
template <bool kWhole>
constexpr int kGroup = kWhole ? 4 : 2;
template <bool kWhole>
constexpr int kGroups = kKeptPacks / kGroup<kWhole> + 1;
constexpr int kGroupsMost = kGroups<false>;

// The target's logit is the matter of the last warp, which has fewer vectors than the first: its
// gradient is written a barrier after the vector around it. By one thread.
struct TargetWrite {
  bf16* to;  // none: it is written
  float du;

  __device__ __forceinline__ void flush() {
    if (to != nullptr) from_f32(to, du);
    to = nullptr;
  }
};

// Row n = 0, 1, ... of the block lies in buffer n % 2, behind this.
struct alignas(128) RowShared {
  float4 kept[2][kRowThreads];
  uint64_t full[2][kRowWarps][kGroupsMost];
  float parts[2][2][kRowWarps];
  uint4 around[2];  // the eight logits around the target
  int targets[4];   // of row n in n % 4
  float inv_targets;
  TargetWrite before;
};

// One thread. kWhole: each has kKeptPacks vectors or more.
template <bool kCapped, bool kWhole>
struct RowPass {
  static constexpr int kSize = kGroup<kWhole>;
  static constexpr int kLast = kGroups<kWhole> - 1;

  const Loss<bf16>& a;
  RowShared& s;
  RowMath<kCapped> math;
  const char* rows;
  int row_bytes;
  int warp, lane;
  float kept[kKeptPacks][kVec] = {};  // of the row before: its gradient but for `scale`
  float scale = 0.0F;                 // inv_targets / total
  bf16* out = nullptr;                // where it goes; none: it has no gradient or is written

  __device__ __forceinline__ int vocab() const { return static_cast<int>(a.vocab); }
  __device__ __forceinline__ int group_col(int g) const {
    return (g * kRowWarps * kSize + warp * (g < kLast ? kSize : 1)) * kPackCols;
  }
  __device__ __forceinline__ int col(int p) const {
    return group_col(p / kSize) + p % kSize * kPackCols + lane * kVec;
  }
  __device__ __forceinline__ bool has_group(int g) const {
    return (kWhole && g < kLast) || group_col(g) < vocab();
  }
  __device__ __forceinline__ bool has(int p) const {
    return (kWhole && p < kKeptPacks) || col(p) < vocab();
  }
  __device__ __forceinline__ const bf16* row(int n) const {
    return reinterpret_cast<const bf16*>(rows + n % 2 * row_bytes);
  }
  // Group g of row n, which is row t of all, if there is one. By one lane.
  __device__ __forceinline__ void load(int64_t t, int n, int g) const {
    if (t >= a.tokens) return;
    const int first = group_col(g);
    constexpr int kMost = kSize * kPackCols;
    int cols = g < kLast ? kMost : kPackCols;
    if (!kWhole || g == kLast) cols = min(cols, vocab() - first);
    const uint32_t bytes = static_cast<uint32_t>(cols) * 2U;
    uint64_t* full = &s.full[n % 2][warp][g];
    barrier_expect(full, bytes);
    bulk_load(const_cast<bf16*>(row(n)) + first, a.logits + t * a.stride + first, bytes, full);
  }
  __device__ __forceinline__ void wait(int n, int g) const {
    barrier_wait(&s.full[n % 2][warp][g], static_cast<uint32_t>(n / 2) & 1U);
  }
  // After the warp has taken group g of row n.
  __device__ __forceinline__ void load_next(int64_t t, int n, int g) const {
    __syncwarp();
    if (lane != 0) return;
    fence_to_async();
    load(t + 2 * int64_t{gridDim.x}, n + 2, g);
  }
  __device__ __forceinline__ Pack<bf16> scaled(const float (&gradient)[kVec]) const {
    float du[kVec];
#pragma unroll
    for (int i = 0; i < kVec; ++i) du[i] = gradient[i] * scale;
    Pack<bf16> x;
    pack(du, x);
    return x;
  }
  __device__ __forceinline__ void recall(float (&gradient)[kVec]) const {
    unpack(Pack<float>{s.kept[0][threadIdx.x], s.kept[1][threadIdx.x]}, gradient);
  }
  __device__ __forceinline__ void flush() {
    if (out == nullptr) return;
#pragma unroll
    for (int p = 0; p < kKeptPacks; ++p) {
      if (has(p)) store_pack(out + col(p), scaled(kept[p]));
    }
    if (has(kKeptPacks)) {
      float last[kVec];
      recall(last);
      store_pack(out + col(kKeptPacks), scaled(last));
    }
    out = nullptr;
  }
  // Writes the gradient of a vector and gives it that of the same vector of row n; its sum of e.
  __device__ __forceinline__ float turn(int n, int p, float (&gradient)[kVec]) {
    const Pack<bf16> x = load_pack(row(n) + col(p));
    const Pack<bf16> before = scaled(gradient);
    if (out != nullptr) store_pack(out + col(p), before);
    float e[kVec];
    math.terms(x, e, gradient);
    return ((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7]));
  }
  // Sum of e over this thread's vectors of row n, whose gradient takes the place of the one kept.
  __device__ __forceinline__ float turn(int64_t t, int n) {
    float sum = 0.0F;
#pragma unroll
    for (int g = 0; g < kLast; ++g) {
      if (!has_group(g)) continue;
      if (kCapped) wait(n, g);
#pragma unroll
      for (int p = g * kSize; p < (g + 1) * kSize; ++p) {
        if (has(p)) sum += turn(n, p, kept[p]);
        if (!kCapped) __syncwarp();  // one vector after the other: registers for more there are not
      }
      load_next(t, n, g);
    }
    if (!has_group(kLast)) return sum;
    if (kCapped) wait(n, kLast);
    if (has(kKeptPacks)) {
      float last[kVec];
      recall(last);
      sum += turn(n, kKeptPacks, last);
      Pack<float> x;
      pack(last, x);
      s.kept[0][threadIdx.x] = x.low;
      s.kept[1][threadIdx.x] = x.high;
    }
    load_next(t, n, kLast);
    return sum;
  }
  // The gradient where there is no loss, or no such target: `value` everywhere.
  __device__ __forceinline__ void flat(int64_t t, int n, float value) {
    const float all[kVec] = {value, value, value, value, value, value, value, value};
#pragma unroll 1
    for (int g = 0; g <= kLast; ++g) {
      if (!has_group(g)) continue;
      wait(n, g);
      load_next(t, n, g);
    }
    if (!a.write_gradient) return;
    for (int p = 0; p < kRowPacks; ++p) {
      store8<true>(a.logits + t * a.stride, col(p), vocab(), all);
    }
  }
  // Largest logit of this thread's vectors; NaN goes through.
  __device__ __forceinline__ float largest(int n) const {
    __nv_bfloat162 top = __float2bfloat162_rn(minus_infinity());
#pragma unroll 1
    for (int g = 0; g <= kLast; ++g) {
      if (!has_group(g)) continue;
      wait(n, g);
#pragma unroll
      for (int p = g * kSize; p < (g < kLast ? (g + 1) * kSize : kRowPacks); ++p) {
        if (!has(p)) continue;
        const Pack<bf16> x = load_pack(row(n) + col(p));
        top = __hmax2_nan(top, __hmax2_nan(__hmax2_nan(pair(x.v.x), pair(x.v.y)),
                                           __hmax2_nan(pair(x.v.z), pair(x.v.w))));
      }
    }
    const float low = __low2float(top);
    const float high = __high2float(top);
    return low != low || high != high ? low + high : fmaxf(low, high);
  }
};

// Copies kBytes to shared memory; there after copies_wait() of this thread.
template <int kBytes>
__device__ __forceinline__ void copy_early(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)),
               "l"(reinterpret_cast<uint64_t>(from)), "n"(kBytes)
               : "memory");
}
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Sum or maximum over the block by way of `parts`; every thread gets it. The next call with the
// same parts must be two barriers later.
template <typename Combine>
__device__ __forceinline__ float over_row_warps(float mine, float* parts, Combine combine) {
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = mine;
  __syncthreads();
  float4 all = *reinterpret_cast<const float4*>(parts);
#pragma unroll
  for (int w = 4; w < kRowWarps; w += 4) {
    const float4 more = *reinterpret_cast<const float4*>(parts + w);
    all = {combine(all.x, more.x), combine(all.y, more.y), combine(all.z, more.z),
           combine(all.w, more.w)};
  }
  return combine(combine(all.x, all.y), combine(all.z, all.w));
}

template <bool kCapped, bool kWhole>
__global__ void __launch_bounds__(kRowThreads, 1)
    loss_rows_kernel(Loss<bf16> a, CapMath cap, int row_bytes) {
  extern __shared__ __align__(128) char memory[];
  RowShared& s = *reinterpret_cast<RowShared*>(memory);
  const int64_t stride = gridDim.x;
  RowPass<kCapped, kWhole> r{a,
                             s,
                             {cap, 0.0F},
                             memory + sizeof(RowShared),
                             row_bytes,
                             uniform(static_cast<int>(threadIdx.x) / kWarp),
                             static_cast<int>(threadIdx.x) % kWarp};
  if (r.lane == 0) {
    for (int n = 0; n < 2; ++n) {
      for (int g = 0; g < kGroups<kWhole>; ++g) barrier_init(&s.full[n][r.warp][g], 1);
    }
    barrier_init_fence();
    for (int n = 0; n < 2; ++n) {
      for (int g = 0; g < kGroups<kWhole>; ++g) {
        if (r.has_group(g)) r.load(blockIdx.x + n * stride, n, g);
      }
    }
  }
  const bool last_warp = r.warp == kRowWarps - 1;
  const bool one = threadIdx.x == kRowThreads - 1;
  if (one) {
    for (int n = 0; n < 2; ++n) {
      const int64_t t = blockIdx.x + n * stride;
      s.targets[n] = t < a.tokens ? a.targets[t] : -1;
    }
    s.inv_targets = a.write_gradient ? a.scalars->inv_targets : 0.0F;
    s.before.to = nullptr;
  }
  __syncthreads();
  int n = 0;
  for (int64_t t = blockIdx.x; t < a.tokens; t += stride, ++n) {
    const int at = n % 2;
    const int target = s.targets[n % 4];
    bf16* out = a.logits + t * a.stride;
    if (one && t + 2 * stride < a.tokens) {
      copy_early<4>(&s.targets[(n + 2) % 4], a.targets + t + 2 * stride);
    }
    if (target < 0 || target >= r.vocab()) {
      const float value = target < 0 ? 0.0F : not_a_number();
      r.flush();
      r.flat(t, n, value);
      copies_wait();
      __syncthreads();  // everybody has written the row before
      if (one) {
        s.before.flush();
        a.losses[t] = {1.0, static_cast<double>(value)};
      }
      continue;
    }
    if constexpr (!kCapped) {
      const float top =
          over_row_warps(lanes_max(r.largest(n)), s.parts[at][0],
                         [](float x, float y) { return x != x || y != y ? x + y : fmaxf(x, y); });
      r.math.shift = top * kLog2E;
    }
    // The row in memory is as it was until everybody is behind the next barrier.
    if (one) copy_early<16>(&s.around[at], out + target / kVec * kVec);
    const float mine = lanes_sum(r.turn(t, n));
    copies_wait();
    const float total =
        over_row_warps(mine, s.parts[at][1], [](float x, float y) { return x + y; });
    r.scale = s.inv_targets / total;
    if (a.write_gradient) r.out = out;
    if (!last_warp) continue;
    const TargetTerm x = r.math.target(Pack<bf16>{s.around[at]}, target % kVec, a.cap);
    const double z = kCapped ? static_cast<double>(x.z)
                             : kLn2 * (static_cast<double>(kLog2E) * static_cast<double>(x.z) -
                                       static_cast<double>(r.math.shift));
    if (!one) continue;
    s.before.flush();
    a.losses[t] = {static_cast<double>(total), -z};
    if (a.write_gradient) {
      s.before = {out + target, (x.e / total - 1.0F) * (s.inv_targets * x.slope)};
    }
  }
  r.flush();
  __syncthreads();
  if (one) s.before.flush();
}

}  // namespace swax::cuda
