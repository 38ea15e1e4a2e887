// out_D = rows_RD[0] + rows_RD[1] + ..., a left fold per column, f32. Threads: as the backend.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace swax::cuda {

void fold_rows(cudaStream_t stream, const float* rows_RD, int64_t rows, int64_t dim, float* out_D);

}  // namespace swax::cuda
