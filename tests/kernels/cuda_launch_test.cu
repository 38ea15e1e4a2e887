// Goal: a kernel whose roles take registers from each other is launched only as it was compiled to
// be: with another number it would wait for ever on the device, or take what it does not have.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cuda/kernel_launch.cuh"
#include "tests/kernels/cuda_device.h"

namespace swax::cuda {
namespace {

__global__ void store_one(int* to) { *to = 1; }

TEST(CudaLaunch, RefusesAnotherNumberOfRegisters) {
  SWAX_NEED_DEVICE();
  cudaFuncAttributes found{};
  ASSERT_EQ(cudaFuncGetAttributes(&found, reinterpret_cast<const void*>(store_one)), cudaSuccess);
  test::DeviceTensor to("to", DType::kI32, {1});
  const auto run = [&](int registers) {
    Launch l;
    l.registers = registers;
    return launch("store", l, store_one, static_cast<int*>(to.tensor().data));
  };
  const Status more = run(found.numRegs + 1);
  EXPECT_EQ(more.code(), Code::kInternal);
  EXPECT_NE(more.message().find("store: compiled with "), std::string::npos) << more.message();
  EXPECT_EQ(run(found.numRegs - 1).code(), Code::kInternal);
  const Status same = run(found.numRegs);
  EXPECT_TRUE(same.ok()) << same.to_string();
  test::sync_device();
  int32_t value = 0;
  std::memcpy(&value, to.bytes().data(), sizeof(value));
  EXPECT_EQ(value, 1);
}

}  // namespace
}  // namespace swax::cuda
