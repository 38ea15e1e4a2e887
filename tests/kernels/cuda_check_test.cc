// Goal: an error of the CUDA runtime is told once, by the op that met it. Without a driver every
// call fails, and no call takes the error away.
#include "kernels/cuda/check.h"

#include "tests/kernels/cuda_device.h"

namespace swax::cuda {
namespace {

TEST(CudaCheck, AnErrorIsToldOnce) {
  SWAX_NEED_DEVICE();
  const Status told = status_of(cudaSetDevice(-1), "first", "cudaSetDevice");
  EXPECT_EQ(told.code(), Code::kInternal) << told.to_string();
  EXPECT_EQ(told.message().find("first: cudaSetDevice: "), 0U) << told.message();
  const Status next = last_launch("next");
  EXPECT_TRUE(next.ok()) << next.to_string();
}

}  // namespace
}  // namespace swax::cuda
