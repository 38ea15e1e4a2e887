// A warp owns one row of the result, so nothing is shared and every sum has one order: keys (or
// queries) rising in steps of 32, inside a step one after the other. In bf16 the weights P and dS
// are rounded where a matrix unit would take them as operands; all other sums are f32.
#include "kernels/cuda/kernel_launch.cuh"
#include "kernels/cuda/swa_simple.h"

namespace swax::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kLanes = 32;

template <typename T>
struct View {
  const T* q;
  const T* k;
  const T* v;
  const int32_t* doc_start;  // null: no borders
  T* o;
  float* lse;  // null in decode
  int64_t q_stride, k_stride, v_stride, o_stride;
  int64_t tokens, heads, kv_heads, size;
  int64_t window;
  int64_t first;  // position of row 0 (decode)
  int64_t low;    // no key below it is seen (decode)
  int64_t ring;   // key p lies in row p % ring
  float scale;
};

template <typename T>
struct GradView {
  View<T> x;  // x.o is only read
  const T* d_o;
  T* dq;
  T* dk;
  T* dv;
  float* delta;
  const float* cos;  // null: dq and dk stay as they are
  const float* sin;
  int64_t cos_stride, sin_stride;
  int64_t do_stride, dq_stride, dk_stride, dv_stride;
};

template <typename T>
__device__ int64_t first_key(const View<T>& x, int64_t t) {
  int64_t low = t - x.window + 1;
  if (low < x.low) low = x.low;
  if (x.doc_start != nullptr && x.doc_start[t] > low) low = x.doc_start[t];
  return low;
}

// Row of key position j; the division is for decode alone.
template <typename T>
__device__ int64_t key_row(const View<T>& x, int64_t j) {
  return j < x.ring ? j : j % x.ring;
}

template <typename T>
__device__ float dot(const T* a, const T* b, int64_t count) {
  float sum = 0.0F;
  for (int64_t e = 0; e < count; ++e) sum = fmaf(load_f32(a + e), load_f32(b + e), sum);
  return sum;
}

// Row of this warp, or -1 behind the last one.
__device__ int64_t warp_row(int64_t rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes;
  return row < rows ? row : -1;
}

// The warp's part of the dynamic shared memory: two vectors of `size` and two of a step.
struct WarpMemory {
  float* sum;
  float* other;
  float* weight;
  float* other_weight;
};
__device__ WarpMemory warp_memory(int64_t size) {
  extern __shared__ float shared[];
  float* base = shared + (threadIdx.x / kLanes) * (2 * size + 2 * kLanes);
  return {base, base + size, base + 2 * size, base + 2 * size + kLanes};
}
size_t warp_memory_bytes(int64_t size) {
  return static_cast<size_t>(kWarps * (2 * size + 2 * kLanes)) * sizeof(float);
}

template <typename T>
__global__ void forward_kernel(View<T> x) {
  const int64_t row = warp_row(x.tokens * x.heads);
  if (row < 0) return;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t t = x.first + row / x.heads;
  const int64_t head = row % x.heads;
  const int64_t kv_head = head / (x.heads / x.kv_heads);
  const WarpMemory mem = warp_memory(x.size);
  const T* q = x.q + row / x.heads * x.q_stride + head * x.size;
  for (int64_t e = lane; e < x.size; e += kLanes) mem.sum[e] = 0.0F;
  float top = -INFINITY;
  float total = 0.0F;
  for (int64_t base = first_key(x, t); base <= t; base += kLanes) {
    const int64_t j = base + lane;
    float score = -INFINITY;
    if (j <= t)
      score = x.scale * dot(q, x.k + key_row(x, j) * x.k_stride + kv_head * x.size, x.size);
    const float next = fmaxf(top, warp_max(score));
    const float keep = expf(top - next);
    const float p = j <= t ? expf(score - next) : 0.0F;
    top = next;
    total = fmaf(total, keep, warp_sum(p));
    mem.weight[lane] = as_operand<T>(p);
    __syncwarp();
    const int count = static_cast<int>(t + 1 - base < kLanes ? t + 1 - base : kLanes);
    for (int64_t e = lane; e < x.size; e += kLanes) {
      float sum = mem.sum[e] * keep;
      for (int i = 0; i < count; ++i) {
        const T* v = x.v + key_row(x, base + i) * x.v_stride + kv_head * x.size;
        sum = fmaf(mem.weight[i], load_f32(v + e), sum);
      }
      mem.sum[e] = sum;
    }
    __syncwarp();
  }
  T* o = x.o + row / x.heads * x.o_stride + head * x.size;
  for (int64_t e = lane; e < x.size; e += kLanes) store_f32(o + e, mem.sum[e] / total);
  if (x.lse != nullptr && lane == 0) x.lse[row] = top + logf(total);
}

template <typename T>
__global__ void delta_kernel(GradView<T> g) {
  const int64_t row = warp_row(g.x.tokens * g.x.heads);
  if (row < 0) return;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t t = row / g.x.heads;
  const int64_t head = row % g.x.heads;
  const T* o = g.x.o + t * g.x.o_stride + head * g.x.size;
  const T* d_o = g.d_o + t * g.do_stride + head * g.x.size;
  float sum = 0.0F;
  for (int64_t e = lane; e < g.x.size; e += kLanes) {
    sum = fmaf(load_f32(o + e), load_f32(d_o + e), sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) g.delta[row] = sum;
}

// The sum of one row of dq or dk, turned back if asked: the two halves are pairs.
template <typename T>
__device__ float turned(const GradView<T>& g, const float* sum, int64_t t, int64_t e) {
  if (g.cos == nullptr) return sum[e];
  const int64_t pairs = g.x.size / 2;
  const int64_t i = e < pairs ? e : e - pairs;
  const float c = g.cos[t * g.cos_stride + i];
  const float s = g.sin[t * g.sin_stride + i];
  return e < pairs ? fmaf(sum[i + pairs], s, sum[i] * c) : fmaf(-sum[i], s, sum[e] * c);
}

struct Pair {
  float p;
  float ds;  // gradient of q k
};

// Weight and gradient of the visible pair (t, j) of `head`.
template <typename T>
__device__ Pair pair_of(const GradView<T>& g, int64_t t, int64_t j, int64_t head) {
  const View<T>& x = g.x;
  const int64_t kv_head = head / (x.heads / x.kv_heads);
  const T* q = x.q + t * x.q_stride + head * x.size;
  const T* d_o = g.d_o + t * g.do_stride + head * x.size;
  const float score = x.scale * dot(q, x.k + j * x.k_stride + kv_head * x.size, x.size);
  const float dp = dot(d_o, x.v + j * x.v_stride + kv_head * x.size, x.size);
  const float p = expf(score - x.lse[t * x.heads + head]);
  // A query that sees itself alone has P = 1: its score has no gradient, and dp - delta would leave
  // the rounding of two equal sums.
  const bool alone = first_key(x, t) == t;
  return {p, alone ? 0.0F * p : p * (dp - g.delta[t * x.heads + head]) * x.scale};
}

template <typename T>
__global__ void dq_kernel(GradView<T> g) {
  const View<T>& x = g.x;
  const int64_t row = warp_row(x.tokens * x.heads);
  if (row < 0) return;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t t = row / x.heads;
  const int64_t head = row % x.heads;
  const int64_t kv_head = head / (x.heads / x.kv_heads);
  const WarpMemory mem = warp_memory(x.size);
  for (int64_t e = lane; e < x.size; e += kLanes) mem.sum[e] = 0.0F;
  for (int64_t base = first_key(x, t); base <= t; base += kLanes) {
    if (base + lane <= t) {
      mem.weight[lane] = as_operand<T>(pair_of(g, t, base + lane, head).ds);
    }
    __syncwarp();
    const int count = static_cast<int>(t + 1 - base < kLanes ? t + 1 - base : kLanes);
    for (int64_t e = lane; e < x.size; e += kLanes) {
      float sum = mem.sum[e];
      for (int i = 0; i < count; ++i) {
        sum = fmaf(mem.weight[i], load_f32(x.k + (base + i) * x.k_stride + kv_head * x.size + e),
                   sum);
      }
      mem.sum[e] = sum;
    }
    __syncwarp();
  }
  T* dq = g.dq + t * g.dq_stride + head * x.size;
  for (int64_t e = lane; e < x.size; e += kLanes) store_f32(dq + e, turned(g, mem.sum, t, e));
}

// Query heads of the group in rising order, inside a head queries in rising order.
template <typename T>
__global__ void dk_dv_kernel(GradView<T> g) {
  const View<T>& x = g.x;
  const int64_t row = warp_row(x.tokens * x.kv_heads);
  if (row < 0) return;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  const int64_t j = row / x.kv_heads;
  const int64_t kv_head = row % x.kv_heads;
  const int64_t group = x.heads / x.kv_heads;
  const WarpMemory mem = warp_memory(x.size);
  for (int64_t e = lane; e < x.size; e += kLanes) {
    mem.sum[e] = 0.0F;
    mem.other[e] = 0.0F;
  }
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    // The first visible key rises with t: behind the first query that does not see j none does.
    for (int64_t base = j; base < x.tokens && first_key(x, base) <= j; base += kLanes) {
      const int64_t t = base + lane;
      const bool seen = t < x.tokens && first_key(x, t) <= j;
      const Pair pair = seen ? pair_of(g, t, j, head) : Pair{0.0F, 0.0F};
      mem.weight[lane] = as_operand<T>(pair.p);
      mem.other_weight[lane] = as_operand<T>(pair.ds);
      const int count = __popc(__ballot_sync(0xffffffffU, seen));
      __syncwarp();
      for (int64_t e = lane; e < x.size; e += kLanes) {
        float dv = mem.sum[e];
        float dk = mem.other[e];
        for (int i = 0; i < count; ++i) {
          dv = fmaf(mem.weight[i], load_f32(g.d_o + (base + i) * g.do_stride + head * x.size + e),
                    dv);
          dk = fmaf(mem.other_weight[i],
                    load_f32(x.q + (base + i) * x.q_stride + head * x.size + e), dk);
        }
        mem.sum[e] = dv;
        mem.other[e] = dk;
      }
      __syncwarp();
    }
  }
  for (int64_t e = lane; e < x.size; e += kLanes) {
    store_f32(g.dv + j * g.dv_stride + kv_head * x.size + e, mem.sum[e]);
    store_f32(g.dk + j * g.dk_stride + kv_head * x.size + e, turned(g, mem.other, j, e));
  }
}

template <typename T>
T* as(const Tensor& t) {
  return static_cast<T*>(t.data);
}

template <typename T>
View<T> view_of(const SwaArgs& a) {
  return {.q = as<T>(a.q_THE),
          .k = as<T>(a.k_TGE),
          .v = as<T>(a.v_TGE),
          .doc_start = as<int32_t>(a.doc_start_T),
          .o = as<T>(a.o_THE),
          .lse = as<float>(a.lse_TH),
          .q_stride = a.q_THE.row_stride,
          .k_stride = a.k_TGE.row_stride,
          .v_stride = a.v_TGE.row_stride,
          .o_stride = a.o_THE.row_stride,
          .tokens = a.q_THE.dims[0],
          .heads = a.q_THE.dims[1],
          .kv_heads = a.k_TGE.dims[1],
          .size = a.q_THE.dims[2],
          .window = a.window,
          .first = 0,
          .low = 0,
          .ring = a.q_THE.dims[0],
          .scale = a.scale};
}

template <typename T>
GradView<T> view_of(const SwaBackwardArgs& a) {
  const SwaArgs forward{a.q_THE, a.k_TGE,  a.v_TGE,  a.doc_start_T,
                        a.o_THE, a.lse_TH, a.window, a.scale};
  return {.x = view_of<T>(forward),
          .d_o = as<T>(a.do_THE),
          .dq = as<T>(a.dq_THE),
          .dk = as<T>(a.dk_TGE),
          .dv = as<T>(a.dv_TGE),
          .delta = as<float>(a.scratch),
          .cos = as<float>(a.cos_TP),
          .sin = as<float>(a.sin_TP),
          .cos_stride = a.cos_TP.row_stride,
          .sin_stride = a.sin_TP.row_stride,
          .do_stride = a.do_THE.row_stride,
          .dq_stride = a.dq_THE.row_stride,
          .dk_stride = a.dk_TGE.row_stride,
          .dv_stride = a.dv_TGE.row_stride};
}

Launch warps_for(int64_t rows, int64_t size, CUstream_st* stream) {
  return {.grid = dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)),
          .block = dim3(kWarps * kLanes),
          .shared_bytes = warp_memory_bytes(size),
          .stream = stream};
}

template <typename T>
Status forward(CUstream_st* stream, const View<T>& x) {
  return launch("swa", warps_for(x.tokens * x.heads, x.size, stream), forward_kernel<T>, x);
}

template <typename T>
Status backward(CUstream_st* stream, const GradView<T>& g) {
  const View<T>& x = g.x;
  const Launch queries = warps_for(x.tokens * x.heads, x.size, stream);
  SWAX_TRY(launch("swa_backward", queries, delta_kernel<T>, g));
  SWAX_TRY(launch("swa_backward", queries, dq_kernel<T>, g));
  return launch("swa_backward", warps_for(x.tokens * x.kv_heads, x.size, stream), dk_dv_kernel<T>,
                g);
}

template <typename T>
Status decode(CUstream_st* stream, const SwaDecodeArgs& a) {
  View<T> x{};
  x.q = as<T>(a.q_HE);
  x.k = as<T>(a.k_RGE);
  x.v = as<T>(a.v_RGE);
  x.o = as<T>(a.o_HE);
  x.k_stride = a.k_RGE.row_stride;
  x.v_stride = a.v_RGE.row_stride;
  x.tokens = 1;
  x.heads = a.q_HE.dims[0];
  x.kv_heads = a.k_RGE.dims[1];
  x.size = a.q_HE.dims[1];
  x.window = a.window;
  x.first = a.position;
  x.low = a.doc_start;
  x.ring = a.k_RGE.dims[0];
  x.scale = a.scale;
  return forward(stream, x);
}

}  // namespace

Status launch_swa_simple(CUstream_st* stream, const SwaArgs& a) {
  if (a.q_THE.dtype == DType::kBF16) return forward(stream, view_of<__nv_bfloat16>(a));
  return forward(stream, view_of<float>(a));
}

Status launch_swa_backward_simple(CUstream_st* stream, const SwaBackwardArgs& a) {
  if (a.q_THE.dtype == DType::kBF16) return backward(stream, view_of<__nv_bfloat16>(a));
  return backward(stream, view_of<float>(a));
}

Status launch_swa_decode(CUstream_st* stream, const SwaDecodeArgs& a) {
  // Heads must be contiguous: one row of heads.
  if (a.q_HE.row_stride != a.q_HE.dims[1] || a.o_HE.row_stride != a.o_HE.dims[1]) {
    return invalid_argument("swa_decode: q_HE and o_HE must be contiguous");
  }
  if (a.q_HE.dtype == DType::kBF16) return decode<__nv_bfloat16>(stream, a);
  return decode<float>(stream, a);
}

}  // namespace swax::cuda
