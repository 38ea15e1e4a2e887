// mLSTM backward (model-spec 2.4) in three jobs: gates and row factors per head, gradients of the
// states against the time (pieces: head x columns), then all chunks independently.
//
// The gradient of a log forget gate is formed without cancellation. With W_ti = dP_ti P_ti (the
// gradient of the log weight of token i at token t), read_t that of the state's log weight at t and
// write_i that of token i's log weight in the next state:
//   dlf_j = sum_{t>=j} sum_{i<j} W_ti + sum_{t>=j} read_t + sum_{i<j} write_i + carry <C', dC'>
// which equals the suffix sums of q dq - k dk plus <C'_k, dC'_k> of the specification.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/mlstm_chunk.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"
#include "kernels/spec/mlstm_scratch.h"
#include "proto/base/ids.h"

namespace swax::cpu {
namespace {

class Backward {
 public:
  Backward(GemmForm form, const MlstmBackwardArgs& args)
      : form_(form),
        a_(args),
        tokens_(args.q_TNK.dims[0]),
        heads_(args.q_TNK.dims[1]),
        qk_(args.q_TNK.dims[2]),
        v_(args.v_TNU.dims[2]),
        chunks_(mlstm_chunks(tokens_, args.chunk)),
        stride_(round_up(args.chunk, kLanes)),
        scale_(1.0F / std::sqrt(static_cast<float>(qk_))),
        layout_(spec::mlstm_backward_scratch_layout({tokens_, heads_, qk_, v_, args.chunk})),
        reset_(args.reset_T.empty() ? nullptr : args.reset_T.u8()) {}

  int64_t chunks() const { return chunks_; }

  void gates(int64_t head) const {
    float* log_forget = head_part(layout_.log_forget, head);
    log_forget_gates(a_.f_TN, head, log_forget);
    for (int64_t c = 0; c < chunks_; ++c) {
      const ChunkView view = chunk(c, head);
      const float m_before = a_.m_state_CN.f32()[c * heads_ + head];
      const ChunkEnd end = chunk_end(view, a_.i_TN, reset_, log_forget, m_before,
                                     head_part(layout_.write_weight, head) + view.begin);
      part(layout_.carry_weight)[head * chunks_ + c] = end.carry_weight;
      float* read = head_part(layout_.read_weight, head) + view.begin;
      read_logs(view, reset_, log_forget, m_before, read);
      for (int64_t t = 0; t < view.count; ++t) {
        read[t] = exp1(read[t] - a_.m_TN.f32()[(view.begin + t) * heads_ + head]);
      }
    }
    for (int64_t t = 0; t < tokens_; ++t) {
      const float m = a_.m_TN.f32()[t * heads_ + head];
      const float den = a_.den_TN.f32()[t * heads_ + head];
      const float floor = exp1(-m);
      const float inverse = 1.0F / (std::max(std::abs(den), floor) + kMlstmEps);
      const float along = dot(row(a_.dh_TNU, t, head), row(a_.h_TNU, t, head), v_) * inverse;
      head_part(layout_.inv_scale, head)[t] = inverse;
      // A row at its floor does not depend on den. NaN stays NaN.
      head_part(layout_.gamma, head)[t] =
          std::abs(den) <= floor ? 0.0F : (den > 0.0F ? -along : along);
    }
  }

  // Gradients of columns [col, col + cols) of the states of one head, last chunk first.
  void states(int64_t head, int64_t col, int64_t cols, int worker) const {
    float* last = dstate(chunks_ - 1, head);
    for (int64_t k = 0; k < qk_; ++k) {
      fill_with(last + k * (v_ + 1) + col, 0.0F, cols);
      if (col == 0) last[k * (v_ + 1) + v_] = 0.0F;
    }
    float* read = worker_part(worker) + layout_.row_LK;
    float* grad = worker_part(worker) + layout_.grad_LU;
    for (int64_t c = chunks_ - 1; c > 0; --c) {
      const ChunkView view = chunk(c, head);
      const float carry = part(layout_.carry_weight)[head * chunks_ + c];
      for (int64_t t = 0; t < view.count; ++t) {
        const int64_t token = view.begin + t;
        scale_to(read + t * qk_, scale_ * head_part(layout_.read_weight, head)[token],
                 row(a_.q_TNK, token, head), qk_);
        scale_to(grad + t * cols, head_part(layout_.inv_scale, head)[token],
                 row(a_.dh_TNU, token, head) + col, cols);
      }
      const float* after = dstate(c, head);
      float* before = dstate(c - 1, head);
      for (int64_t k = 0; k < qk_; ++k) {
        scale_to(before + k * (v_ + 1) + col, carry, after + k * (v_ + 1) + col, cols);
      }
      MatMul x = product(read, qk_, grad, cols, before + col, v_ + 1);
      x.trans_a = true;
      x.m = qk_;
      x.n = cols;
      x.k = view.count;
      x.accumulate = true;
      matmul(form_, x);
      if (col != 0) continue;
      float* sum = worker_part(worker) + layout_.column;
      fill_with(sum, 0.0F, qk_);
      for (int64_t t = 0; t < view.count; ++t) {
        add_scaled(sum, head_part(layout_.gamma, head)[view.begin + t], read + t * qk_, qk_);
      }
      for (int64_t k = 0; k < qk_; ++k) {
        const int64_t at = k * (v_ + 1) + v_;
        before[at] = carry * after[at] + sum[k];
      }
    }
  }

  void inputs(int64_t c, int64_t head, int worker) const {
    const ChunkView view = chunk(c, head);
    float read_sum[kMlstmChunkMax];   // q dq of the part through the state
    float write_sum[kMlstmChunkMax];  // k dk of the part through the state
    Buffers b = buffers(worker);
    weights(view, b);
    query_state_part(view, state(c, head), b, read_sum);
    key_state_part(view, dstate(c, head), b, write_sum);
    MatMul dq = product(b.dscores, stride_, row(a_.k_TNK, view.begin, head), a_.k_TNK.row_stride,
                        row(a_.dq_TNK, view.begin, head), a_.dq_TNK.row_stride);
    dq.m = view.count;
    dq.n = qk_;
    dq.k = view.count;
    dq.accumulate = true;
    matmul(form_, dq);
    MatMul dk = dq;
    dk.trans_a = true;
    dk.b = row(a_.q_TNK, view.begin, head);
    dk.b_stride = a_.q_TNK.row_stride;
    dk.c = row(a_.dk_TNK, view.begin, head);
    dk.c_stride = a_.dk_TNK.row_stride;
    matmul(form_, dk);
    value_gradient(view, dstate(c, head), b);
    const float carry = part(layout_.carry_weight)[head * chunks_ + c];
    const float carried = carry * dot(state(c, head), dstate(c, head), qk_ * (v_ + 1));
    gate_gradients(view, b, read_sum, write_sum, carried);
  }

 private:
  struct Buffers {
    float* decay;
    float* scores;
    float* dscores;
    float* grad_LU;
    float* row_LK;
    float* keys_KL;    // k^T, then results of products with states
    float* values_UL;  // v^T
    float* grad_UL;    // grad_LU^T
    float* column;
  };
  Buffers buffers(int worker) const {
    float* base = worker_part(worker);
    return {base + layout_.decay,     base + layout_.scores,  base + layout_.dscores,
            base + layout_.grad_LU,   base + layout_.row_LK,  base + layout_.keys_KL,
            base + layout_.values_UL, base + layout_.grad_UL, base + layout_.column};
  }
  static float* row(const Tensor& x, int64_t t, int64_t head) {
    return x.f32() + t * x.row_stride + head * x.dims[2];
  }
  float* part(int64_t offset) const { return a_.scratch.f32() + offset; }
  float* head_part(int64_t offset, int64_t head) const { return part(offset) + head * tokens_; }
  float* worker_part(int worker) const {
    return part(layout_.worker) + worker * layout_.worker_stride;
  }
  const float* state(int64_t c, int64_t head) const {
    return a_.states_CNKU1.f32() + (c * heads_ + head) * qk_ * (v_ + 1);
  }
  float* dstate(int64_t c, int64_t head) const {
    return part(layout_.dstates) + (c * heads_ + head) * qk_ * (v_ + 1);
  }
  ChunkView chunk(int64_t c, int64_t head) const {
    const int64_t begin = c * a_.chunk;
    return {begin, std::min(a_.chunk, tokens_ - begin), head};
  }
  static MatMul product(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                        float* c, int64_t c_stride) {
    MatMul x;
    x.a = a;
    x.a_stride = a_stride;
    x.b = b;
    x.b_stride = b_stride;
    x.c = c;
    x.c_stride = c_stride;
    return x;
  }

  // grad_LU = dh / D; scores = P; dscores = scale dP decay (the gradient of q k); decay = W = dP P.
  void weights(const ChunkView& view, const Buffers& b) const {
    float m[kMlstmChunkMax];
    for (int64_t t = 0; t < view.count; ++t) {
      m[t] = a_.m_TN.f32()[(view.begin + t) * heads_ + view.head];
      scale_to(b.grad_LU + t * v_, head_part(layout_.inv_scale, view.head)[view.begin + t],
               row(a_.dh_TNU, view.begin + t, view.head), v_);
    }
    decay_matrix(view, a_.i_TN, reset_, head_part(layout_.log_forget, view.head),
                 {.read_log = nullptr,
                  .m = m,
                  .find_m = false,
                  .decay = b.decay,
                  .stride = stride_,
                  .row = b.column,
                  .gate = b.column + std::max(qk_, stride_)});
    const float* k = row(a_.k_TNK, view.begin, view.head);
    const float* v = row(a_.v_TNU, view.begin, view.head);
    to_columns(k, a_.k_TNK.row_stride, view.count, qk_, scale_, b.keys_KL);
    to_columns(v, a_.v_TNU.row_stride, view.count, v_, 1.0F, b.values_UL);
    to_columns(b.grad_LU, v_, view.count, v_, 1.0F, b.grad_UL);
    MatMul x = product(row(a_.q_TNK, view.begin, view.head), a_.q_TNK.row_stride, b.keys_KL,
                       stride_, b.scores, stride_);
    x.m = view.count;
    x.n = stride_;
    x.k = qk_;
    matmul(form_, x);
    x = product(b.grad_LU, v_, b.values_UL, stride_, b.dscores, stride_);
    x.m = view.count;
    x.n = stride_;
    x.k = v_;
    matmul(form_, x);
    const F8 factor = splat(scale_);
    for (int64_t t = 0; t < view.count; ++t) {
      const F8 gamma = splat(head_part(layout_.gamma, view.head)[view.begin + t]);
      for (int64_t j = t * stride_; j < (t + 1) * stride_; j += kLanes) {
        const F8 decay = load(b.decay + j);
        const F8 p = load(b.scores + j) * decay;
        const F8 dp = load(b.dscores + j) + gamma;
        store(b.scores + j, p);
        store(b.dscores + j, dp * factor * decay);
        store(b.decay + j, dp * p);
      }
    }
  }

  // out[column, t] = factor * x[t, column], rows of stride_ elements.
  void to_columns(const float* x, int64_t x_stride, int64_t rows, int64_t cols, float factor,
                  float* out) const {
    transpose({.x = x,
               .x_stride = x_stride,
               .rows = rows,
               .cols = cols,
               .factor = factor,
               .out = out,
               .out_stride = stride_,
               .width = stride_});
  }

  // dq = scale read_weight (grad C'^T + gamma n)
  void query_state_part(const ChunkView& view, const float* before, const Buffers& b,
                        float* read_sum) const {
    times_state(view, before, b.grad_UL, b.keys_KL, a_.dq_TNK);
    for (int64_t k = 0; k < qk_; ++k) b.column[k] = before[k * (v_ + 1) + v_];
    for (int64_t t = 0; t < view.count; ++t) {
      const int64_t token = view.begin + t;
      const float weight = scale_ * head_part(layout_.read_weight, view.head)[token];
      const float gamma = head_part(layout_.gamma, view.head)[token];
      read_sum[t] = finish_row(row(a_.dq_TNK, token, view.head), weight, gamma, b.column,
                               row(a_.q_TNK, token, view.head));
    }
  }

  // dk = write_weight (V' dC'^T)
  void key_state_part(const ChunkView& view, const float* dafter, const Buffers& b,
                      float* write_sum) const {
    times_state(view, dafter, b.values_UL, b.keys_KL, a_.dk_TNK);
    for (int64_t k = 0; k < qk_; ++k) b.column[k] = dafter[k * (v_ + 1) + v_];
    for (int64_t t = 0; t < view.count; ++t) {
      const int64_t token = view.begin + t;
      const float weight = head_part(layout_.write_weight, view.head)[token];
      write_sum[t] = finish_row(row(a_.dk_TNK, token, view.head), weight, 1.0F, b.column,
                                row(a_.k_TNK, token, view.head));
    }
  }

  // grad = weight (grad + gamma n); the result is grad . x.
  float finish_row(float* grad, float weight, float gamma, const float* n, const float* x) const {
    const F8 w = splat(weight);
    const F8 g = splat(gamma);
    return sum_lanes(qk_, [&](int64_t i, int64_t lanes, F8 sum) {
      const F8 y = w * fma(g, load(n + i, lanes), load(grad + i, lanes));
      store(grad + i, y, lanes);
      return fma(y, load(x + i, lanes), sum);
    });
  }

  // Rows of out = columns of columns_UL times the transposed value columns of a state; formed
  // transposed, [K, L8], so that the state is read along its rows.
  void times_state(const ChunkView& view, const float* st, const float* columns_UL, float* temp_KL,
                   const Tensor& out) const {
    MatMul x = product(st, v_ + 1, columns_UL, stride_, temp_KL, stride_);
    x.m = qk_;
    x.n = stride_;
    x.k = v_;
    matmul(form_, x);
    transpose({.x = temp_KL,
               .x_stride = stride_,
               .rows = qk_,
               .cols = view.count,
               .out = row(out, view.begin, view.head),
               .out_stride = out.row_stride,
               .width = qk_});
  }

  // dv = P^T grad + (write_weight k) dC
  void value_gradient(const ChunkView& view, const float* dafter, const Buffers& b) const {
    float* dv = row(a_.dv_TNU, view.begin, view.head);
    MatMul x = product(b.scores, stride_, b.grad_LU, v_, dv, a_.dv_TNU.row_stride);
    x.trans_a = true;
    x.m = view.count;
    x.n = v_;
    x.k = view.count;
    matmul(form_, x);
    const float* weight = head_part(layout_.write_weight, view.head) + view.begin;
    for (int64_t t = 0; t < view.count; ++t) {
      scale_to(b.row_LK + t * qk_, weight[t], row(a_.k_TNK, view.begin + t, view.head), qk_);
    }
    x = product(b.row_LK, qk_, dafter, v_ + 1, dv, a_.dv_TNU.row_stride);
    x.m = view.count;
    x.n = v_;
    x.k = qk_;
    x.accumulate = true;
    matmul(form_, x);
  }

  void gate_gradients(const ChunkView& view, const Buffers& b, const float* read_sum,
                      const float* write_sum, float carried) const {
    float* later = b.column;  // later[i] = sum of W_ti over t >= the current token
    fill_with(later, 0.0F, stride_);
    float dlf[kMlstmChunkMax];
    float reads = 0.0F;
    for (int64_t t = view.count - 1; t >= 0; --t) {
      for (int64_t i = 0; i < stride_; i += kLanes) {
        store(later + i, load(later + i) + load(b.decay + t * stride_ + i));
      }
      const float pairs = sum_lanes(
          t, [&](int64_t i, int64_t lanes, F8 sum) { return sum + load(later + i, lanes); });
      reads += read_sum[t];
      dlf[t] = pairs + reads;
    }
    float writes = carried;
    for (int64_t t = 0; t < view.count; ++t) {
      const int64_t index = (view.begin + t) * heads_ + view.head;
      const bool reset = reset_ != nullptr && reset_[view.begin + t] != 0;
      const float through = sigmoid1(-a_.f_TN.f32()[index]);
      a_.df_TN.f32()[index] = reset ? 0.0F : (dlf[t] + writes) * through;
      a_.di_TN.f32()[index] = later[t] + write_sum[t];
      writes += write_sum[t];
    }
  }

  GemmForm form_;
  const MlstmBackwardArgs& a_;
  int64_t tokens_, heads_, qk_, v_, chunks_, stride_;
  float scale_;
  spec::MlstmBackwardScratch layout_;
  const uint8_t* reset_;
};

}  // namespace

Status CpuBackend::mlstm_backward(Stream&, const MlstmBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("mlstm_backward",
                     {&a.q_TNK, &a.k_TNK, &a.v_TNU, &a.i_TN, &a.f_TN, &a.reset_T, &a.h_TNU,
                      &a.states_CNKU1, &a.m_state_CN, &a.m_TN, &a.den_TN, &a.dh_TNU, &a.dq_TNK,
                      &a.dk_TNK, &a.dv_TNU, &a.di_TN, &a.df_TN, &a.scratch}));
  const Backward backward(form_, a);
  const int64_t heads = a.q_TNK.dims[1];
  const int64_t v = a.v_TNU.dims[2];
  pool_.run(heads, [&](int64_t head, int) { backward.gates(head); });
  const int64_t blocks = div_ceil(v, spec::kMlstmStateColumns);
  pool_.run(heads * blocks, [&](int64_t piece, int worker) {
    const int64_t col = piece % blocks * spec::kMlstmStateColumns;
    backward.states(piece / blocks, col, std::min(spec::kMlstmStateColumns, v - col), worker);
  });
  pool_.run(backward.chunks() * heads, [&](int64_t piece, int worker) {
    backward.inputs(piece / heads, piece % heads, worker);
  });
  return ok();
}

}  // namespace swax::cpu
