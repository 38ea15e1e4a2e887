// Sliding-window attention, forward and one-token decode. A piece is one tile of queries of one
// head; it visits exactly the keys that its rows can see, in blocks, with a running maximum.
#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vec_math.h"
#include "proto/base/ids.h"

namespace swax::cpu {
namespace {

constexpr int64_t kQueryTile = 32;
constexpr int64_t kKeyBlock = 64;
constexpr float kInf = std::numeric_limits<float>::infinity();

// Running softmax of one row.
struct Running {
  float max = -kInf;
  float sum = 0.0F;
};

// scores[begin, end) become exp(scale * score - max), everything else in the block 0. Returns the
// factor for what was accumulated before.
float softmax_block(float* scores, int64_t begin, int64_t end, float scale, Running& row) {
  if (begin >= end) {
    fill_with(scores, 0.0F, kKeyBlock);
    return 1.0F;
  }
  std::fill(scores, scores + begin, -kInf);
  std::fill(scores + end, scores + kKeyBlock, -kInf);
  const F8 factor = splat(scale);
  F8 top = splat(-kInf);
  for (int64_t i = 0; i < kKeyBlock; i += kLanes) {
    const F8 s = load(scores + i) * factor;
    store(scores + i, s);
    top = max8(s, top);
  }
  const float max = std::max(row.max, max_lanes(top));
  const F8 shift = splat(max);
  F8 sum = zero8();
  for (int64_t i = 0; i < kKeyBlock; i += kLanes) {
    const F8 p = exp8(load(scores + i) - shift);
    store(scores + i, p);
    sum = sum + p;
  }
  const float rescale = exp1(row.max - max);
  row.max = max;
  row.sum = row.sum * rescale + add_lanes(sum);
  return rescale;
}

// max + log(sum); the sum of a row with a NaN is NaN and has no logarithm.
float log_sum_exp(const Running& row) { return row.sum < kInf ? row.max + log1(row.sum) : row.sum; }

struct Tile {
  int64_t head;
  int64_t kv_head;
  int64_t begin;
  int64_t rows;
};

void attend(GemmForm form, const SwaArgs& a, const Tile& tile) {
  alignas(64) float scores[kQueryTile * kKeyBlock];
  Running running[kQueryTile];
  const int64_t size = a.q_THE.dims[2];
  const int32_t* doc = a.doc_start_T.empty() ? nullptr : a.doc_start_T.i32();
  const auto first_key = [&](int64_t t) {
    const int64_t key = std::max<int64_t>(0, t - a.window + 1);
    return doc == nullptr ? key : std::max<int64_t>(key, doc[t]);
  };
  float* o = a.o_THE.f32() + tile.begin * a.o_THE.row_stride + tile.head * size;
  const int64_t low = first_key(tile.begin);
  const int64_t high = tile.begin + tile.rows;
  for (int64_t key = low; key < high; key += kKeyBlock) {
    const int64_t keys = std::min(kKeyBlock, high - key);
    MatMul qk;
    qk.a = a.q_THE.f32() + tile.begin * a.q_THE.row_stride + tile.head * size;
    qk.a_stride = a.q_THE.row_stride;
    qk.b = a.k_TGE.f32() + key * a.k_TGE.row_stride + tile.kv_head * size;
    qk.b_stride = a.k_TGE.row_stride;
    qk.c = scores;
    qk.c_stride = kKeyBlock;
    qk.m = tile.rows;
    qk.n = keys;
    qk.k = size;
    qk.trans_b = true;
    matmul(form, qk);
    for (int64_t r = 0; r < tile.rows; ++r) {
      const int64_t t = tile.begin + r;
      const int64_t begin = std::max<int64_t>(0, first_key(t) - key);
      const int64_t end = std::min(keys, t + 1 - key);
      const float rescale = softmax_block(scores + r * kKeyBlock, begin, end, a.scale, running[r]);
      if (key > low && rescale != 1.0F) {
        scale_to(o + r * a.o_THE.row_stride, rescale, o + r * a.o_THE.row_stride, size);
      }
    }
    MatMul pv;
    pv.a = scores;
    pv.a_stride = kKeyBlock;
    pv.b = a.v_TGE.f32() + key * a.v_TGE.row_stride + tile.kv_head * size;
    pv.b_stride = a.v_TGE.row_stride;
    pv.c = o;
    pv.c_stride = a.o_THE.row_stride;
    pv.m = tile.rows;
    pv.n = size;
    pv.k = keys;
    pv.accumulate = key > low;
    matmul(form, pv);
  }
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* row = o + r * a.o_THE.row_stride;
    scale_to(row, 1.0F / running[r].sum, row, size);
    a.lse_TH.f32()[(tile.begin + r) * a.lse_TH.dims[1] + tile.head] = log_sum_exp(running[r]);
  }
}

void decode_head(const SwaDecodeArgs& a, int64_t head, int64_t kv_head) {
  alignas(64) float scores[kKeyBlock];
  Running running;
  const int64_t size = a.q_HE.dims[1];
  const int64_t ring = a.k_RGE.dims[0];
  const float* q = a.q_HE.f32() + head * a.q_HE.row_stride;
  float* o = a.o_HE.f32() + head * a.o_HE.row_stride;
  fill_with(o, 0.0F, size);
  const int64_t low = std::max(a.doc_start, std::max<int64_t>(0, a.position - a.window + 1));
  for (int64_t key = low; key <= a.position; key += kKeyBlock) {
    const int64_t keys = std::min(kKeyBlock, a.position + 1 - key);
    for (int64_t j = 0; j < keys; ++j) {
      const float* k = a.k_RGE.f32() + (key + j) % ring * a.k_RGE.row_stride + kv_head * size;
      scores[j] = dot(q, k, size);
    }
    const float rescale = softmax_block(scores, 0, keys, a.scale, running);
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
  pool_.run(div_ceil(tokens, kQueryTile) * heads, [&](int64_t piece, int) {
    Tile tile;
    tile.head = piece % heads;
    tile.kv_head = tile.head / group;
    tile.begin = piece / heads * kQueryTile;
    tile.rows = std::min(kQueryTile, tokens - tile.begin);
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
