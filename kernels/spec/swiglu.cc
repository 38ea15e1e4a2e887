#include "kernels/spec/swiglu.h"

#include "kernels/spec/checks.h"

namespace swax {

Status validate(const SwigluArgs& a) {
  const DType act = spec::value_type(a.a_TF);
  const int64_t t = a.a_TF.dims[0];
  const int64_t f = a.a_TF.dims[1];
  const auto strided = spec::Rows::kStrided;
  return spec::expect("swiglu", {{"a_TF", a.a_TF, act, {t, f}, strided},
                                 {"b_TF", a.b_TF, act, {t, f}, strided},
                                 {"s_TF", a.s_TF, act, {t, f}, strided}});
}

Status validate(const SwigluBackwardArgs& a) {
  constexpr const char* kOp = "swiglu_backward";
  const DType act = spec::value_type(a.a_TF);
  const int64_t t = a.a_TF.dims[0];
  const int64_t f = a.a_TF.dims[1];
  const auto strided = spec::Rows::kStrided;
  SWAX_TRY(spec::expect(kOp, {{"a_TF", a.a_TF, act, {t, f}, strided},
                              {"b_TF", a.b_TF, act, {t, f}, strided},
                              {"ds_TF", a.ds_TF, act, {t, f}, strided},
                              {"da_TF", a.da_TF, act, {t, f}, strided},
                              {"db_TF", a.db_TF, act, {t, f}, strided}}));
  SWAX_TRY(spec::expect_same_or_apart(kOp, {"da_TF", a.da_TF}, {"a_TF", a.a_TF}));
  SWAX_TRY(spec::expect_same_or_apart(kOp, {"da_TF", a.da_TF}, {"ds_TF", a.ds_TF}));
  SWAX_TRY(spec::expect_same_or_apart(kOp, {"db_TF", a.db_TF}, {"b_TF", a.b_TF}));
  SWAX_TRY(spec::expect_apart(kOp, {"da_TF", a.da_TF}, {"b_TF", a.b_TF}));
  SWAX_TRY(spec::expect_apart(kOp, {"db_TF", a.db_TF}, {"a_TF", a.a_TF}));
  SWAX_TRY(spec::expect_apart(kOp, {"db_TF", a.db_TF}, {"ds_TF", a.ds_TF}));
  return spec::expect_apart(kOp, {"da_TF", a.da_TF}, {"db_TF", a.db_TF});
}

}  // namespace swax
