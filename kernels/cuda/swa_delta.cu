// delta = do . o for the form that keeps dS: a quad a row, so that a warp reads 64 bytes of eight
// rows at a time, all of a row in flight.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/swa_delta.cuh"

namespace swax::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    delta_kernel(const __grid_constant__ SwaBackwardParams p) {
  const int64_t rows = int64_t{p.band.tokens} * p.heads;
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 4;
  const int64_t there = min(row, rows - 1);  // the whole warp shuffles
  const auto t = static_cast<int>(there / p.heads);
  const float delta = row_delta(p, t, static_cast<int>(there - int64_t{t} * p.heads));
  if (row < rows && threadIdx.x % 4 == 0) p.delta[row] = delta;
}

}  // namespace

Status launch_swa_delta(CUstream_st* stream, const SwaBackwardParams& p) {
  const int64_t blocks = div_ceil(int64_t{p.band.tokens} * p.heads * 4, int64_t{kThreads});
  return launch("swa_backward", {static_cast<unsigned>(blocks), kThreads, 0, stream}, delta_kernel,
                p);
}

}  // namespace swax::cuda
