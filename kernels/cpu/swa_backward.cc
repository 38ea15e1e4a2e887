// Sliding-window attention, backward. A piece is one key head: it owns dk, dv of that head and dq
// of its query heads, so that the five products of a tile pair are formed once and nothing is
// shared.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"
#include "proto/base/ids.h"

namespace swax::cpu {
namespace {

constexpr int64_t kTile = 32;

// Rows [begin, begin + kTile) of one head of a [T, heads, E] tensor.
struct HeadRows {
  float* data;
  int64_t stride;
};
HeadRows head_rows(const Tensor& x, int64_t begin, int64_t head) {
  return {x.f32() + begin * x.row_stride + head * x.dims[2], x.row_stride};
}

struct TilePair {
  int64_t head;
  int64_t kv_head;
  int64_t query;
  int64_t queries;
  int64_t key;
  int64_t keys;
};

class TileGrad {
 public:
  TileGrad(GemmForm form, const SwaBackwardArgs& args)
      : form_(form), a_(args), size_(args.q_THE.dims[2]) {}

  void run(const TilePair& t) {
    const HeadRows q = head_rows(a_.q_THE, t.query, t.head);
    const HeadRows k = head_rows(a_.k_TGE, t.key, t.kv_head);
    const HeadRows v = head_rows(a_.v_TGE, t.key, t.kv_head);
    const HeadRows d_o = head_rows(a_.do_THE, t.query, t.head);
    rows_by_rows(q, k, p_, t);
    rows_by_rows(d_o, v, ds_, t);
    for (int64_t r = 0; r < t.queries; ++r) row(t, r);
    transposed_by_rows(p_, d_o, head_rows(a_.dv_TGE, t.key, t.kv_head), t);
    transposed_by_rows(ds_, q, head_rows(a_.dk_TGE, t.key, t.kv_head), t);
    const HeadRows dq = head_rows(a_.dq_THE, t.query, t.head);
    MatMul x = tile(t.queries, size_, t.keys);
    x.a = ds_;
    x.a_stride = kTile;
    x.b = k.data;
    x.b_stride = k.stride;
    x.c = dq.data;
    x.c_stride = dq.stride;
    x.accumulate = true;
    matmul(form_, x);
  }

 private:
  static MatMul tile(int64_t m, int64_t n, int64_t k) {
    MatMul x;
    x.m = m;
    x.n = n;
    x.k = k;
    return x;
  }
  // out[query, key] = rows of a times rows of b.
  void rows_by_rows(const HeadRows& a, const HeadRows& b, float* out, const TilePair& t) const {
    MatMul x = tile(t.queries, t.keys, size_);
    x.a = a.data;
    x.a_stride = a.stride;
    x.b = b.data;
    x.b_stride = b.stride;
    x.c = out;
    x.c_stride = kTile;
    x.trans_b = true;
    matmul(form_, x);
  }
  // out[key] += weights[query, key]^T rows[query]
  void transposed_by_rows(const float* weights, const HeadRows& rows, const HeadRows& out,
                          const TilePair& t) const {
    MatMul x = tile(t.keys, size_, t.queries);
    x.a = weights;
    x.a_stride = kTile;
    x.trans_a = true;
    x.b = rows.data;
    x.b_stride = rows.stride;
    x.c = out.data;
    x.c_stride = out.stride;
    x.accumulate = true;
    matmul(form_, x);
  }
  // Scores and do v^T of one query become P and scale P (dP - delta); 0 where the key is not seen.
  void row(const TilePair& t, int64_t r) {
    const int64_t token = t.query + r;
    int64_t first = std::max<int64_t>(0, token - a_.window + 1);
    if (!a_.doc_start_T.empty()) first = std::max<int64_t>(first, a_.doc_start_T.i32()[token]);
    const int64_t begin = std::clamp<int64_t>(first - t.key, 0, kTile);
    const int64_t end = std::clamp<int64_t>(token + 1 - t.key, 0, t.keys);
    const int64_t index = token * a_.q_THE.dims[1] + t.head;
    const F8 shift = splat(a_.lse_TH.f32()[index]);
    const F8 delta = splat(a_.scratch.f32()[index]);
    const F8 scale = splat(a_.scale);
    // A query that sees itself alone has P = 1: its scores have no gradient, and dP - delta would
    // leave the rounding of two equal sums.
    const F8 ds_scale = splat(first == token ? 0.0F : a_.scale);
    float* p = p_ + r * kTile;
    float* ds = ds_ + r * kTile;
    for (int64_t i = 0; i < kTile; i += kLanes) {
      const F8 seen =
          _mm256_castsi256_ps(_mm256_andnot_si256(lane_mask(begin - i), lane_mask(end - i)));
      const F8 prob = _mm256_and_ps(seen, exp8(fma(load(p + i), scale, zero8() - shift)));
      const F8 grad = _mm256_and_ps(seen, prob * (load(ds + i) - delta) * ds_scale);
      store(p + i, prob);
      store(ds + i, grad);
    }
  }

  GemmForm form_;
  const SwaBackwardArgs& a_;
  int64_t size_;
  alignas(64) float p_[kTile * kTile] = {};
  alignas(64) float ds_[kTile * kTile] = {};
};

void clear_head(const Tensor& x, int64_t head) {
  for (int64_t t = 0; t < x.dims[0]; ++t) fill_with(head_rows(x, t, head).data, 0.0F, x.dims[2]);
}

void key_head(GemmForm form, const SwaBackwardArgs& a, int64_t kv_head) {
  const int64_t tokens = a.q_THE.dims[0];
  const int64_t group = a.q_THE.dims[1] / a.k_TGE.dims[1];
  const int32_t* doc = a.doc_start_T.empty() ? nullptr : a.doc_start_T.i32();
  clear_head(a.dk_TGE, kv_head);
  clear_head(a.dv_TGE, kv_head);
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) clear_head(a.dq_THE, h);
  TileGrad grad(form, a);
  for (int64_t key = 0; key < tokens; key += kTile) {
    TilePair t;
    t.kv_head = kv_head;
    t.key = key;
    t.keys = std::min(kTile, tokens - key);
    // The last key of the tile is seen up to window - 1 tokens later.
    const int64_t stop =
        a.window >= tokens ? tokens : std::min(tokens, key + t.keys - 1 + a.window);
    for (t.head = kv_head * group; t.head < (kv_head + 1) * group; ++t.head) {
      for (t.query = key; t.query < stop; t.query += kTile) {
        if (doc != nullptr && doc[t.query] >= key + t.keys) break;
        t.queries = std::min(kTile, tokens - t.query);
        grad.run(t);
      }
    }
  }
}

}  // namespace

Status CpuBackend::swa_backward(Stream&, const SwaBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(
      need_data("swa_backward", {&a.q_THE, &a.k_TGE, &a.v_TGE, &a.doc_start_T, &a.o_THE, &a.lse_TH,
                                 &a.do_THE, &a.dq_THE, &a.dk_TGE, &a.dv_TGE, &a.scratch}));
  const int64_t tokens = a.q_THE.dims[0];
  const int64_t heads = a.q_THE.dims[1];
  constexpr int64_t kRows = 64;
  pool_.run(div_ceil(tokens, kRows), [&](int64_t piece, int) {
    for (int64_t t = piece * kRows; t < std::min(tokens, (piece + 1) * kRows); ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        a.scratch.f32()[t * heads + h] =
            dot(head_rows(a.do_THE, t, h).data, head_rows(a.o_THE, t, h).data, a.q_THE.dims[2]);
      }
    }
  });
  pool_.run(a.k_TGE.dims[1], [&](int64_t kv_head, int) { key_head(form_, a, kv_head); });
  return ok();
}

}  // namespace swax::cpu
