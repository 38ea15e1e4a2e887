#include "kernels/spec/basic.h"

#include "kernels/spec/checks.h"

namespace swax {

Status validate(const FillArgs& a) {
  if (a.x.dtype != DType::kF32 || !a.x.contiguous() || a.x.elements() < 1) {
    return invalid_argument("fill: x must be f32, contiguous and not empty");
  }
  return ok();
}

Status validate(const AddArgs& a) {
  const int64_t n = a.out.elements();
  for (const Tensor* t : {&a.a, &a.b, &a.out}) {
    if (t->dtype != DType::kF32 || !t->contiguous() || t->elements() != n || n < 1) {
      return invalid_argument("add: a, b, out must be f32, contiguous and of one size");
    }
  }
  SWAX_TRY(spec::expect_same_or_apart("add", {"out", a.out}, {"a", a.a}));
  return spec::expect_same_or_apart("add", {"out", a.out}, {"b", a.b});
}

Status validate(const CastArgs& a) {
  const bool down = a.from.dtype == DType::kF32 && a.to.dtype == DType::kBF16;
  const bool up = a.from.dtype == DType::kBF16 && a.to.dtype == DType::kF32;
  if (!down && !up) return invalid_argument("cast: only f32 to bf16 and bf16 to f32");
  if (!a.from.contiguous() || !a.to.contiguous() || a.from.elements() != a.to.elements() ||
      a.to.elements() < 1) {
    return invalid_argument("cast: from and to must be contiguous and of one size");
  }
  return ok();
}

Status validate(const DigestArgs& a) {
  if (a.x.dtype != DType::kF32 || !a.x.contiguous() || a.x.elements() < 1) {
    return invalid_argument("digest: x must be f32, contiguous and not empty");
  }
  return spec::expect("digest", {{"sums", a.sums, DType::kI64, {2}}});
}

}  // namespace swax
