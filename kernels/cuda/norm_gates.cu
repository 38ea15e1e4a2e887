// RMSNorm with the gates that read it: the two ops, one after the other.
#include "kernels/cuda/cuda_backend.h"

namespace swax::cuda {

Status CudaBackend::rms_norm_gates(Stream& s, const RmsNormGatesArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(rms_norm(s, a.norm));
  return mlstm_gates(s, a.gates);
}

Status CudaBackend::rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) {
  SWAX_TRY(validate(a));
  SWAX_TRY(mlstm_gates_backward(s, a.gates));
  return rms_norm_backward(s, a.norm);
}

}  // namespace swax::cuda
