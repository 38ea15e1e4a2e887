// out_D = rows_RD[0] + rows_RD[1] + ..., f32: left folds over 16 runs of rows, the runs in order.
// It is launched early: the kernel in front of it on the stream is the one that writes the rows.
// Threads: as the backend.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace swax::cuda {

void fold_rows(cudaStream_t stream, const float* rows_RD, int64_t rows, int64_t dim, float* out_D);

}  // namespace swax::cuda
