#include "kernels/spec/mlstm.h"

#include <algorithm>

#include "kernels/spec/checks.h"

namespace swax {
namespace {

constexpr auto kF32 = DType::kF32;
constexpr auto kStrided = spec::Rows::kStrided;

Status check_scratch(const char* op, const Tensor& scratch, int64_t elements) {
  if (scratch.dtype != kF32 || !scratch.contiguous() || scratch.elements() < elements) {
    return spec::bad_value(op, "scratch elements", scratch.elements(),
                           "f32 and at least what the scratch function of the op says");
  }
  return ok();
}

// bf16 states go with bf16 values; their last two columns stand for the f32 normaliser.
DType states_type(const Tensor& states, DType act) {
  return act == DType::kBF16 ? spec::value_type(states) : kF32;
}
int64_t state_columns(DType states, int64_t v) { return states == DType::kBF16 ? v + 2 : v + 1; }

Status check_chunk(const char* op, int64_t chunk) {
  if (chunk < 1 || chunk > kMlstmChunkMax) {
    return spec::bad_value(op, "chunk", chunk, "1..kMlstmChunkMax");
  }
  return ok();
}

}  // namespace

Status validate(const MlstmGatesArgs& a) {
  constexpr const char* kOp = "mlstm_gates";
  const DType act = spec::value_type(a.x_TD);
  const DType weight = spec::value_type(a.wi_ND);
  const int64_t t = a.x_TD.dims[0];
  const int64_t d = a.x_TD.dims[1];
  const int64_t n = a.wi_ND.dims[0];
  SWAX_TRY(spec::expect(kOp, {{"x_TD", a.x_TD, act, {t, d}, kStrided},
                              {"wi_ND", a.wi_ND, weight, {n, d}, kStrided},
                              {"wf_ND", a.wf_ND, weight, {n, d}, kStrided},
                              {"bi_N", a.bi_N, weight, {n}},
                              {"bf_N", a.bf_N, weight, {n}},
                              {"i_TN", a.i_TN, kF32, {t, n}},
                              {"f_TN", a.f_TN, kF32, {t, n}}}));
  if (!(a.cap >= 0.0F)) return spec::bad_value(kOp, "cap", static_cast<double>(a.cap), ">= 0");
  return ok();
}

Status validate(const MlstmGatesBackwardArgs& a) {
  constexpr const char* kOp = "mlstm_gates_backward";
  const DType act = spec::value_type(a.x_TD);
  const DType weight = spec::value_type(a.wi_ND);
  const int64_t t = a.x_TD.dims[0];
  const int64_t d = a.x_TD.dims[1];
  const int64_t n = a.wi_ND.dims[0];
  SWAX_TRY(spec::expect(kOp, {{"x_TD", a.x_TD, act, {t, d}, kStrided},
                              {"wi_ND", a.wi_ND, weight, {n, d}, kStrided},
                              {"wf_ND", a.wf_ND, weight, {n, d}, kStrided},
                              {"i_TN", a.i_TN, kF32, {t, n}},
                              {"f_TN", a.f_TN, kF32, {t, n}},
                              {"di_TN", a.di_TN, kF32, {t, n}},
                              {"df_TN", a.df_TN, kF32, {t, n}},
                              {"dx_TD", a.dx_TD, act, {t, d}, kStrided},
                              {"dwi_ND", a.dwi_ND, kF32, {n, d}, kStrided},
                              {"dwf_ND", a.dwf_ND, kF32, {n, d}, kStrided},
                              {"dbi_N", a.dbi_N, kF32, {n}},
                              {"dbf_N", a.dbf_N, kF32, {n}}}));
  if (!(a.cap >= 0.0F)) return spec::bad_value(kOp, "cap", static_cast<double>(a.cap), ">= 0");
  return ok();
}

Status validate(const MlstmArgs& a) {
  constexpr const char* kOp = "mlstm";
  SWAX_TRY(check_chunk(kOp, a.chunk));
  const DType act = spec::value_type(a.q_TNK);
  const int64_t t = a.q_TNK.dims[0];
  const int64_t n = a.q_TNK.dims[1];
  const int64_t k = a.q_TNK.dims[2];
  const int64_t u = a.v_TNU.dims[2];
  const int64_t c = mlstm_chunks(t, a.chunk);
  const DType states = states_type(a.states_CNKU1, act);
  SWAX_TRY(spec::expect(
      kOp, {{"q_TNK", a.q_TNK, act, {t, n, k}, kStrided},
            {"k_TNK", a.k_TNK, act, {t, n, k}, kStrided},
            {"v_TNU", a.v_TNU, act, {t, n, u}, kStrided},
            {"i_TN", a.i_TN, kF32, {t, n}},
            {"f_TN", a.f_TN, kF32, {t, n}},
            {"h_TNU", a.h_TNU, act, {t, n, u}, kStrided},
            {"states_CNKU1", a.states_CNKU1, states, {c + 1, n, k, state_columns(states, u)}},
            {"m_state_CN", a.m_state_CN, kF32, {c + 1, n}},
            {"m_TN", a.m_TN, kF32, {t, n}},
            {"den_TN", a.den_TN, kF32, {t, n}}}));
  SWAX_TRY(spec::expect_optional(kOp, {"reset_T", a.reset_T, DType::kU8, {t}}));
  return check_scratch(kOp, a.scratch, mlstm_scratch(t, n, k, u, a.chunk));
}

Status validate(const MlstmBackwardArgs& a) {
  constexpr const char* kOp = "mlstm_backward";
  SWAX_TRY(check_chunk(kOp, a.chunk));
  const DType act = spec::value_type(a.q_TNK);
  const int64_t t = a.q_TNK.dims[0];
  const int64_t n = a.q_TNK.dims[1];
  const int64_t k = a.q_TNK.dims[2];
  const int64_t u = a.v_TNU.dims[2];
  const int64_t c = mlstm_chunks(t, a.chunk);
  const DType states = states_type(a.states_CNKU1, act);
  SWAX_TRY(spec::expect(
      kOp, {{"q_TNK", a.q_TNK, act, {t, n, k}, kStrided},
            {"k_TNK", a.k_TNK, act, {t, n, k}, kStrided},
            {"v_TNU", a.v_TNU, act, {t, n, u}, kStrided},
            {"i_TN", a.i_TN, kF32, {t, n}},
            {"f_TN", a.f_TN, kF32, {t, n}},
            {"h_TNU", a.h_TNU, act, {t, n, u}, kStrided},
            {"states_CNKU1", a.states_CNKU1, states, {c + 1, n, k, state_columns(states, u)}},
            {"m_state_CN", a.m_state_CN, kF32, {c + 1, n}},
            {"m_TN", a.m_TN, kF32, {t, n}},
            {"den_TN", a.den_TN, kF32, {t, n}}}));
  SWAX_TRY(spec::expect(kOp, {{"dh_TNU", a.dh_TNU, act, {t, n, u}, kStrided},
                              {"dq_TNK", a.dq_TNK, act, {t, n, k}, kStrided},
                              {"dk_TNK", a.dk_TNK, act, {t, n, k}, kStrided},
                              {"dv_TNU", a.dv_TNU, act, {t, n, u}, kStrided},
                              {"di_TN", a.di_TN, kF32, {t, n}},
                              {"df_TN", a.df_TN, kF32, {t, n}}}));
  SWAX_TRY(spec::expect_optional(kOp, {"reset_T", a.reset_T, DType::kU8, {t}}));
  return check_scratch(kOp, a.scratch, mlstm_backward_scratch(t, n, k, u, a.chunk));
}

Status validate(const MlstmStepArgs& a) {
  const DType act = spec::value_type(a.q_NK);
  const int64_t n = a.q_NK.dims[0];
  const int64_t k = a.q_NK.dims[1];
  const int64_t u = a.v_NU.dims[1];
  return spec::expect("mlstm_step", {{"q_NK", a.q_NK, act, {n, k}, kStrided},
                                     {"k_NK", a.k_NK, act, {n, k}, kStrided},
                                     {"v_NU", a.v_NU, act, {n, u}, kStrided},
                                     {"i_N", a.i_N, kF32, {n}},
                                     {"f_N", a.f_N, kF32, {n}},
                                     {"h_NU", a.h_NU, act, {n, u}, kStrided},
                                     {"state_NKU1", a.state_NKU1, kF32, {n, k, u + 1}},
                                     {"m_N", a.m_N, kF32, {n}}});
}

// Model-spec 7, with one half of the square of a chunk counted as work (the causal part).
double cost(const MlstmArgs& a) {
  const double t = static_cast<double>(a.q_TNK.dims[0] * a.q_TNK.dims[1]);
  const double k = static_cast<double>(a.q_TNK.dims[2]);
  const double u = static_cast<double>(a.v_TNU.dims[2]);
  const double l = static_cast<double>(a.chunk);
  return t * (4.0 * k * u * (1.0 + 0.5 / l) + (l + 1.0) * (k + u) + 4.0 * k);
}

double cost(const MlstmBackwardArgs& a) {
  const double t = static_cast<double>(a.q_TNK.dims[0] * a.q_TNK.dims[1]);
  const double k = static_cast<double>(a.q_TNK.dims[2]);
  const double u = static_cast<double>(a.v_TNU.dims[2]);
  const double l = static_cast<double>(a.chunk);
  return t * (10.0 * k * u + (l + 1.0) * (3.0 * k + 2.0 * u));
}

}  // namespace swax
