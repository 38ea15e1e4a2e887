// Sliding-window attention, forward and one-token decode. A piece is one tile of queries of one
// head; it visits exactly the keys that its rows can see, in blocks, with a running maximum.
#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/swa_tile.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"
#include "proto/base/ids.h"

namespace swax::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Running softmax of a tile: one lane per query.
struct RunningTile {
  F8 max[kSwaVectors];
  F8 sum[kSwaVectors];
  alignas(32) float rescale[kSwaQueries];  // factor for what was accumulated before the block
};

// Scores [key, query] of one block become exp(score - max), 0 where the key is not seen.
void softmax_block(const Band& band, int64_t key, int64_t keys, float* scores, RunningTile& run) {
  const F8 lowest = splat(-kInf);
  const bool full = band.full(key, keys);
  F8 top[kSwaVectors];
  for (int64_t v = 0; v < kSwaVectors; ++v) top[v] = run.max[v];
  for (int64_t j = 0; j < keys; ++j) {
    float* row = scores + j * kSwaQueries;
    for (int64_t v = 0; v < kSwaVectors; ++v) {
      F8 s = load(row + v * kLanes);
      if (!full) {
        s = select(band.seen(key + j, v), s, lowest);
        store(row + v * kLanes, s);
      }
      top[v] = max8(s, top[v]);
    }
  }
  F8 shift[kSwaVectors];
  F8 sum[kSwaVectors];
  for (int64_t v = 0; v < kSwaVectors; ++v) {
    // A query that has seen nothing yet keeps -inf; its scores here are -inf too.
    shift[v] = select(less(lowest, top[v]), top[v], zero8());
    const F8 rescale = exp8(run.max[v] - shift[v]);
    store(run.rescale + v * kLanes, rescale);
    run.max[v] = top[v];
    run.sum[v] = run.sum[v] * rescale;
    sum[v] = zero8();
  }
  for (int64_t j = 0; j < keys; ++j) {
    float* row = scores + j * kSwaQueries;
    for (int64_t v = 0; v < kSwaVectors; ++v) {
      const F8 p = exp8(load(row + v * kLanes) - shift[v]);
      store(row + v * kLanes, p);
      sum[v] = sum[v] + p;
    }
  }
  for (int64_t v = 0; v < kSwaVectors; ++v) run.sum[v] = run.sum[v] + sum[v];
}

void attend(GemmForm form, const SwaArgs& a, const SwaTile& tile) {
  alignas(64) float scores[kSwaKeys * kSwaQueries];
  const int64_t size = a.q_THE.dims[2];
  const Band band(a.doc_start_T, a.window, tile);
  TransposedRows queries(form, head_rows(a.q_THE, tile.begin, tile.head), tile.rows, size, a.scale);
  const HeadRows o = head_rows(a.o_THE, tile.begin, tile.head);
  RunningTile run;
  for (int64_t v = 0; v < kSwaVectors; ++v) {
    run.max[v] = splat(-kInf);
    run.sum[v] = zero8();
  }
  for (int64_t key = band.low(); key < band.high(); key += kSwaKeys) {
    const int64_t keys = std::min(kSwaKeys, band.high() - key);
    const bool first = key == band.low();
    queries.times(head_rows(a.k_TGE, key, tile.kv_head), keys, scores);
    softmax_block(band, key, keys, scores, run);
    for (int64_t r = 0; r < tile.rows && !first; ++r) {
      if (run.rescale[r] == 1.0F) continue;
      scale_to(o.data + r * o.stride, run.rescale[r], o.data + r * o.stride, size);
    }
    const HeadRows v = head_rows(a.v_TGE, key, tile.kv_head);
    MatMul pv;
    pv.a = scores;
    pv.a_stride = kSwaQueries;
    pv.trans_a = true;
    pv.b = v.data;
    pv.b_stride = v.stride;
    pv.c = o.data;
    pv.c_stride = o.stride;
    pv.m = tile.rows;
    pv.n = size;
    pv.k = keys;
    pv.accumulate = !first;
    matmul(form, pv);
  }
  alignas(32) float inverse[kSwaQueries];
  alignas(32) float lse[kSwaQueries];
  for (int64_t v = 0; v < kSwaVectors; ++v) {
    store(inverse + v * kLanes, splat(1.0F) / run.sum[v]);
    // log8 has no NaN of its own: the sum of a row with a NaN stays one.
    store(lse + v * kLanes, run.max[v] + log8(run.sum[v]));
  }
  for (int64_t r = 0; r < tile.rows; ++r) {
    scale_to(o.data + r * o.stride, inverse[r], o.data + r * o.stride, size);
    a.lse_TH.f32()[(tile.begin + r) * a.lse_TH.dims[1] + tile.head] = lse[r];
  }
}

// Running softmax of the one row of decode.
struct Running {
  float max = -kInf;
  float sum = 0.0F;
};

// scores[0, count) become exp(score - max). Returns the factor for what was accumulated before.
float softmax_row(float* scores, int64_t count, Running& run) {
  float max = run.max;
  for (int64_t i = 0; i < count; ++i) max = std::max(max, scores[i]);
  std::fill(scores + count, scores + kSwaKeys, -kInf);
  const F8 shift = splat(max);
  F8 sum = zero8();
  for (int64_t i = 0; i < kSwaKeys; i += kLanes) {
    const F8 p = exp8(load(scores + i) - shift);
    store(scores + i, p);
    sum = sum + p;
  }
  const float rescale = exp1(run.max - max);
  run.max = max;
  run.sum = run.sum * rescale + add_lanes(sum);
  return rescale;
}

void decode_head(const SwaDecodeArgs& a, int64_t head, int64_t kv_head) {
  alignas(64) float scores[kSwaKeys];
  Running running;
  const int64_t size = a.q_HE.dims[1];
  const int64_t ring = a.k_RGE.dims[0];
  const float* q = a.q_HE.f32() + head * a.q_HE.row_stride;
  float* o = a.o_HE.f32() + head * a.o_HE.row_stride;
  fill_with(o, 0.0F, size);
  const int64_t low = std::max(a.doc_start, std::max<int64_t>(0, a.position - a.window + 1));
  for (int64_t key = low; key <= a.position; key += kSwaKeys) {
    const int64_t keys = std::min(kSwaKeys, a.position + 1 - key);
    for (int64_t j = 0; j < keys; ++j) {
      const float* k = a.k_RGE.f32() + (key + j) % ring * a.k_RGE.row_stride + kv_head * size;
      scores[j] = a.scale * dot(q, k, size);
    }
    const float rescale = softmax_row(scores, keys, running);
    if (key > low && rescale != 1.0F) scale_to(o, rescale, o, size);
    for (int64_t j = 0; j < keys; ++j) {
      const float* v = a.v_RGE.f32() + (key + j) % ring * a.v_RGE.row_stride + kv_head * size;
      add_scaled(o, scores[j], v, size);
    }
  }
  scale_to(o, 1.0F / running.sum, o, size);
}

}  // namespace

Status CpuBackend::swa(Stream&, const SwaArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("swa", {&a.q_THE, &a.k_TGE, &a.v_TGE, &a.doc_start_T, &a.o_THE, &a.lse_TH}));
  const int64_t tokens = a.q_THE.dims[0];
  const int64_t heads = a.q_THE.dims[1];
  const int64_t group = heads / a.k_TGE.dims[1];
  pool_.run(div_ceil(tokens, kSwaQueries) * heads, [&](int64_t piece, int) {
    SwaTile tile;
    tile.head = piece % heads;
    tile.kv_head = tile.head / group;
    tile.begin = piece / heads * kSwaQueries;
    tile.rows = std::min(kSwaQueries, tokens - tile.begin);
    attend(form_, a, tile);
  });
  return ok();
}

Status CpuBackend::swa_decode(Stream&, const SwaDecodeArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("swa_decode", {&a.q_HE, &a.k_RGE, &a.v_RGE, &a.o_HE}));
  const int64_t heads = a.q_HE.dims[0];
  const int64_t group = heads / a.k_RGE.dims[1];
  pool_.run(heads, [&](int64_t head, int) { decode_head(a, head, head / group); });
  return ok();
}

}  // namespace swax::cpu
