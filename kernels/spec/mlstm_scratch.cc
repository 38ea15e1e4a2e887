#include "kernels/spec/mlstm_scratch.h"

#include <algorithm>

#include "kernels/spec/mlstm.h"
#include "proto/base/ids.h"

namespace swax {
namespace spec {
namespace {

constexpr int64_t kAlign = 16;
constexpr int64_t kLaneCount = 8;

// Hands out aligned parts one after the other.
class Parts {
 public:
  int64_t take(int64_t elements) {
    const int64_t begin = end_;
    end_ += round_up(elements, kAlign);
    return begin;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

int64_t workers(const MlstmShape& s, int64_t chunks) {
  // The largest job of the op has this many pieces; a worker index is below it.
  const int64_t columns = div_ceil(s.v, kMlstmStateColumns) * s.heads;
  return std::min(kMlstmWorkersMax, std::max(chunks * s.heads, columns));
}

}  // namespace

MlstmScratch mlstm_scratch_layout(const MlstmShape& s) {
  const int64_t chunks = mlstm_chunks(s.tokens, s.chunk);
  const int64_t lanes = round_up(s.chunk, kLaneCount);
  const int64_t square = s.chunk * lanes;
  Parts inner;
  MlstmScratch x{};
  x.decay = inner.take(square);
  x.scores = inner.take(square);
  x.row_LK = inner.take(s.chunk * s.qk);
  x.keys_KL = inner.take(s.qk * lanes);
  x.column = inner.take(2 * std::max(s.qk, lanes));
  x.worker_stride = inner.end();
  Parts outer;
  x.log_forget = outer.take(s.heads * s.tokens);
  x.write_weight = outer.take(s.heads * s.tokens);
  x.carry_weight = outer.take(s.heads * chunks);
  x.worker = outer.take(x.worker_stride * workers(s, chunks));
  x.total = outer.end();
  return x;
}

MlstmBackwardScratch mlstm_backward_scratch_layout(const MlstmShape& s) {
  const int64_t chunks = mlstm_chunks(s.tokens, s.chunk);
  const int64_t lanes = round_up(s.chunk, kLaneCount);
  const int64_t square = s.chunk * lanes;
  Parts inner;
  MlstmBackwardScratch x{};
  x.decay = inner.take(square);
  x.scores = inner.take(square);
  x.dscores = inner.take(square);
  x.grad_LU = inner.take(s.chunk * s.v);
  x.row_LK = inner.take(s.chunk * s.qk);
  x.keys_KL = inner.take(s.qk * lanes);
  x.values_UL = inner.take(s.v * lanes);
  x.grad_UL = inner.take(s.v * lanes);
  x.column = inner.take(4 * std::max(s.qk, lanes));
  x.worker_stride = inner.end();
  Parts outer;
  x.log_forget = outer.take(s.heads * s.tokens);
  x.write_weight = outer.take(s.heads * s.tokens);
  x.read_weight = outer.take(s.heads * s.tokens);
  x.inv_scale = outer.take(s.heads * s.tokens);
  x.gamma = outer.take(s.heads * s.tokens);
  x.carry_weight = outer.take(s.heads * chunks);
  x.dstates = outer.take(chunks * s.heads * s.qk * (s.v + 1));
  x.worker = outer.take(x.worker_stride * workers(s, chunks));
  x.total = outer.end();
  return x;
}

}  // namespace spec

int64_t mlstm_scratch(int64_t tokens, int64_t heads, int64_t qk, int64_t v, int64_t chunk) {
  return spec::mlstm_scratch_layout({tokens, heads, qk, v, chunk}).total;
}

int64_t mlstm_backward_scratch(int64_t tokens, int64_t heads, int64_t qk, int64_t v,
                               int64_t chunk) {
  return spec::mlstm_backward_scratch_layout({tokens, heads, qk, v, chunk}).total;
}

}  // namespace swax
