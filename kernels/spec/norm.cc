#include "kernels/spec/norm.h"

#include "kernels/spec/checks.h"

namespace swax {
namespace {

constexpr auto kF32 = DType::kF32;
constexpr auto kStrided = spec::Rows::kStrided;

Status check_eps(const char* op, float eps) {
  if (!(eps >= 0.0F)) return spec::bad_value(op, "eps", static_cast<double>(eps), ">= 0");
  return ok();
}

Status check_scratch(const char* op, const Tensor& scratch, int64_t elements) {
  if (scratch.dtype != kF32 || !scratch.contiguous() || scratch.elements() < elements) {
    return spec::bad_value(op, "scratch elements", scratch.elements(),
                           "f32 and at least rms_norm_backward_scratch()");
  }
  return ok();
}

}  // namespace

Status validate(const RmsNormArgs& a) {
  constexpr const char* kOp = "rms_norm";
  const DType act = spec::value_type(a.x_TD);
  const int64_t t = a.x_TD.dims[0];
  const int64_t d = a.x_TD.dims[1];
  SWAX_TRY(spec::expect(kOp, {{"x_TD", a.x_TD, act, {t, d}, kStrided},
                              {"w_D", a.w_D, spec::value_type(a.w_D), {d}},
                              {"y_TD", a.y_TD, act, {t, d}, kStrided},
                              {"rstd_T", a.rstd_T, kF32, {t}}}));
  SWAX_TRY(spec::expect_same_or_apart(kOp, {"y_TD", a.y_TD}, {"x_TD", a.x_TD}));
  return check_eps(kOp, a.eps);
}

Status validate(const RmsNormApplyArgs& a) {
  constexpr const char* kOp = "rms_norm_apply";
  const DType act = spec::value_type(a.x_TD);
  const int64_t t = a.x_TD.dims[0];
  const int64_t d = a.x_TD.dims[1];
  SWAX_TRY(spec::expect(kOp, {{"x_TD", a.x_TD, act, {t, d}, kStrided},
                              {"w_D", a.w_D, spec::value_type(a.w_D), {d}},
                              {"rstd_T", a.rstd_T, kF32, {t}},
                              {"y_TD", a.y_TD, act, {t, d}, kStrided}}));
  return spec::expect_same_or_apart(kOp, {"y_TD", a.y_TD}, {"x_TD", a.x_TD});
}

Status validate(const RmsNormBackwardArgs& a) {
  constexpr const char* kOp = "rms_norm_backward";
  const DType act = spec::value_type(a.x_TD);
  const int64_t t = a.x_TD.dims[0];
  const int64_t d = a.x_TD.dims[1];
  SWAX_TRY(spec::expect(kOp, {{"x_TD", a.x_TD, act, {t, d}, kStrided},
                              {"w_D", a.w_D, spec::value_type(a.w_D), {d}},
                              {"rstd_T", a.rstd_T, kF32, {t}},
                              {"dy_TD", a.dy_TD, act, {t, d}, kStrided},
                              {"dx_TD", a.dx_TD, act, {t, d}, kStrided},
                              {"dw_D", a.dw_D, kF32, {d}}}));
  SWAX_TRY(spec::expect_same_or_apart(kOp, {"dx_TD", a.dx_TD}, {"dy_TD", a.dy_TD}));
  SWAX_TRY(spec::expect_apart(kOp, {"dx_TD", a.dx_TD}, {"x_TD", a.x_TD}));
  return check_scratch(kOp, a.scratch, rms_norm_backward_scratch(t, d));
}

Status validate(const HeadNormArgs& a) {
  constexpr const char* kOp = "head_norm";
  const DType act = spec::value_type(a.h_TNU);
  const int64_t t = a.h_TNU.dims[0];
  const int64_t n = a.h_TNU.dims[1];
  const int64_t u = a.h_TNU.dims[2];
  SWAX_TRY(spec::expect(kOp, {{"h_TNU", a.h_TNU, act, {t, n, u}, kStrided},
                              {"o_TNU", a.o_TNU, act, {t, n, u}, kStrided},
                              {"w_NU", a.w_NU, spec::value_type(a.w_NU), {n * u}},
                              {"y_TNU", a.y_TNU, act, {t, n, u}, kStrided},
                              {"mean_TN", a.mean_TN, kF32, {t, n}},
                              {"rstd_TN", a.rstd_TN, kF32, {t, n}}}));
  return check_eps(kOp, a.eps);
}

Status validate(const HeadNormBackwardArgs& a) {
  constexpr const char* kOp = "head_norm_backward";
  const DType act = spec::value_type(a.h_TNU);
  const int64_t t = a.h_TNU.dims[0];
  const int64_t n = a.h_TNU.dims[1];
  const int64_t u = a.h_TNU.dims[2];
  SWAX_TRY(spec::expect(kOp, {{"h_TNU", a.h_TNU, act, {t, n, u}, kStrided},
                              {"o_TNU", a.o_TNU, act, {t, n, u}, kStrided},
                              {"w_NU", a.w_NU, spec::value_type(a.w_NU), {n * u}},
                              {"mean_TN", a.mean_TN, kF32, {t, n}},
                              {"rstd_TN", a.rstd_TN, kF32, {t, n}},
                              {"dy_TNU", a.dy_TNU, act, {t, n, u}, kStrided},
                              {"dh_TNU", a.dh_TNU, act, {t, n, u}, kStrided},
                              {"do_TNU", a.do_TNU, act, {t, n, u}, kStrided},
                              {"dw_NU", a.dw_NU, kF32, {n * u}}}));
  return check_scratch(kOp, a.scratch, rms_norm_backward_scratch(t, n * u));
}

}  // namespace swax
