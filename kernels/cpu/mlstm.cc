// mLSTM forward in two passes: the states before each chunk (pieces: head x columns of the state,
// chunks in order), then all chunks independently. And the one-token step.
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

static_assert(spec::kMlstmWorkersMax >= kComputeThreadsMax);

class Forward {
 public:
  Forward(GemmForm form, const MlstmArgs& args)
      : form_(form),
        a_(args),
        tokens_(args.q_TNK.dims[0]),
        heads_(args.q_TNK.dims[1]),
        qk_(args.q_TNK.dims[2]),
        v_(args.v_TNU.dims[2]),
        chunks_(mlstm_chunks(tokens_, args.chunk)),
        stride_(round_up(args.chunk, kLanes)),
        scale_(1.0F / std::sqrt(static_cast<float>(qk_))),
        layout_(spec::mlstm_scratch_layout({tokens_, heads_, qk_, v_, args.chunk})),
        reset_(args.reset_T.empty() ? nullptr : args.reset_T.u8()) {}

  int64_t chunks() const { return chunks_; }

  // Gates of one head: weights of tokens and of the carried state, m before each chunk.
  void gates(int64_t head) const {
    float* log_forget = part(layout_.log_forget) + head * tokens_;
    log_forget_gates(a_.f_TN, head, log_forget);
    if (!a_.initial_state) a_.m_state_CN.f32()[head] = kMlstmNoPast;
    for (int64_t c = 0; c < chunks_; ++c) {
      const ChunkView view = chunk(c, head);
      const ChunkEnd end =
          chunk_end(view, a_.i_TN, reset_, log_forget, a_.m_state_CN.f32()[c * heads_ + head],
                    part(layout_.write_weight) + head * tokens_ + view.begin);
      a_.m_state_CN.f32()[(c + 1) * heads_ + head] = end.m;
      part(layout_.carry_weight)[head * chunks_ + c] = end.carry_weight;
    }
  }

  // Columns [col, col + cols) of the states of one head; column 0's piece also carries n.
  void states(int64_t head, int64_t col, int64_t cols, int worker) const {
    if (!a_.initial_state) {
      for (int64_t k = 0; k < qk_; ++k) fill_with(state(0, head) + k * (v_ + 1) + col, 0.0F, cols);
      if (col == 0) {
        for (int64_t k = 0; k < qk_; ++k) state(0, head)[k * (v_ + 1) + v_] = 0.0F;
      }
    }
    float* weighted = worker_part(worker) + layout_.row_LK;
    for (int64_t c = 0; c < chunks_; ++c) {
      const ChunkView view = chunk(c, head);
      const float* weight = part(layout_.write_weight) + head * tokens_ + view.begin;
      const float carry = part(layout_.carry_weight)[head * chunks_ + c];
      for (int64_t t = 0; t < view.count; ++t) {
        scale_to(weighted + t * qk_, weight[t], row(a_.k_TNK, view.begin + t, head), qk_);
      }
      const float* before = state(c, head);
      float* after = state(c + 1, head);
      for (int64_t k = 0; k < qk_; ++k) {
        scale_to(after + k * (v_ + 1) + col, carry, before + k * (v_ + 1) + col, cols);
      }
      MatMul x;
      x.a = weighted;
      x.a_stride = qk_;
      x.trans_a = true;
      x.b = row(a_.v_TNU, view.begin, head) + col;
      x.b_stride = a_.v_TNU.row_stride;
      x.c = after + col;
      x.c_stride = v_ + 1;
      x.m = qk_;
      x.n = cols;
      x.k = view.count;
      x.accumulate = true;
      matmul(form_, x);
      if (col == 0) normaliser(before, after, weighted, view.count, carry, worker);
    }
  }

  void outputs(int64_t c, int64_t head, int worker) const {
    const ChunkView view = chunk(c, head);
    float* base = worker_part(worker);
    float* decay = base + layout_.decay;
    float* scores = base + layout_.scores;
    float* read = base + layout_.row_LK;
    float* columns = base + layout_.column;
    float* other_column = columns + std::max(qk_, stride_);
    const float* before = state(c, head);
    float read_log[kMlstmChunkMax];
    float m[kMlstmChunkMax];
    const float* log_forget = part(layout_.log_forget) + head * tokens_;
    read_logs(view, reset_, log_forget, a_.m_state_CN.f32()[c * heads_ + head], read_log);
    decay_matrix(view, a_.i_TN, reset_, log_forget,
                 {.read_log = read_log,
                  .m = m,
                  .find_m = true,
                  .decay = decay,
                  .stride = stride_,
                  .row = columns,
                  .gate = other_column});
    for (int64_t t = 0; t < view.count; ++t) {
      scale_to(read + t * qk_, scale_ * exp1(read_log[t] - m[t]),
               row(a_.q_TNK, view.begin + t, head), qk_);
    }
    score_rows(view, scores, decay, base + layout_.keys_KL);
    weighted_values(view, before, read, scores);
    for (int64_t k = 0; k < qk_; ++k) columns[k] = before[k * (v_ + 1) + v_];
    for (int64_t t = 0; t < view.count; ++t) {
      float den = sum_lanes(stride_, [&](int64_t i, int64_t lanes, F8 sum) {
        return sum + load(scores + t * stride_ + i, lanes);
      });
      den += dot(read + t * qk_, columns, qk_);
      const int64_t index = (view.begin + t) * heads_ + head;
      a_.m_TN.f32()[index] = m[t];
      a_.den_TN.f32()[index] = den;
      const float divisor = std::max(std::abs(den), exp1(-m[t])) + kMlstmEps;
      float* h = row(a_.h_TNU, view.begin + t, head);
      scale_to(h, 1.0F / divisor, h, v_);
    }
  }

 private:
  static float* row(const Tensor& x, int64_t t, int64_t head) {
    return x.f32() + t * x.row_stride + head * x.dims[2];
  }
  float* part(int64_t offset) const { return a_.scratch.f32() + offset; }
  float* worker_part(int worker) const {
    return part(layout_.worker) + worker * layout_.worker_stride;
  }
  float* state(int64_t c, int64_t head) const {
    return a_.states_CNKU1.f32() + (c * heads_ + head) * qk_ * (v_ + 1);
  }
  ChunkView chunk(int64_t c, int64_t head) const {
    const int64_t begin = c * a_.chunk;
    return {begin, std::min(a_.chunk, tokens_ - begin), head};
  }

  // n after = carry n before + sum of the weighted keys.
  void normaliser(const float* before, float* after, const float* weighted, int64_t count,
                  float carry, int worker) const {
    float* sum = worker_part(worker) + layout_.column;
    fill_with(sum, 0.0F, qk_);
    for (int64_t t = 0; t < count; ++t) add_scaled(sum, 1.0F, weighted + t * qk_, qk_);
    for (int64_t k = 0; k < qk_; ++k) {
      const int64_t at = k * (v_ + 1) + v_;
      after[at] = carry * before[at] + sum[k];
    }
  }

  // scores = scale q k^T, times the decay.
  void score_rows(const ChunkView& view, float* scores, const float* decay, float* keys_KL) const {
    transpose({.x = row(a_.k_TNK, view.begin, view.head),
               .x_stride = a_.k_TNK.row_stride,
               .rows = view.count,
               .cols = qk_,
               .factor = scale_,
               .out = keys_KL,
               .out_stride = stride_,
               .width = stride_});
    MatMul x;
    x.a = row(a_.q_TNK, view.begin, view.head);
    x.a_stride = a_.q_TNK.row_stride;
    x.b = keys_KL;
    x.b_stride = stride_;
    x.c = scores;
    x.c_stride = stride_;
    x.m = view.count;
    x.n = stride_;
    x.k = qk_;
    matmul(form_, x);
    for (int64_t j = 0; j < view.count * stride_; j += kLanes) {
      store(scores + j, load(scores + j) * load(decay + j));
    }
  }

  // h = read C + scores V.
  void weighted_values(const ChunkView& view, const float* before, const float* read,
                       const float* scores) const {
    MatMul x;
    x.a = scores;
    x.a_stride = stride_;
    x.b = row(a_.v_TNU, view.begin, view.head);
    x.b_stride = a_.v_TNU.row_stride;
    x.c = row(a_.h_TNU, view.begin, view.head);
    x.c_stride = a_.h_TNU.row_stride;
    x.m = view.count;
    x.n = v_;
    x.k = view.count;
    matmul(form_, x);
    x.a = read;
    x.a_stride = qk_;
    x.b = before;
    x.b_stride = v_ + 1;
    x.k = qk_;
    x.accumulate = true;
    matmul(form_, x);
  }

  GemmForm form_;
  const MlstmArgs& a_;
  int64_t tokens_, heads_, qk_, v_, chunks_, stride_;
  float scale_;
  spec::MlstmScratch layout_;
  const uint8_t* reset_;
};

void step_head(const MlstmStepArgs& a, int64_t head) {
  const int64_t qk = a.q_NK.dims[1];
  const int64_t v = a.v_NU.dims[1];
  const float scale = 1.0F / std::sqrt(static_cast<float>(qk));
  const float* q = a.q_NK.f32() + head * a.q_NK.row_stride;
  const float* k = a.k_NK.f32() + head * a.k_NK.row_stride;
  const float* value = a.v_NU.f32() + head * a.v_NU.row_stride;
  float* state = a.state_NKU1.f32() + head * qk * (v + 1);
  float* h = a.h_NU.f32() + head * a.h_NU.row_stride;
  const float carried = log_sigmoid1(a.f_N.f32()[head]) + a.m_N.f32()[head];
  const float gate = a.i_N.f32()[head];
  const float m = std::max(carried, gate);
  const float keep = exp1(carried - m);
  const float write = exp1(gate - m);
  a.m_N.f32()[head] = m;
  fill_with(h, 0.0F, v);
  float den = 0.0F;
  for (int64_t i = 0; i < qk; ++i) {
    float* row = state + i * (v + 1);
    const F8 vkeep = splat(keep);
    const F8 vwrite = splat(write * k[i]);
    const F8 read = splat(scale * q[i]);
    for_lanes(v, [&](int64_t j, int64_t lanes) {
      const F8 c = fma(vwrite, load(value + j, lanes), vkeep * load(row + j, lanes));
      store(row + j, c, lanes);
      store(h + j, fma(read, c, load(h + j, lanes)), lanes);
    });
    row[v] = keep * row[v] + write * k[i];
    den += scale * q[i] * row[v];
  }
  scale_to(h, 1.0F / (std::max(std::abs(den), exp1(-m)) + kMlstmEps), h, v);
}

}  // namespace

Status CpuBackend::mlstm(Stream&, const MlstmArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("mlstm", {&a.q_TNK, &a.k_TNK, &a.v_TNU, &a.i_TN, &a.f_TN, &a.reset_T, &a.h_TNU,
                               &a.states_CNKU1, &a.m_state_CN, &a.m_TN, &a.den_TN, &a.scratch}));
  const Forward forward(form_, a);
  const int64_t heads = a.q_TNK.dims[1];
  const int64_t v = a.v_TNU.dims[2];
  pool_.run(heads, [&](int64_t head, int) { forward.gates(head); });
  const int64_t blocks = div_ceil(v, spec::kMlstmStateColumns);
  pool_.run(heads * blocks, [&](int64_t piece, int worker) {
    const int64_t col = piece % blocks * spec::kMlstmStateColumns;
    forward.states(piece / blocks, col, std::min(spec::kMlstmStateColumns, v - col), worker);
  });
  pool_.run(forward.chunks() * heads, [&](int64_t piece, int worker) {
    forward.outputs(piece / heads, piece % heads, worker);
  });
  return ok();
}

Status CpuBackend::mlstm_step(Stream&, const MlstmStepArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("mlstm_step",
                     {&a.q_NK, &a.k_NK, &a.v_NU, &a.i_N, &a.f_N, &a.h_NU, &a.state_NKU1, &a.m_N}));
  pool_.run(a.q_NK.dims[0], [&](int64_t head, int) { step_head(a, head); });
  return ok();
}

}  // namespace swax::cpu
