// What the kernels of the simple mLSTM form share: pointers and strides of the arguments, states in
// either storage, gate weights of a chunk. Sums of log gates are built by adding one gate at a time
// and never cross a chunk or a border. Internal to kernels/cuda.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cuda/kernel_launch.cuh"
#include "kernels/spec/mlstm.h"
#include "kernels/spec/mlstm_scratch.h"

namespace swax::cuda {

struct MlstmDims {
  int64_t tokens, heads, qk, v, chunk, chunks;
};

// [C | n] of all chunks. Element (k, u) with u = v is n[k].
template <typename S>
struct MlstmStates;

template <>
struct MlstmStates<float> {
  float* data;
  __device__ int64_t at(const MlstmDims& d, int64_t c, int64_t head, int64_t k, int64_t u) const {
    return ((c * d.heads + head) * d.qk + k) * (d.v + 1) + u;
  }
  __device__ float get(const MlstmDims& d, int64_t c, int64_t head, int64_t k, int64_t u) const {
    return data[at(d, c, head, k, u)];
  }
  __device__ void set(const MlstmDims& d, int64_t c, int64_t head, int64_t k, int64_t u,
                      float x) const {
    data[at(d, c, head, k, u)] = x;
  }
};

template <>
struct MlstmStates<__nv_bfloat16> {
  __nv_bfloat16* data;
  __device__ float* n(const MlstmDims& d, int64_t c, int64_t head, int64_t k) const {
    float* all = reinterpret_cast<float*>(data + (d.chunks + 1) * d.heads * d.qk * d.v);
    return all + (c * d.heads + head) * d.qk + k;
  }
  __device__ int64_t at(const MlstmDims& d, int64_t c, int64_t head, int64_t k, int64_t u) const {
    return ((c * d.heads + head) * d.qk + k) * d.v + u;
  }
  __device__ float get(const MlstmDims& d, int64_t c, int64_t head, int64_t k, int64_t u) const {
    return u == d.v ? *n(d, c, head, k) : load_f32(data + at(d, c, head, k, u));
  }
  __device__ void set(const MlstmDims& d, int64_t c, int64_t head, int64_t k, int64_t u,
                      float x) const {
    if (u == d.v) {
      *n(d, c, head, k) = x;
    } else {
      store_f32(data + at(d, c, head, k, u), x);
    }
  }
};

template <typename T, typename S>
struct MlstmView {
  MlstmDims d;
  const T* q;
  const T* k;
  const T* v;
  int64_t q_stride, k_stride, v_stride;
  const float* i;  // [T, N], as f, m, den
  const float* f;
  const uint8_t* reset;  // null: no borders
  MlstmStates<S> states;
  float* m_state;
  float* m;
  float* den;
  float* scratch;
  float scale;

  __device__ const T* q_row(int64_t t, int64_t head) const {
    return q + t * q_stride + head * d.qk;
  }
  __device__ const T* k_row(int64_t t, int64_t head) const {
    return k + t * k_stride + head * d.qk;
  }
  __device__ const T* v_row(int64_t t, int64_t head) const { return v + t * v_stride + head * d.v; }
  __device__ bool is_reset(int64_t t) const { return reset != nullptr && reset[t] != 0; }
  __device__ int64_t begin(int64_t c) const { return c * d.chunk; }
  __device__ int64_t count(int64_t c) const {
    const int64_t left = d.tokens - c * d.chunk;
    return left < d.chunk ? left : d.chunk;
  }
};

template <typename T>
T* mlstm_data(const Tensor& t) {
  return static_cast<T*>(t.data);
}

// What MlstmArgs and MlstmBackwardArgs have in common.
template <typename T, typename S, typename Args>
MlstmView<T, S> mlstm_view(const Args& a) {
  MlstmView<T, S> x{};
  x.d = {a.q_TNK.dims[0], a.q_TNK.dims[1], a.q_TNK.dims[2],
         a.v_TNU.dims[2], a.chunk,         mlstm_chunks(a.q_TNK.dims[0], a.chunk)};
  x.q = mlstm_data<T>(a.q_TNK);
  x.k = mlstm_data<T>(a.k_TNK);
  x.v = mlstm_data<T>(a.v_TNU);
  x.q_stride = a.q_TNK.row_stride;
  x.k_stride = a.k_TNK.row_stride;
  x.v_stride = a.v_TNU.row_stride;
  x.i = mlstm_data<float>(a.i_TN);
  x.f = mlstm_data<float>(a.f_TN);
  x.reset = mlstm_data<uint8_t>(a.reset_T);
  x.states = {mlstm_data<S>(a.states_CNKU1)};
  x.m_state = mlstm_data<float>(a.m_state_CN);
  x.m = mlstm_data<float>(a.m_TN);
  x.den = mlstm_data<float>(a.den_TN);
  x.scratch = mlstm_data<float>(a.scratch);
  x.scale = 1.0F / std::sqrt(static_cast<float>(x.d.qk));
  return x;
}

// Blocks of the kernels with a scratch part for each, and of those with a thread for each element
// of a state.
inline unsigned mlstm_workers(const MlstmDims& d) {
  return static_cast<unsigned>(std::min(spec::kMlstmWorkersMax, d.chunks * d.heads));
}
inline unsigned mlstm_state_blocks(const MlstmDims& d, int64_t threads) {
  return static_cast<unsigned>((d.heads * d.qk * (d.v + 1) + threads - 1) / threads);
}

// The element of a state that a thread of those blocks owns; head is d.heads or more behind the
// last one.
struct MlstmElement {
  int64_t head, k, u;
  __device__ static MlstmElement own(const MlstmDims& d) {
    const int64_t element = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t width = d.v + 1;
    return {element / width / d.qk, element / width % d.qk, element % width};
  }
};

// Calls f with a value of the type of q, k, v and one of the type of the stored states.
template <typename F>
Status mlstm_with_types(const Tensor& values, const Tensor& states, const F& f) {
  if (values.dtype == DType::kF32) return f(float{}, float{});
  if (states.dtype == DType::kF32) return f(__nv_bfloat16{}, float{});
  return f(__nv_bfloat16{}, __nv_bfloat16{});
}

__device__ inline float log_sigmoid(float x) {
  // min(x, 0) by select: NaN stays NaN.
  return (x > 0.0F ? 0.0F : x) - log1pf(expf(-fabsf(x)));
}

// What a row is divided by.
struct MlstmNormaliser {
  bool floored;   // |den| lies below e^{-m}: the row does not depend on den
  float inverse;  // 1 / (max(|den|, e^{-m}) + eps)

  // Gradient of den; along: dh . h of the row. NaN stays NaN.
  __device__ float gradient(float den, float along) const {
    const float slope = along * inverse;
    return floored ? 0.0F : (den > 0.0F ? -slope : slope);
  }
};
__device__ inline MlstmNormaliser mlstm_normaliser(float den, float m) {
  const float floor = expf(-m);
  const bool floored = fabsf(den) <= floor;  // false for NaN: it stays NaN
  return {floored, 1.0F / ((floored ? floor : fabsf(den)) + kMlstmEps)};
}

template <typename A, typename B>
__device__ float mlstm_dot(const A* a, const B* b, int64_t count) {
  float sum = 0.0F;
  for (int64_t e = 0; e < count; ++e) sum = fmaf(load_f32(a + e), load_f32(b + e), sum);
  return sum;
}

struct MlstmGateParts {
  float* log_forget;    // [N, T]
  float* write_weight;  // [N, T]
  float* carry_weight;  // [N, C]

  template <typename Layout>
  __device__ static MlstmGateParts of(float* scratch, const Layout& layout) {
    return {scratch + layout.log_forget, scratch + layout.write_weight,
            scratch + layout.carry_weight};
  }
};

// One chunk of one head: what a block of the kernels with workers takes at a time.
struct MlstmSpan {
  int64_t c, head;
  int64_t begin, count;  // tokens
  template <typename View>
  __device__ static MlstmSpan of(const View& x, int64_t piece) {
    const int64_t c = piece / x.d.heads;
    return {c, piece % x.d.heads, x.begin(c), x.count(c)};
  }
};

// One block, one head: log forget gates, weights of tokens and of the carried state in the state
// after each chunk, and with `find_m` m before each chunk (else it is read).
template <typename View>
__device__ void mlstm_gate_weights(const View& x, const MlstmGateParts& parts, int64_t head,
                                   bool find_m) {
  float* log_forget = parts.log_forget + head * x.d.tokens;
  float* write = parts.write_weight + head * x.d.tokens;
  float* carry = parts.carry_weight + head * x.d.chunks;
  for (int64_t t = threadIdx.x; t < x.d.tokens; t += blockDim.x) {
    log_forget[t] = log_sigmoid(x.f[t * x.d.heads + head]);
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < x.d.chunks; c += blockDim.x) {
    float suffix = 0.0F;  // sum of the log gates behind token t
    for (int64_t t = x.begin(c) + x.count(c) - 1; t >= x.begin(c); --t) {
      write[t] = suffix + x.i[t * x.d.heads + head];
      suffix = x.is_reset(t) ? -INFINITY : suffix + log_forget[t];
    }
    carry[c] = suffix;
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; find_m && c < x.d.chunks; c += blockDim.x) {
    float top = -INFINITY;
    for (int64_t t = x.begin(c); t < x.begin(c) + x.count(c); ++t) top = fmaxf(top, write[t]);
    x.m_state[(c + 1) * x.d.heads + head] = top;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int64_t c = 0; c < x.d.chunks; ++c) {
      const float carried = carry[c] + x.m_state[c * x.d.heads + head];
      float* after = x.m_state + (c + 1) * x.d.heads + head;
      if (find_m) *after = fmaxf(carried, *after);
      carry[c] = expf(carried - *after);
    }
  }
  __syncthreads();
  for (int64_t t = threadIdx.x; t < x.d.tokens; t += blockDim.x) {
    write[t] = expf(write[t] - x.m_state[(t / x.d.chunk + 1) * x.d.heads + head]);
  }
}

// Row r of the decay matrix of a chunk: decay[j] = e^{logD_rj - m_r} for j <= r. With `find_m` m_r
// is found first (*m), else given. Returns the weight of the state before the chunk.
template <typename View>
__device__ float mlstm_decay_row(const View& x, const float* log_forget, int64_t c, int64_t head,
                                 int64_t r, bool find_m, float* m, float* decay) {
  const int64_t begin = x.begin(c);
  float sum = 0.0F;  // log gates of tokens j + 1 .. r
  float top = -INFINITY;
  for (int64_t j = r; j >= 0; --j) {
    const float log_weight = sum + x.i[(begin + j) * x.d.heads + head];
    decay[j] = log_weight;
    top = fmaxf(top, log_weight);
    sum = x.is_reset(begin + j) ? -INFINITY : sum + log_forget[begin + j];
  }
  const float read_log = sum + x.m_state[c * x.d.heads + head];
  if (find_m) *m = fmaxf(top, read_log);
  for (int64_t j = 0; j <= r; ++j) decay[j] = expf(decay[j] - *m);
  return expf(read_log - *m);
}

}  // namespace swax::cuda
