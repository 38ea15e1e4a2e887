// out_D = rows_RD[0] + rows_RD[1] + ..., a left fold per column. Threads: as ThreadPool::run.
#pragma once

#include <cstdint>

#include "kernels/cpu/thread_pool.h"

namespace swax::cpu {

void fold_rows(ThreadPool& pool, const float* rows_RD, int64_t rows, int64_t dim, float* out_D);

}  // namespace swax::cpu
