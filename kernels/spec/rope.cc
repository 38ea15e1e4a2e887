#include "kernels/spec/rope.h"

#include "kernels/spec/checks.h"
#include "proto/base/math.h"

namespace swax {

Status validate(const RopeArgs& a) {
  constexpr const char* kOp = "rope";
  const int64_t t = a.x_THE.dims[0];
  const int64_t h = a.x_THE.dims[1];
  const int64_t e = a.x_THE.dims[2];
  if (e % 2 != 0) return spec::bad_value(kOp, "head size", e, "even");
  return spec::expect(
      kOp, {{"x_THE", a.x_THE, spec::value_type(a.x_THE), {t, h, e}, spec::Rows::kStrided},
            {"cos_TP", a.cos_TP, DType::kF32, {t, e / 2}, spec::Rows::kStrided},
            {"sin_TP", a.sin_TP, DType::kF32, {t, e / 2}, spec::Rows::kStrided}});
}

void rope_table_row(int64_t position, double base, Tensor cos_TP, Tensor sin_TP, int64_t row) {
  SWAX_CHECK(row >= 0);
  SWAX_CHECK(row < cos_TP.dims[0]);
  SWAX_CHECK(row < sin_TP.dims[0]);
  const int64_t pairs = cos_TP.dims[1];
  SWAX_CHECK(sin_TP.dims[1] == pairs);
  float* cos = cos_TP.f32() + row * cos_TP.row_stride;
  float* sin = sin_TP.f32() + row * sin_TP.row_stride;
  for (int64_t i = 0; i < pairs; ++i) {
    // -2i/E with E = 2 * pairs.
    const double exponent = -static_cast<double>(i) / static_cast<double>(pairs);
    const double angle = static_cast<double>(position) * math::pow(base, exponent);
    const math::SinCos sc = math::sincos(angle);
    cos[i] = static_cast<float>(sc.cos);
    sin[i] = static_cast<float>(sc.sin);
  }
}

}  // namespace swax
