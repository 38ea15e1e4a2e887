#include "kernels/spec/embedding.h"

#include "kernels/spec/checks.h"

namespace swax {
namespace {

Status check(const char* op, const Tensor& tokens_T, const Tensor& weight_VD, DType weight_type,
             const Tensor& y_TD) {
  const int64_t t = tokens_T.dims[0];
  const int64_t v = weight_VD.dims[0];
  const int64_t d = weight_VD.dims[1];
  return spec::expect(op, {{"tokens_T", tokens_T, DType::kI32, {t}},
                           {"weight_VD", weight_VD, weight_type, {v, d}, spec::Rows::kStrided},
                           {"y_TD", y_TD, spec::value_type(y_TD), {t, d}, spec::Rows::kStrided}});
}

}  // namespace

Status validate(const EmbeddingArgs& a) {
  return check("embedding", a.tokens_T, a.weight_VD, spec::value_type(a.weight_VD), a.y_TD);
}

Status validate(const EmbeddingBackwardArgs& a) {
  return check("embedding_backward", a.tokens_T, a.dweight_VD, DType::kF32, a.dy_TD);
}

}  // namespace swax
