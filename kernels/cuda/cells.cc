// Attention and the mLSTM cell: checks, then their launchers.
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/mlstm.h"
#include "kernels/cuda/swa.h"

namespace swax::cuda {

Status CudaBackend::swa(Stream& s, const SwaArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("swa", {&a.q_THE, &a.k_TGE, &a.v_TGE, &a.doc_start_T, &a.o_THE, &a.lse_TH}));
  return launch_swa(raw(s), a);
}

Status CudaBackend::swa_backward(Stream& s, const SwaBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("swa_backward",
                     {&a.q_THE, &a.k_TGE, &a.v_TGE, &a.doc_start_T, &a.o_THE, &a.lse_TH, &a.do_THE,
                      &a.dq_THE, &a.dk_TGE, &a.dv_TGE, &a.scratch, &a.cos_TP, &a.sin_TP}));
  return launch_swa_backward(raw(s), a);
}

Status CudaBackend::swa_decode(Stream& s, const SwaDecodeArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("swa_decode", {&a.q_HE, &a.k_RGE, &a.v_RGE, &a.o_HE}));
  return launch_swa_decode(raw(s), a);
}

Status CudaBackend::mlstm(Stream& s, const MlstmArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("mlstm", {&a.q_TNK, &a.k_TNK, &a.v_TNU, &a.i_TN, &a.f_TN, &a.reset_T, &a.h_TNU,
                               &a.states_CNKU1, &a.m_state_CN, &a.m_TN, &a.den_TN, &a.scratch}));
  return launch_mlstm(raw(s), a);
}

Status CudaBackend::mlstm_backward(Stream& s, const MlstmBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("mlstm_backward",
                     {&a.q_TNK, &a.k_TNK, &a.v_TNU, &a.i_TN, &a.f_TN, &a.reset_T, &a.h_TNU,
                      &a.states_CNKU1, &a.m_state_CN, &a.m_TN, &a.den_TN, &a.dh_TNU, &a.dq_TNK,
                      &a.dk_TNK, &a.dv_TNU, &a.di_TN, &a.df_TN, &a.scratch}));
  return launch_mlstm_backward(raw(s), a);
}

Status CudaBackend::mlstm_step(Stream& s, const MlstmStepArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(need_data("mlstm_step",
                     {&a.q_NK, &a.k_NK, &a.v_NU, &a.i_N, &a.f_N, &a.h_NU, &a.state_NKU1, &a.m_N}));
  return launch_mlstm_step(raw(s), a);
}

}  // namespace swax::cuda
