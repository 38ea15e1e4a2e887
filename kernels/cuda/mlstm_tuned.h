// The mLSTM cell, the tuned form: bf16 with bf16 states, 256 / 512, chunks of 256, tensor cores and
// tile copies of sm_90a. Internal to kernels/cuda.
//   gates (per token weights, per chunk sums) -> states before each chunk, chunks in order -> all
//   chunks at once: rows of h, or of dv, dq, dk
// The weight of a pair inside a chunk is 2^{row_log[t] + column_log[j]} for start[t] <= j <= t.
// Sums of log gates are f64: near the pair's own tokens a weight is the difference of two large
// sums.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/mlstm.h"

namespace swax::cuda {

constexpr int kMlstmQk = 256;
constexpr int kMlstmV = 512;
constexpr int kMlstmChunk = 256;
constexpr int kMlstmStateSide = 64;  // rows and columns of a block's part of a state
constexpr int kMlstmCarriedParts =   // of a state, one for each warp of these blocks
    kMlstmQk / kMlstmStateSide * (kMlstmV / kMlstmStateSide) * 4;
// Tiles of 128 queries x 128 keys of a chunk that are not empty: queries of half a with keys of
// half b <= a is tile a + b.
constexpr int kMlstmTiles = 3;
constexpr int kMlstmPairParts = kMlstmChunk / 16;  // queries of a chunk, 16 for each warp

// A log2 as a whole number and a rest of at most 1/2. Whole parts add exactly, so the sum of two
// logs that almost cancel keeps the accuracy of the rests.
struct MlstmLog {
  float whole;
  float rest;
};

// Device pointers of one call. Parts with one value per (head, token) are [N, T].
struct MlstmTuned {
  int tokens, heads, chunks;
  float scale;
  const float* i;  // [T, N], as f, m, den, di, df
  const float* f;
  const uint8_t* reset;  // null: no borders
  float* m_state;        // [C + 1, N]
  float* m;
  float* den;
  __nv_bfloat16* states;  // [C + 1, N, K, U]
  float* n;               // [C + 1, N, K]
  double* prefix;         // sum of log forget gates of the chunk up to the token, its segment alone
  double* column;         // input gate minus prefix
  double* column_max;     // its maximum over the segment up to the token
  int* start;             // first token of the segment inside the chunk; -1: also the past is seen
  MlstmLog* row_log;      // prefix minus m, times log2(e)
  MlstmLog* column_log;   // column times log2(e)
  float* read_weight;     // of the state before the chunk, scale included
  float* write_weight;    // in the state after the chunk
  double* sum;            // [N, C] of log gates, -inf behind a border
  double* top;            // [N, C] largest log weight of a token in the state after the chunk
  float* carry_weight;    // [N, C]
  float* dn;  // [C, N, K] gradient of n after each chunk; forward: what a chunk adds to n
  // Backward alone.
  float* inverse;          // 1 / (max(|den|, e^{-m}) + eps)
  float* gamma;            // gradient of den
  double* query_pairs;     // [2, N, T] q dq inside the chunk, parts by halves of its keys
  double* key_pairs;       // [kMlstmPairParts, N, T] k dk inside the chunk, parts by their queries
  float* query_past;       // q dq through the state
  float* key_past;         // k dk through the state
  float* carried;          // [N, C, kMlstmCarriedParts] parts of <C before, dC after>
  __nv_bfloat16* dstates;  // [C, N, K, U] gradient of the state after each chunk
  __nv_bfloat16* pairs;    // [C, N, kMlstmTiles, 128, 128] P / D inside a chunk, queries by keys
  __nv_bfloat16* pair_slopes;  // the same of dS
  float* di;
  float* df;
};

// Decided by shape, dtype and alignment alone.
bool mlstm_tuned_takes(const MlstmArgs& a);
bool mlstm_tuned_takes(const MlstmBackwardArgs& a);
Status launch_mlstm_tuned(CUstream_st* stream, const MlstmArgs& a);
Status launch_mlstm_backward_tuned(CUstream_st* stream, const MlstmBackwardArgs& a);

// A bf16 [T, N, width] view with a row stride.
struct MlstmRows {
  __nv_bfloat16* data;
  int64_t stride;
};

// Everything per token and chunk, and `weighted`: k times its write weight (forward), in rows of
// 256. initial_state: entry 0 of the states is given.
Status launch_mlstm_gates(CUstream_st* stream, const MlstmTuned& x, MlstmRows k, MlstmRows weighted,
                          bool initial_state);
// The same with m given, inverse, gamma, and `weighted`: q times its read weight and inverse.
Status launch_mlstm_gates_backward(CUstream_st* stream, const MlstmTuned& x, MlstmRows q,
                                   MlstmRows h, MlstmRows dh, MlstmRows weighted);
// di and df, once the parts of q dq and k dk are there.
Status launch_mlstm_gate_gradients(CUstream_st* stream, const MlstmTuned& x);

// States, n (from what the chunks add, in x.dn) from `weighted` (keys, or queries in the backward
// pass) and `values` (v, or dh). Backward: carried too.
Status launch_mlstm_states(CUstream_st* stream, const MlstmTuned& x, const Tensor& weighted,
                           const Tensor& values, bool backward, bool initial_state);
Status launch_mlstm_values(CUstream_st* stream, const MlstmTuned& x, const Tensor& q,
                           const Tensor& k, const Tensor& v, const Tensor& h);
// pairs, pair_slopes, query_pairs, key_pairs.
Status launch_mlstm_pairs(CUstream_st* stream, const MlstmTuned& x, const Tensor& q,
                          const Tensor& k, const Tensor& dh, const Tensor& v);
// dq, dk, dv; query_past, key_past.
Status launch_mlstm_gradients(CUstream_st* stream, const MlstmTuned& x, const MlstmBackwardArgs& a);

}  // namespace swax::cuda
