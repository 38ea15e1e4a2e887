// Where the parts of the mLSTM scratch lie: offsets in f32 elements, each part aligned to 64 bytes.
// Both sizes follow from the shape alone; the per-worker parts exist as often as workers can be
// busy at once, so any number of compute threads fits. Threads: pure functions.
#pragma once

#include <cstdint>

namespace swax::spec {

constexpr int64_t kMlstmWorkersMax = 64;     // the most compute threads of a backend
constexpr int64_t kMlstmStateColumns = 128;  // columns of the state that one piece carries along

struct MlstmShape {
  int64_t tokens, heads, qk, v, chunk;
};

// Parts with one value per (head, token) are head major: [N, T].
struct MlstmScratch {
  int64_t log_forget;    // [N, T] logsigmoid(f)
  int64_t write_weight;  // [N, T] e^{a - m_k}: weight of token t in the state after its chunk
  int64_t carry_weight;  // [N, C] weight of the state before a chunk in the one after it
  int64_t worker;        // first worker's part
  int64_t worker_stride;
  int64_t total;
  // Inside a worker's part.
  int64_t decay;    // [L, L8] e^{logD - m}, L8 = L rounded up to lanes
  int64_t scores;   // [L, L8]
  int64_t row_LK;   // [L, K]
  int64_t keys_KL;  // [K, L8]
  int64_t column;   // [max(K, L8)] twice
};
MlstmScratch mlstm_scratch_layout(const MlstmShape& s);

struct MlstmBackwardScratch {
  int64_t log_forget;
  int64_t write_weight;
  int64_t read_weight;   // [N, T] e^{binter - m_t}: weight of the state before the chunk at token t
  int64_t inv_scale;     // [N, T] 1 / (max(|den|, e^{-m}) + eps)
  int64_t gamma;         // [N, T] gradient of den
  int64_t carry_weight;  // [N, C]
  int64_t dstates;       // [C, N, K, U + 1] gradient of the state after each chunk
  int64_t worker;
  int64_t worker_stride;
  int64_t total;
  int64_t decay;      // [L, L8]
  int64_t scores;     // [L, L8] P
  int64_t dscores;    // [L, L8]
  int64_t grad_LU;    // [L, U] dh / D
  int64_t row_LK;     // [L, K]
  int64_t keys_KL;    // [K, L8]
  int64_t values_UL;  // [U, L8]
  int64_t grad_UL;    // [U, L8]
  int64_t column;     // [max(K, L8)] four times
};
MlstmBackwardScratch mlstm_backward_scratch_layout(const MlstmShape& s);

}  // namespace swax::spec
