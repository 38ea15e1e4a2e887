// Sliding-window attention, backward. A piece is one key head: it owns dk, dv of that head and dq
// of its query heads, so that the five products of a tile pair are formed once and nothing is
// shared.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/swa_tile.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"
#include "proto/base/ids.h"

namespace swax::cpu {
namespace {

class TileGrad {
 public:
  TileGrad(GemmForm form, const SwaBackwardArgs& args, const SwaTile& tile)
      : form_(form),
        a_(args),
        t_(tile),
        size_(args.q_THE.dims[2]),
        band_(args.doc_start_T, args.window, tile),
        q_(head_rows(args.q_THE, tile.begin, tile.head)),
        do_(head_rows(args.do_THE, tile.begin, tile.head)),
        dq_(head_rows(args.dq_THE, tile.begin, tile.head)),
        queries_(form, q_, tile.rows, size_, args.scale),
        grads_(form, do_, tile.rows, size_, 1.0F) {
    for (int64_t r = 0; r < kSwaQueries; ++r) {
      const int64_t row = tile.begin + std::min(r, tile.rows - 1);
      const int64_t index = row * args.q_THE.dims[1] + tile.head;
      lse_[r] = args.lse_TH.f32()[index];
      delta_[r] = args.scratch.f32()[index];
    }
    for (int64_t v = 0; v < kSwaVectors; ++v) {
      // A query that sees itself alone has P = 1: its scores have no gradient, and dP - delta would
      // leave the rounding of two equal sums.
      ds_scale_[v] = select(band_.alone(v), zero8(), splat(args.scale));
    }
  }

  void run() {
    for (int64_t key = band_.low(); key < band_.high(); key += kSwaKeys) {
      const int64_t keys = std::min(kSwaKeys, band_.high() - key);
      const HeadRows k = head_rows(a_.k_TGE, key, t_.kv_head);
      queries_.times(k, keys, p_);
      grads_.times(head_rows(a_.v_TGE, key, t_.kv_head), keys, ds_);
      weights(key, keys);
      add_by_key(p_, do_, head_rows(a_.dv_TGE, key, t_.kv_head), keys);
      add_by_key(ds_, q_, head_rows(a_.dk_TGE, key, t_.kv_head), keys);
      MatMul x;  // dq (+)= dS^T K
      x.a = ds_;
      x.a_stride = kSwaQueries;
      x.trans_a = true;
      x.b = k.data;
      x.b_stride = k.stride;
      x.c = dq_.data;
      x.c_stride = dq_.stride;
      x.m = t_.rows;
      x.n = size_;
      x.k = keys;
      x.accumulate = key > band_.low();
      matmul(form_, x);
    }
  }

 private:
  // Scores and do v^T become P and scale P (dP - delta), 0 where the key is not seen.
  void weights(int64_t key, int64_t keys) {
    const bool full = band_.full(key, keys);
    for (int64_t v = 0; v < kSwaVectors; ++v) {
      const F8 lse = load(lse_ + v * kLanes);
      const F8 delta = load(delta_ + v * kLanes);
      const F8 scale = ds_scale_[v];
      for (int64_t j = 0; j < keys; ++j) {
        float* p = p_ + j * kSwaQueries + v * kLanes;
        float* ds = ds_ + j * kSwaQueries + v * kLanes;
        F8 prob = exp8(load(p) - lse);
        F8 grad = prob * (load(ds) - delta) * scale;
        if (!full) {
          const F8 seen = band_.seen(key + j, v);
          prob = _mm256_and_ps(seen, prob);
          grad = _mm256_and_ps(seen, grad);
        }
        store(p, prob);
        store(ds, grad);
      }
    }
  }
  // out[key] += weights[key, query] rows[query]
  void add_by_key(const float* weights_of_key, const HeadRows& rows, const HeadRows& out,
                  int64_t keys) const {
    MatMul x;
    x.a = weights_of_key;
    x.a_stride = kSwaQueries;
    x.b = rows.data;
    x.b_stride = rows.stride;
    x.c = out.data;
    x.c_stride = out.stride;
    x.m = keys;
    x.n = size_;
    x.k = t_.rows;
    x.accumulate = true;
    matmul(form_, x);
  }

  GemmForm form_;
  const SwaBackwardArgs& a_;
  SwaTile t_;
  int64_t size_;
  Band band_;
  HeadRows q_;
  HeadRows do_;
  HeadRows dq_;
  TransposedRows queries_;
  TransposedRows grads_;
  F8 ds_scale_[kSwaVectors];
  alignas(32) float lse_[kSwaQueries];
  alignas(32) float delta_[kSwaQueries];
  alignas(64) float p_[kSwaKeys * kSwaQueries];
  alignas(64) float ds_[kSwaKeys * kSwaQueries];
};

void clear_head(const Tensor& x, int64_t head) {
  for (int64_t t = 0; t < x.dims[0]; ++t) fill_with(head_rows(x, t, head).data, 0.0F, x.dims[2]);
}

// Query heads in rising order, inside a head queries in rising order: the order in which dk and dv
// of a key are added.
void key_head(GemmForm form, const SwaBackwardArgs& a, int64_t kv_head) {
  const int64_t tokens = a.q_THE.dims[0];
  const int64_t group = a.q_THE.dims[1] / a.k_TGE.dims[1];
  clear_head(a.dk_TGE, kv_head);
  clear_head(a.dv_TGE, kv_head);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t begin = 0; begin < tokens; begin += kSwaQueries) {
      const SwaTile tile{head, kv_head, begin, std::min(kSwaQueries, tokens - begin)};
      TileGrad(form, a, tile).run();
    }
  }
}

}  // namespace

Status CpuBackend::swa_backward(Stream& s, const SwaBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("swa_backward",
                     {&a.q_THE, &a.k_TGE, &a.v_TGE, &a.doc_start_T, &a.o_THE, &a.lse_TH, &a.do_THE,
                      &a.dq_THE, &a.dk_TGE, &a.dv_TGE, &a.scratch, &a.cos_TP, &a.sin_TP}));
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
  if (a.cos_TP.empty()) return ok();
  SWAX_TRY(rope(s, {.x_THE = a.dq_THE, .cos_TP = a.cos_TP, .sin_TP = a.sin_TP, .inverse = true}));
  return rope(s, {.x_THE = a.dk_TGE, .cos_TP = a.cos_TP, .sin_TP = a.sin_TP, .inverse = true});
}

}  // namespace swax::cpu
