// Optimizer side: row norms, the norm tree and AdamW on flat shards.
//
// row_sumsq: for each segment, row_sums[first_row + r] (f64) = sum of x^2 over row r in f64: eight
// interleaved partial sums (element e goes to partial e mod 8), combined
// ((0+1)+(2+3))+((4+5)+(6+7)). The same for every shard, so it is invariant to ranks. norm_tree:
// total = binary tree over rows in table order: level by level v[i] = v[2i] + v[2i+1], an odd last
// one moves up unchanged; gathered_R holds the rows of all ranks, order[i] (i64) says where row i
// of the table lies in it. Writes grad_norm, clip, nonfinite. AdamW (arXiv 1711.05101),
// element-wise, f32: g = grad * clip; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g g;
//   p -= lr * ( (m / bias1) / (sqrt(v / bias2) + eps) + decay * p ), decay = weight_decay on
//   segments that decay, else 0.
// Bounds: K = 1, c = 3 (m, v), 2 (p); every operation is rounded by itself (no fused forms), so a
// device gives the same bits. max_norm <= 0 means no clip. Elements outside the segments (padding)
// are neither read nor written. values_S, when given, gets the new master in bf16 with the bits of
// `cast`: what products read next; a refused step leaves it alone too.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/spec/step_scalars.h"
#include "kernels/tensor.h"
#include "proto/base/status.h"

namespace swax {

// A run of whole rows of one tensor inside a flat shard.
struct RowSegment {
  int64_t begin = 0;  // element offset in the shard
  int64_t rows = 0;
  int64_t row_elements = 0;
  int64_t first_row = 0;  // index of its first row among the rows of this rank
};
struct RowSumsqArgs {
  Tensor x_S;
  std::span<const RowSegment> segments;  // host memory, lives as long as the trainer
  Tensor row_sums_R;                     // f64
};
struct NormTreeArgs {
  Tensor gathered_R;  // f64
  Tensor order;       // i64 [rows of the table]
  Tensor scratch;     // f64, as many elements as order
  StepScalars* scalars = nullptr;
};
struct DecaySegment {
  int64_t begin = 0;
  int64_t end = 0;
  bool decay = false;
};
struct AdamWArgs {
  Tensor master_S;
  Tensor m_S;
  Tensor v_S;
  Tensor grad_S;
  std::span<const DecaySegment> segments;
  const StepScalars* scalars = nullptr;
  float beta1 = 0.0F;
  float beta2 = 0.0F;
  float eps = 0.0F;
  Tensor values_S = {};  // bf16, or empty
};
Status validate(const RowSumsqArgs& a);
Status validate(const NormTreeArgs& a);
Status validate(const AdamWArgs& a);

}  // namespace swax
