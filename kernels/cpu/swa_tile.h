// What the forward and backward passes of sliding-window attention share: a tile of queries of one
// head, held transposed so that queries lie in lanes, and the band of keys that it can see. Scores
// are formed as [key, query]; softmax then needs no sums across lanes.
// Threads: an object belongs to one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/transpose.h"
#include "kernels/cpu/vec.h"
#include "kernels/tensor.h"

namespace swax::cpu {

constexpr int64_t kSwaQueries = 32;
constexpr int64_t kSwaKeys = 64;    // keys of one block
constexpr int64_t kSwaDepth = 128;  // elements of a head transposed at a time
constexpr int64_t kSwaVectors = kSwaQueries / kLanes;

// Rows [begin, ...) of one head of a [T, heads, E] tensor.
struct HeadRows {
  float* data;
  int64_t stride;
};
inline HeadRows head_rows(const Tensor& x, int64_t begin, int64_t head) {
  return {x.f32() + begin * x.row_stride + head * x.dims[2], x.row_stride};
}

struct SwaTile {
  int64_t head;
  int64_t kv_head;
  int64_t begin;  // first query
  int64_t rows;   // 1..kSwaQueries
};

// Which keys each query of a tile sees.
class Band {
 public:
  Band(const Tensor& doc_start_T, int64_t window, const SwaTile& tile)
      : begin_(tile.begin), rows_(tile.rows) {
    last_first_ = 0;
    for (int64_t r = 0; r < kSwaQueries; ++r) {
      const int64_t t = tile.begin + std::min(r, tile.rows - 1);
      int64_t first = window > t ? 0 : t - window + 1;
      if (!doc_start_T.empty()) first = std::max<int64_t>(first, doc_start_T.i32()[t]);
      first_[r] = static_cast<int32_t>(first);
      last_[r] = static_cast<int32_t>(t);
      last_first_ = std::max(last_first_, first);
    }
  }
  int64_t low() const { return first_[0]; }
  int64_t high() const { return begin_ + rows_; }
  // Every query of the tile sees every key of [key, key + keys).
  bool full(int64_t key, int64_t keys) const {
    return key >= last_first_ && key + keys <= begin_ + 1;
  }
  // Lanes of vector v that see `key`.
  F8 seen(int64_t key, int64_t v) const {
    const __m256i k = _mm256_set1_epi32(static_cast<int>(key));
    const __m256i early = _mm256_cmpgt_epi32(lanes(first_, v), k);
    const __m256i late = _mm256_cmpgt_epi32(k, lanes(last_, v));
    return _mm256_castsi256_ps(
        _mm256_xor_si256(_mm256_or_si256(early, late), _mm256_set1_epi32(-1)));
  }
  // Lanes whose query sees itself alone.
  F8 alone(int64_t v) const {
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(lanes(first_, v), lanes(last_, v)));
  }

 private:
  static __m256i lanes(const int32_t* x, int64_t v) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(x + v * kLanes));
  }
  int64_t begin_;
  int64_t rows_;
  int64_t last_first_;
  alignas(32) int32_t first_[kSwaQueries];
  alignas(32) int32_t last_[kSwaQueries];
};

// factor * rows of one head, transposed, and products of key rows with them.
class TransposedRows {
 public:
  TransposedRows(GemmForm form, const HeadRows& rows, int64_t count, int64_t size, float factor)
      : form_(form), rows_(rows), count_(count), size_(size), factor_(factor) {}
  // out[key, query] = keys[key] . row[query], rows of kSwaQueries elements.
  void times(const HeadRows& keys, int64_t count, float* out) {
    for (int64_t e = 0; e < size_; e += kSwaDepth) {
      const int64_t depth = std::min(kSwaDepth, size_ - e);
      if (loaded_ != e) {
        transpose({.x = rows_.data + e,
                   .x_stride = rows_.stride,
                   .rows = count_,
                   .cols = depth,
                   .factor = factor_,
                   .out = tile_,
                   .out_stride = kSwaQueries,
                   .width = kSwaQueries});
        loaded_ = e;
      }
      MatMul x;
      x.a = keys.data + e;
      x.a_stride = keys.stride;
      x.b = tile_;
      x.b_stride = kSwaQueries;
      x.c = out;
      x.c_stride = kSwaQueries;
      x.m = count;
      x.n = kSwaQueries;
      x.k = depth;
      x.accumulate = e > 0;
      matmul(form_, x);
    }
  }

 private:
  GemmForm form_;
  HeadRows rows_;
  int64_t count_;
  int64_t size_;
  float factor_;
  int64_t loaded_ = -1;
  alignas(64) float tile_[kSwaDepth * kSwaQueries];
};

}  // namespace swax::cpu
