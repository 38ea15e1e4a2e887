// The mLSTM cell, the simple form: one thread per element of a result, any shape. Internal to
// kernels/cuda.
#pragma once

#include "kernels/cuda/mlstm.h"

namespace swax::cuda {

Status launch_mlstm_simple(CUstream_st* stream, const MlstmArgs& a);
Status launch_mlstm_backward_simple(CUstream_st* stream, const MlstmBackwardArgs& a);

}  // namespace swax::cuda
