// Forward in two passes: the states before each chunk (a thread per element of the state, tokens in
// order), then the chunks, a block per (chunk, head). And the one-token step. In bf16 P and the
// weighted keys are rounded where a matrix unit would take them as operands; sums are f32.
#include <cmath>

#include "kernels/cuda/mlstm_simple.h"
#include "kernels/cuda/mlstm_view.cuh"

namespace swax::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, typename S>
struct Forward {
  MlstmView<T, S> x;
  spec::MlstmScratch layout;
  T* h;
  int64_t h_stride;
  bool initial_state;

  __device__ MlstmGateParts parts() const { return MlstmGateParts::of(x.scratch, layout); }
};

template <typename T, typename S>
__global__ void gates_kernel(Forward<T, S> a) {
  const int64_t head = blockIdx.x;
  if (!a.initial_state && threadIdx.x == 0) a.x.m_state[head] = kMlstmNoPast;
  __syncthreads();
  mlstm_gate_weights(a.x, a.parts(), head, true);
}

template <typename T, typename S>
__global__ void states_kernel(Forward<T, S> a) {
  const MlstmDims& d = a.x.d;
  const auto [head, k, u] = MlstmElement::own(d);
  if (head >= d.heads) return;
  const MlstmGateParts parts = a.parts();
  float sum = a.initial_state ? a.x.states.get(d, 0, head, k, u) : 0.0F;
  if (!a.initial_state) a.x.states.set(d, 0, head, k, u, 0.0F);
  for (int64_t c = 0; c < d.chunks; ++c) {
    sum *= parts.carry_weight[head * d.chunks + c];
    for (int64_t t = a.x.begin(c); t < a.x.begin(c) + a.x.count(c); ++t) {
      const float key = parts.write_weight[head * d.tokens + t] * load_f32(a.x.k_row(t, head) + k);
      sum = u == d.v ? sum + key : fmaf(as_operand<T>(key), load_f32(a.x.v_row(t, head) + u), sum);
    }
    a.x.states.set(d, c + 1, head, k, u, sum);
  }
}

template <typename T, typename S>
__global__ void outputs_kernel(Forward<T, S> a) {
  const MlstmView<T, S>& x = a.x;
  const MlstmDims& d = x.d;
  __shared__ float read_weight[kMlstmChunkMax];
  __shared__ float inverse[kMlstmChunkMax];
  float* worker = x.scratch + a.layout.worker + blockIdx.x * a.layout.worker_stride;
  float* decay = worker + a.layout.decay;
  float* scores = worker + a.layout.scores;
  for (int64_t piece = blockIdx.x; piece < d.chunks * d.heads; piece += gridDim.x) {
    const auto [c, head, begin, count] = MlstmSpan::of(x, piece);
    const float* log_forget = x.scratch + a.layout.log_forget + head * d.tokens;
    __syncthreads();  // the piece before may still be read
    for (int64_t r = threadIdx.x; r < count; r += blockDim.x) {
      read_weight[r] =
          x.scale * mlstm_decay_row(x, log_forget, c, head, r, true,
                                    x.m + (begin + r) * d.heads + head, decay + r * d.chunk);
    }
    __syncthreads();
    for (int64_t at = threadIdx.x; at < count * count; at += blockDim.x) {
      const int64_t r = at / count;
      const int64_t j = at % count;
      if (j > r) continue;
      scores[r * d.chunk + j] =
          x.scale * mlstm_dot(x.q_row(begin + r, head), x.k_row(begin + j, head), d.qk) *
          decay[r * d.chunk + j];
    }
    __syncthreads();
    for (int64_t r = threadIdx.x; r < count; r += blockDim.x) {
      float den = 0.0F;
      for (int64_t j = 0; j <= r; ++j) den += scores[r * d.chunk + j];
      float past = 0.0F;
      const T* q = x.q_row(begin + r, head);
      for (int64_t k = 0; k < d.qk; ++k) {
        past = fmaf(load_f32(q + k), x.states.get(d, c, head, k, d.v), past);
      }
      den = fmaf(read_weight[r], past, den);
      const int64_t index = (begin + r) * d.heads + head;
      x.den[index] = den;
      inverse[r] = mlstm_normaliser(den, x.m[index]).inverse;
    }
    __syncthreads();
    for (int64_t at = threadIdx.x; at < count * d.v; at += blockDim.x) {
      const int64_t r = at / d.v;
      const int64_t u = at % d.v;
      const T* q = x.q_row(begin + r, head);
      float sum = 0.0F;
      for (int64_t j = 0; j <= r; ++j) {
        sum = fmaf(as_operand<T>(scores[r * d.chunk + j]), load_f32(x.v_row(begin + j, head) + u),
                   sum);
      }
      float past = 0.0F;
      for (int64_t k = 0; k < d.qk; ++k) {
        past = fmaf(load_f32(q + k), x.states.get(d, c, head, k, u), past);
      }
      sum = fmaf(read_weight[r], past, sum);
      store_f32(a.h + (begin + r) * a.h_stride + head * d.v + u, sum * inverse[r]);
    }
  }
}

template <typename T>
struct Step {
  const T* q;
  const T* k;
  const T* v;
  const float* i;
  const float* f;
  T* h;
  float* state;
  float* m;
  int64_t q_stride, k_stride, v_stride, h_stride, qk, width;
  float scale;
};

template <typename T>
__global__ void step_kernel(Step<T> a) {
  extern __shared__ float numerator[];  // [width]: the last is the normaliser
  const int64_t head = blockIdx.x;
  const float carried = log_sigmoid(a.f[head]) + a.m[head];
  const float gate = a.i[head];
  const float m = fmaxf(carried, gate);
  const float keep = expf(carried - m);
  const float write = expf(gate - m);
  for (int64_t u = threadIdx.x; u < a.width; u += blockDim.x) {
    const float value = u + 1 == a.width ? 1.0F : load_f32(a.v + head * a.v_stride + u);
    float sum = 0.0F;
    for (int64_t k = 0; k < a.qk; ++k) {
      float* state = a.state + (head * a.qk + k) * a.width + u;
      const float next = fmaf(write * load_f32(a.k + head * a.k_stride + k), value, keep * *state);
      *state = next;
      sum = fmaf(a.scale * load_f32(a.q + head * a.q_stride + k), next, sum);
    }
    numerator[u] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) a.m[head] = m;
  const float inverse = mlstm_normaliser(numerator[a.width - 1], m).inverse;
  for (int64_t u = threadIdx.x; u + 1 < a.width; u += blockDim.x) {
    store_f32(a.h + head * a.h_stride + u, numerator[u] * inverse);
  }
}

template <typename T, typename S>
Status forward(CUstream_st* stream, const MlstmArgs& args) {
  Forward<T, S> a{};
  a.x = mlstm_view<T, S>(args);
  const MlstmDims& d = a.x.d;
  const spec::MlstmShape shape{d.tokens, d.heads, d.qk, d.v, d.chunk};
  a.layout = spec::mlstm_scratch_layout(shape);
  a.h = mlstm_data<T>(args.h_TNU);
  a.h_stride = args.h_TNU.row_stride;
  a.initial_state = args.initial_state;
  const auto heads = static_cast<unsigned>(d.heads);
  SWAX_TRY(launch("mlstm", {heads, kThreads, 0, stream}, gates_kernel<T, S>, a));
  SWAX_TRY(launch("mlstm", {mlstm_state_blocks(d, kThreads), kThreads, 0, stream},
                  states_kernel<T, S>, a));
  return launch("mlstm", {mlstm_workers(d), kThreads, 0, stream}, outputs_kernel<T, S>, a);
}

template <typename T>
Status step(CUstream_st* stream, const MlstmStepArgs& args) {
  Step<T> a{};
  a.q = mlstm_data<T>(args.q_NK);
  a.k = mlstm_data<T>(args.k_NK);
  a.v = mlstm_data<T>(args.v_NU);
  a.i = mlstm_data<float>(args.i_N);
  a.f = mlstm_data<float>(args.f_N);
  a.h = mlstm_data<T>(args.h_NU);
  a.state = mlstm_data<float>(args.state_NKU1);
  a.m = mlstm_data<float>(args.m_N);
  a.q_stride = args.q_NK.row_stride;
  a.k_stride = args.k_NK.row_stride;
  a.v_stride = args.v_NU.row_stride;
  a.h_stride = args.h_NU.row_stride;
  a.qk = args.q_NK.dims[1];
  a.width = args.v_NU.dims[1] + 1;
  a.scale = 1.0F / std::sqrt(static_cast<float>(a.qk));
  const Launch l{static_cast<unsigned>(args.q_NK.dims[0]), kThreads,
                 static_cast<size_t>(a.width) * sizeof(float), stream};
  return launch("mlstm_step", l, step_kernel<T>, a);
}

}  // namespace

Status launch_mlstm_simple(CUstream_st* stream, const MlstmArgs& a) {
  return mlstm_with_types(a.q_TNK, a.states_CNKU1, [&](auto value, auto state) {
    return forward<decltype(value), decltype(state)>(stream, a);
  });
}

Status launch_mlstm_step(CUstream_st* stream, const MlstmStepArgs& a) {
  if (a.q_NK.dtype == DType::kF32) return step<float>(stream, a);
  if (a.q_NK.dtype == DType::kBF16) return step<__nv_bfloat16>(stream, a);
  return invalid_argument("mlstm_step: q_NK must be f32 or bf16");
}

}  // namespace swax::cuda
