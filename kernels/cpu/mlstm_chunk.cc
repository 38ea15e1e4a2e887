#include "kernels/cpu/mlstm_chunk.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"

namespace swax::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

bool is_reset(const uint8_t* reset_T, int64_t t) { return reset_T != nullptr && reset_T[t] != 0; }

}  // namespace

void log_forget_gates(const Tensor& f_TN, int64_t head, float* out_T) {
  const int64_t tokens = f_TN.dims[0];
  const int64_t heads = f_TN.dims[1];
  for (int64_t t = 0; t < tokens; ++t) out_T[t] = f_TN.f32()[t * heads + head];
  for_lanes(tokens, [&](int64_t i, int64_t lanes) {
    store(out_T + i, log_sigmoid8(load(out_T + i, lanes)), lanes);
  });
}

ChunkEnd chunk_end(const ChunkView& c, const Tensor& i_TN, const uint8_t* reset_T,
                   const float* log_forget_T, float m_before, float* write_weight) {
  const float* gate = i_TN.f32() + c.begin * i_TN.dims[1] + c.head;
  float suffix = 0.0F;  // sum of the log gates behind token t
  float top = -kInf;
  for (int64_t t = c.count - 1; t >= 0; --t) {
    write_weight[t] = suffix + gate[t * i_TN.dims[1]];
    top = std::max(top, write_weight[t]);
    suffix = is_reset(reset_T, c.begin + t) ? -kInf : suffix + log_forget_T[c.begin + t];
  }
  const float carried = suffix + m_before;
  ChunkEnd end;
  end.m = std::max(carried, top);
  end.carry_weight = exp1(carried - end.m);
  const F8 shift = splat(end.m);
  for_lanes(c.count, [&](int64_t i, int64_t lanes) {
    store(write_weight + i, exp8(load(write_weight + i, lanes) - shift), lanes);
  });
  return end;
}

void read_logs(const ChunkView& c, const uint8_t* reset_T, const float* log_forget_T,
               float m_before, float* out) {
  float prefix = 0.0F;
  for (int64_t t = 0; t < c.count; ++t) {
    prefix = is_reset(reset_T, c.begin + t) ? -kInf : prefix + log_forget_T[c.begin + t];
    out[t] = prefix + m_before;
  }
}

void decay_matrix(const ChunkView& c, const Tensor& i_TN, const uint8_t* reset_T,
                  const float* log_forget_T, const DecayArgs& a) {
  const int64_t heads = i_TN.dims[1];
  for (int64_t j = 0; j < a.stride; ++j) {
    a.gate[j] = j < c.count ? i_TN.f32()[(c.begin + j) * heads + c.head] : 0.0F;
  }
  fill_with(a.row, -kInf, a.stride);
  for (int64_t t = 0; t < c.count; ++t) {
    // row[j]: sum of the log gates of tokens j + 1 .. t.
    if (is_reset(reset_T, c.begin + t)) {
      fill_with(a.row, -kInf, t);
    } else {
      const F8 gate = splat(log_forget_T[c.begin + t]);
      for (int64_t j = 0; j < t; j += kLanes) store(a.row + j, load(a.row + j) + gate);
    }
    a.row[t] = 0.0F;
    float* out = a.decay + t * a.stride;
    F8 top = splat(-kInf);
    for (int64_t j = 0; j < a.stride; j += kLanes) {
      const F8 log_weight = load(a.row + j) + load(a.gate + j);
      store(out + j, log_weight);
      top = max8(log_weight, top);
    }
    if (a.find_m) a.m[t] = std::max(a.read_log[t], max_lanes(top));
    const F8 shift = splat(a.m[t]);
    for (int64_t j = 0; j < a.stride; j += kLanes) store(out + j, exp8(load(out + j) - shift));
  }
}

}  // namespace swax::cpu
