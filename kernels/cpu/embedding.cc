#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vec.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"

namespace swax::cpu {
namespace {

constexpr int64_t kTokenBlock = 256;
constexpr int64_t kVocabBlocks = 16;

Status check_tokens(const char* op, const Tensor& tokens_T, int64_t vocab) {
  const int32_t* token = tokens_T.i32();
  for (int64_t t = 0; t < tokens_T.dims[0]; ++t) {
    if (token[t] < 0 || token[t] >= vocab) {
      return invalid_argument(std::string(op) + ": token " + to_text(int64_t{token[t]}) + " at " +
                              to_text(t) + ": must be 0.." + to_text(vocab - 1));
    }
  }
  return ok();
}

}  // namespace

Status CpuBackend::embedding(Stream&, const EmbeddingArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("embedding", {&a.tokens_T, &a.weight_VD, &a.y_TD}));
  SWAX_TRY(check_tokens("embedding", a.tokens_T, a.weight_VD.dims[0]));
  const int64_t tokens = a.tokens_T.dims[0];
  const size_t row_bytes = static_cast<size_t>(a.y_TD.dims[1]) * sizeof(float);
  pool_.run(div_ceil(tokens, kTokenBlock), [&](int64_t piece, int) {
    const int64_t end = std::min(tokens, (piece + 1) * kTokenBlock);
    for (int64_t t = piece * kTokenBlock; t < end; ++t) {
      std::memcpy(a.y_TD.f32() + t * a.y_TD.row_stride,
                  a.weight_VD.f32() + a.tokens_T.i32()[t] * a.weight_VD.row_stride, row_bytes);
    }
  });
  return ok();
}

Status CpuBackend::embedding_backward(Stream&, const EmbeddingBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("embedding_backward", {&a.tokens_T, &a.dy_TD, &a.dweight_VD}));
  const int64_t vocab = a.dweight_VD.dims[0];
  const int64_t dim = a.dweight_VD.dims[1];
  SWAX_TRY(check_tokens("embedding_backward", a.tokens_T, vocab));
  const int64_t block = div_ceil(vocab, kVocabBlocks);
  pool_.run(div_ceil(vocab, block), [&](int64_t piece, int) {
    const int64_t begin = piece * block;
    const int64_t end = std::min(vocab, begin + block);
    const auto row = [&](int64_t v) { return a.dweight_VD.f32() + v * a.dweight_VD.row_stride; };
    for (int64_t v = begin; v < end; ++v) fill_with(row(v), 0.0F, dim);
    for (int64_t t = 0; t < a.tokens_T.dims[0]; ++t) {
      const int64_t v = a.tokens_T.i32()[t];
      if (v >= begin && v < end)
        add_scaled(row(v), 1.0F, a.dy_TD.f32() + t * a.dy_TD.row_stride, dim);
    }
  });
  return ok();
}

}  // namespace swax::cpu
