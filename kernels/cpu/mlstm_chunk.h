// Gate arithmetic of one chunk of one mLSTM head (model-spec 2.3). Sums of log gates are built by
// adding one gate at a time, never as differences of longer sums, and never cross a chunk or a
// border. Threads: pure functions.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace swax::cpu {

// Tokens [begin, begin + count) of head `head`.
struct ChunkView {
  int64_t begin;
  int64_t count;
  int64_t head;
};

// out[t] = logsigmoid(f_TN[t, head]) for every token.
void log_forget_gates(const Tensor& f_TN, int64_t head, float* out_T);

struct ChunkEnd {
  float m;             // running maximum after the chunk
  float carry_weight;  // of the state before the chunk
};
// Weights of the tokens in the state after the chunk: write_weight[t - begin] = e^{a_t - m}.
ChunkEnd chunk_end(const ChunkView& c, const Tensor& i_TN, const uint8_t* reset_T,
                   const float* log_forget_T, float m_before, float* write_weight);

// Log weight of the state before the chunk at each of its tokens: sum of log gates + m_before,
// -inf behind a border.
void read_logs(const ChunkView& c, const uint8_t* reset_T, const float* log_forget_T,
               float m_before, float* out);

// decay[t, j] = e^{logD_tj - m_t}, 0 where j is later or in another document; rows of `stride`
// (lanes) elements. With find_m the maximum over the row and read_log[t] is written to m first,
// else m is given. row: `stride` elements of scratch, and gate likewise (holds the input gates).
struct DecayArgs {
  const float* read_log;
  float* m;
  bool find_m;
  float* decay;
  int64_t stride;
  float* row;
  float* gate;
};
void decay_matrix(const ChunkView& c, const Tensor& i_TN, const uint8_t* reset_T,
                  const float* log_forget_T, const DecayArgs& a);

}  // namespace swax::cpu
