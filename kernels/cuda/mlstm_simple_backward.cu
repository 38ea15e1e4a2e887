// Backward of the mLSTM cell, the simple form: gradients of the states with the last chunk first (a
// thread per element), then a block per (chunk, head). Gate gradients are sums of parts of one sign
// convention, never a difference of q dq and k dk (model-spec 2.4). In bf16 the weights of a matrix
// product and the stored state gradients are rounded; sums are f32.
#include "kernels/cuda/mlstm_simple.h"
#include "kernels/cuda/mlstm_view.cuh"

namespace swax::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, typename S>
struct Backward {
  MlstmView<T, S> x;
  spec::MlstmBackwardScratch layout;
  const T* h;
  const T* dh;
  T* dq;
  T* dk;
  T* dv;
  float* di;
  float* df;
  int64_t h_stride, dh_stride, dq_stride, dk_stride, dv_stride;

  __device__ MlstmGateParts parts() const { return MlstmGateParts::of(x.scratch, layout); }
  // [N, T] parts.
  __device__ float* of_token(int64_t part, int64_t head) const {
    return x.scratch + part + head * x.d.tokens;
  }
  __device__ const T* dh_row(int64_t t, int64_t head) const {
    return dh + t * dh_stride + head * x.d.v;
  }
  // Gradient of the state after chunk c.
  __device__ float* dstate(int64_t c, int64_t head, int64_t k) const {
    return x.scratch + layout.dstates + ((c * x.d.heads + head) * x.d.qk + k) * (x.d.v + 1);
  }
};

template <typename T, typename S>
__global__ void gates_kernel(Backward<T, S> a) {
  const MlstmView<T, S>& x = a.x;
  const int64_t head = blockIdx.x;
  mlstm_gate_weights(x, a.parts(), head, false);
  __syncthreads();
  const float* log_forget = a.of_token(a.layout.log_forget, head);
  float* read = a.of_token(a.layout.read_weight, head);
  for (int64_t c = threadIdx.x; c < x.d.chunks; c += blockDim.x) {
    float prefix = 0.0F;
    for (int64_t t = x.begin(c); t < x.begin(c) + x.count(c); ++t) {
      prefix = x.is_reset(t) ? -INFINITY : prefix + log_forget[t];
      read[t] =
          x.scale * expf(prefix + x.m_state[c * x.d.heads + head] - x.m[t * x.d.heads + head]);
    }
  }
  for (int64_t t = threadIdx.x; t < x.d.tokens; t += blockDim.x) {
    const int64_t index = t * x.d.heads + head;
    const MlstmNormaliser by = mlstm_normaliser(x.den[index], x.m[index]);
    const float along = mlstm_dot(a.dh_row(t, head), a.h + t * a.h_stride + head * x.d.v, x.d.v);
    a.of_token(a.layout.inv_scale, head)[t] = by.inverse;
    a.of_token(a.layout.gamma, head)[t] = by.gradient(x.den[index], along);
  }
}

template <typename T, typename S>
__global__ void dstates_kernel(Backward<T, S> a) {
  const MlstmView<T, S>& x = a.x;
  const MlstmDims& d = x.d;
  const auto [head, k, u] = MlstmElement::own(d);
  if (head >= d.heads) return;
  const float* read = a.of_token(a.layout.read_weight, head);
  const float* inverse = a.of_token(a.layout.inv_scale, head);
  const float* gamma = a.of_token(a.layout.gamma, head);
  float sum = 0.0F;
  for (int64_t c = d.chunks - 1; c >= 0; --c) {
    a.dstate(c, head, k)[u] = u == d.v ? sum : as_operand<T>(sum);
    sum *= a.parts().carry_weight[head * d.chunks + c];
    for (int64_t t = x.begin(c); t < x.begin(c) + x.count(c); ++t) {
      const float query = read[t] * load_f32(x.q_row(t, head) + k);
      sum = u == d.v
                ? fmaf(query, gamma[t], sum)
                : fmaf(as_operand<T>(query * inverse[t]), load_f32(a.dh_row(t, head) + u), sum);
    }
  }
}

// One (chunk, head) with the scratch of one worker.
template <typename T, typename S>
struct Piece : MlstmSpan {
  const Backward<T, S>& a;
  float* decay;    // e^{logD - m}, then W = dP P
  float* scores;   // P
  float* dscores;  // gradient of q k
  float* row_LK;   // parts of dq, dk through the state
  float* sum_L;    // its product with q or k, per token

  __device__ const MlstmView<T, S>& x() const { return a.x; }
  __device__ int64_t chunk() const { return a.x.d.chunk; }

  __device__ void pairs() const {
    const MlstmDims& d = x().d;
    const float* log_forget = a.of_token(a.layout.log_forget, head);
    for (int64_t r = threadIdx.x; r < count; r += blockDim.x) {
      float m = x().m[(begin + r) * d.heads + head];
      mlstm_decay_row(x(), log_forget, c, head, r, false, &m, decay + r * chunk());
    }
    __syncthreads();
    for (int64_t at = threadIdx.x; at < count * count; at += blockDim.x) {
      const int64_t r = at / count;
      const int64_t j = at % count;
      if (j > r) continue;
      const int64_t t = begin + r;
      const float weight = decay[r * chunk() + j];
      const float p =
          x().scale * mlstm_dot(x().q_row(t, head), x().k_row(begin + j, head), d.qk) * weight;
      const float along = mlstm_dot(a.dh_row(t, head), x().v_row(begin + j, head), d.v);
      const float dp =
          fmaf(along, a.of_token(a.layout.inv_scale, head)[t], a.of_token(a.layout.gamma, head)[t]);
      scores[r * chunk() + j] = p;
      dscores[r * chunk() + j] = as_operand<T>(dp * x().scale * weight);
      decay[r * chunk() + j] = dp * p;
    }
    __syncthreads();
  }

  // sum_L[r] = row_LK[r] . rows[r], and makes sum_L visible.
  __device__ void sum_rows(const T* rows, int64_t stride) const {
    __syncthreads();
    for (int64_t r = threadIdx.x; r < count; r += blockDim.x) {
      sum_L[r] =
          mlstm_dot(row_LK + r * x().d.qk, rows + (begin + r) * stride + head * x().d.qk, x().d.qk);
    }
    __syncthreads();
  }

  __device__ void query_gradient() const {
    const MlstmDims& d = x().d;
    for (int64_t at = threadIdx.x; at < count * d.qk; at += blockDim.x) {
      const int64_t r = at / d.qk;
      const int64_t k = at % d.qk;
      const int64_t t = begin + r;
      float past = 0.0F;
      for (int64_t u = 0; u < d.v; ++u) {
        past = fmaf(load_f32(a.dh_row(t, head) + u), x().states.get(d, c, head, k, u), past);
      }
      past = past * a.of_token(a.layout.inv_scale, head)[t] +
             a.of_token(a.layout.gamma, head)[t] * x().states.get(d, c, head, k, d.v);
      past *= a.of_token(a.layout.read_weight, head)[t];
      row_LK[r * d.qk + k] = past;
      float sum = 0.0F;
      for (int64_t j = 0; j <= r; ++j) {
        sum = fmaf(dscores[r * chunk() + j], load_f32(x().k_row(begin + j, head) + k), sum);
      }
      store_f32(a.dq + t * a.dq_stride + head * d.qk + k, sum + past);
    }
  }

  __device__ void key_gradient() const {
    const MlstmDims& d = x().d;
    for (int64_t at = threadIdx.x; at < count * d.qk; at += blockDim.x) {
      const int64_t j = at / d.qk;
      const int64_t k = at % d.qk;
      const float* after = a.dstate(c, head, k);
      float past = 0.0F;
      for (int64_t u = 0; u < d.v; ++u) {
        past = fmaf(load_f32(x().v_row(begin + j, head) + u), after[u], past);
      }
      past = (past + after[d.v]) * a.parts().write_weight[head * d.tokens + begin + j];
      row_LK[j * d.qk + k] = past;
      float sum = 0.0F;
      for (int64_t r = j; r < count; ++r) {
        sum = fmaf(dscores[r * chunk() + j], load_f32(x().q_row(begin + r, head) + k), sum);
      }
      store_f32(a.dk + (begin + j) * a.dk_stride + head * d.qk + k, sum + past);
    }
  }

  __device__ void value_gradient() const {
    const MlstmDims& d = x().d;
    const float* inverse = a.of_token(a.layout.inv_scale, head) + begin;
    for (int64_t at = threadIdx.x; at < count * d.v; at += blockDim.x) {
      const int64_t j = at / d.v;
      const int64_t u = at % d.v;
      float sum = 0.0F;
      for (int64_t r = j; r < count; ++r) {
        const float weight = as_operand<T>(scores[r * chunk() + j] * inverse[r]);
        sum = fmaf(weight, load_f32(a.dh_row(begin + r, head) + u), sum);
      }
      float past = 0.0F;
      for (int64_t k = 0; k < d.qk; ++k) {
        past = fmaf(load_f32(x().k_row(begin + j, head) + k), a.dstate(c, head, k)[u], past);
      }
      sum = fmaf(a.parts().write_weight[head * d.tokens + begin + j], past, sum);
      store_f32(a.dv + (begin + j) * a.dv_stride + head * d.v + u, sum);
    }
  }

  // <C' before, dC' after> of the chunk, times the weight of the carry. Every thread gets it.
  __device__ float carried() const {
    __shared__ float partial[kThreads];
    const MlstmDims& d = x().d;
    float sum = 0.0F;
    for (int64_t at = threadIdx.x; at < d.qk * (d.v + 1); at += blockDim.x) {
      const int64_t k = at / (d.v + 1);
      const int64_t u = at % (d.v + 1);
      sum = fmaf(x().states.get(d, c, head, k, u), a.dstate(c, head, k)[u], sum);
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int step = kThreads / 2; step > 0; step /= 2) {
      if (static_cast<int>(threadIdx.x) < step) partial[threadIdx.x] += partial[threadIdx.x + step];
      __syncthreads();
    }
    return partial[0] * a.parts().carry_weight[head * d.chunks + c];
  }

  // W becomes its sums over later rows. df starts as the sum over pairs around a token, di as the
  // sum over pairs that read it.
  __device__ void gate_pairs() const {
    for (int64_t j = threadIdx.x; j < count; j += blockDim.x) {
      float sum = 0.0F;
      for (int64_t r = count - 1; r >= j; --r) {
        sum += decay[r * chunk() + j];
        decay[r * chunk() + j] = sum;
      }
    }
    __syncthreads();
    for (int64_t r = threadIdx.x; r < count; r += blockDim.x) {
      float sum = 0.0F;
      for (int64_t j = 0; j < r; ++j) sum += decay[r * chunk() + j];
      a.df[(begin + r) * x().d.heads + head] = sum;
      a.di[(begin + r) * x().d.heads + head] = decay[r * chunk() + r];
    }
  }

  __device__ void add_reads() const {  // sum_L: q dq through the state
    if (threadIdx.x != 0) return;
    float reads = 0.0F;
    for (int64_t r = count - 1; r >= 0; --r) {
      reads += sum_L[r];
      a.df[(begin + r) * x().d.heads + head] += reads;
    }
  }

  __device__ void add_writes(float carry) const {  // sum_L: k dk through the state
    if (threadIdx.x != 0) return;
    float writes = carry;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t t = begin + r;
      const int64_t index = t * x().d.heads + head;
      const float f = x().f[index];
      const float through = 1.0F / (1.0F + expf(f));
      a.df[index] = x().is_reset(t) ? 0.0F : (a.df[index] + writes) * through;
      a.di[index] += sum_L[r];
      writes += sum_L[r];
    }
  }
};

template <typename T, typename S>
__global__ void inputs_kernel(Backward<T, S> a) {
  __shared__ float sum_L[kMlstmChunkMax];
  const MlstmDims& d = a.x.d;
  float* worker = a.x.scratch + a.layout.worker + blockIdx.x * a.layout.worker_stride;
  for (int64_t piece = blockIdx.x; piece < d.chunks * d.heads; piece += gridDim.x) {
    const Piece<T, S> p{MlstmSpan::of(a.x, piece),
                        a,
                        worker + a.layout.decay,
                        worker + a.layout.scores,
                        worker + a.layout.dscores,
                        worker + a.layout.row_LK,
                        sum_L};
    __syncthreads();  // the piece before may still be read
    p.pairs();
    p.gate_pairs();
    p.query_gradient();
    p.sum_rows(a.x.q, a.x.q_stride);
    p.add_reads();
    p.key_gradient();
    p.sum_rows(a.x.k, a.x.k_stride);
    p.value_gradient();
    p.add_writes(p.carried());
  }
}

template <typename T, typename S>
Backward<T, S> view_of(const MlstmBackwardArgs& args) {
  Backward<T, S> a{};
  a.x = mlstm_view<T, S>(args);
  const MlstmDims& d = a.x.d;
  const spec::MlstmShape shape{d.tokens, d.heads, d.qk, d.v, d.chunk};
  a.layout = spec::mlstm_backward_scratch_layout(shape);
  a.h = mlstm_data<T>(args.h_TNU);
  a.dh = mlstm_data<T>(args.dh_TNU);
  a.dq = mlstm_data<T>(args.dq_TNK);
  a.dk = mlstm_data<T>(args.dk_TNK);
  a.dv = mlstm_data<T>(args.dv_TNU);
  a.di = mlstm_data<float>(args.di_TN);
  a.df = mlstm_data<float>(args.df_TN);
  a.h_stride = args.h_TNU.row_stride;
  a.dh_stride = args.dh_TNU.row_stride;
  a.dq_stride = args.dq_TNK.row_stride;
  a.dk_stride = args.dk_TNK.row_stride;
  a.dv_stride = args.dv_TNU.row_stride;
  return a;
}

template <typename T, typename S>
Status backward(CUstream_st* stream, const MlstmBackwardArgs& args) {
  const Backward<T, S> a = view_of<T, S>(args);
  const MlstmDims& d = a.x.d;
  constexpr const char* kOp = "mlstm_backward";
  const auto heads = static_cast<unsigned>(d.heads);
  SWAX_TRY(launch(kOp, {heads, kThreads, 0, stream}, gates_kernel<T, S>, a));
  SWAX_TRY(
      launch(kOp, {mlstm_state_blocks(d, kThreads), kThreads, 0, stream}, dstates_kernel<T, S>, a));
  return launch(kOp, {mlstm_workers(d), kThreads, 0, stream}, inputs_kernel<T, S>, a);
}

}  // namespace

Status launch_mlstm_backward_simple(CUstream_st* stream, const MlstmBackwardArgs& a) {
  return mlstm_with_types(a.q_TNK, a.states_CNKU1, [&](auto value, auto state) {
    return backward<decltype(value), decltype(state)>(stream, a);
  });
}

}  // namespace swax::cuda
