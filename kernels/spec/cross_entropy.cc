#include "kernels/spec/cross_entropy.h"

#include "kernels/spec/checks.h"

namespace swax {

Status validate(const CrossEntropyArgs& a) {
  constexpr const char* kOp = "cross_entropy";
  const int64_t t = a.logits_TV.dims[0];
  const int64_t v = a.logits_TV.dims[1];
  SWAX_TRY(spec::expect(
      kOp, {{"logits_TV", a.logits_TV, spec::value_type(a.logits_TV), {t, v}, spec::Rows::kStrided},
            {"targets_T", a.targets_T, DType::kI32, {t}},
            {"loss_sum", a.loss_sum, DType::kF64, {1}}}));
  SWAX_TRY(spec::expect_optional(kOp, {"token_loss_T", a.token_loss_T, DType::kF64, {t}}));
  if (!(a.cap >= 0.0F)) return spec::bad_value(kOp, "cap", static_cast<double>(a.cap), ">= 0");
  return ok();
}

}  // namespace swax
