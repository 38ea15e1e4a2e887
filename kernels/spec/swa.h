// Causal sliding-window attention. Key j is visible to query t iff t - window < j <= t and j >=
// doc_start_T[t]; `window` counts keys, the query's own included, and changes per step (run-time
// argument); window >= T is full causal attention. o_t = sum_j p_tj v_j, p = softmax(scale q_t k_j)
// in f32 with online maximum; lse_TH saved (natural log). Query head h reads key/value head h / (H
// / G). Source: arXiv 2307.08691 (backward with band limits), model-spec 4. Backward, no atomics:
// delta_t = do_t . o_t; dS = P (dP - delta); dq, dk, dv written. A key head adds its query heads in
// rising order. doc_start_T i32: index of the first token of t's document inside this sequence (0
// when it began before); empty: no borders. f32 on the CPU, q/k/v/o [T,H or G,E]. Bounds: K =
// min(window, T) + E, c = 4 forward, 8 backward, for scores of order 1 (a score is an exponent: its
// rounding counts absolutely). A query that sees itself alone gives exact zeros in dq, dk.
#pragma once

#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax {

struct SwaArgs {
  Tensor q_THE;
  Tensor k_TGE;
  Tensor v_TGE;
  Tensor doc_start_T;  // i32 or empty
  Tensor o_THE;
  Tensor lse_TH;
  int64_t window = 0;
  float scale = 0.0F;
};
struct SwaBackwardArgs {
  Tensor q_THE;
  Tensor k_TGE;
  Tensor v_TGE;
  Tensor doc_start_T;
  Tensor o_THE;
  Tensor lse_TH;
  Tensor do_THE;
  Tensor dq_THE;
  Tensor dk_TGE;
  Tensor dv_TGE;
  Tensor scratch;  // f32, swa_backward_scratch() elements
  int64_t window = 0;
  float scale = 0.0F;
  // Both or none: dq and dk leave turned back, as kernels/spec/rope.h does with `inverse`, so that
  // they are the gradients of what RoPE took. Bounds: K = 2, c = 2 more.
  Tensor cos_TP;
  Tensor sin_TP;
};
// One query at `position` against a ring of the last keys: slot p % ring of k_RGE, v_RGE holds
// position p. Attends to min(position + 1, window) keys, window <= ring. Keys are stored after
// RoPE.
struct SwaDecodeArgs {
  Tensor q_HE;
  Tensor k_RGE;
  Tensor v_RGE;
  Tensor o_HE;
  int64_t position = 0;
  int64_t doc_start = 0;
  int64_t window = 0;
  float scale = 0.0F;
};
// The least that the backward pass takes, f32 elements: delta_TH.
constexpr int64_t swa_backward_scratch(int64_t tokens, int64_t heads) { return tokens * heads; }
// What a trainer gives it, whatever the window. Where the tuned form of a GPU may apply (bf16, head
// size 128), besides delta_TH room for dS in bf16, in tiles of 64 x 64: for all heads and windows
// of up to kSwaKeptWindow keys, at most kSwaKeptMax bytes. With it dS is formed once for dq, dk and
// dv, for as many key heads at a time as there is room for; in wider windows, or where there is
// none for one key head, dS is formed twice, which gives the same bits.
int64_t swa_backward_scratch(const Tensor& q_THE);
constexpr int64_t kSwaKeptTile = 64;
// Kept dS is written and read once: 15 % less time at w 128, more at w 2048, where the writes slow
// the products down by more than those saved (H200, 16,384 tokens, 16 heads).
constexpr int64_t kSwaKeptWindow = 512;
constexpr int64_t kSwaKeptMax = int64_t{512} << 20;
// Key tiles that a tile of queries can see.
int64_t swa_kept_seen(int64_t tokens, int64_t window);
// Tiles of a head that hold a pair (query, key) which the window lets see.
int64_t swa_kept_tiles(int64_t tokens, int64_t window);
Status validate(const SwaArgs& a);
Status validate(const SwaBackwardArgs& a);
Status validate(const SwaDecodeArgs& a);
double cost(const SwaArgs& a);
double cost(const SwaBackwardArgs& a);

}  // namespace swax
