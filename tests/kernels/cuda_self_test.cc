// Goal: the self test passes on a good device within its time and notices a wrong kernel. Method:
// it is run on the device; its rule is given results that are right, worse than allowed, and NaN.
#include "kernels/cuda/self_test.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "kernels/self_test.h"
#include "proto/base/clock.h"

namespace swax::test {
namespace {

TEST(CudaSelfTest, PassesOnThisDeviceWithinTwoSeconds) {
  const auto backend = open_backend({.kind = BackendKind::kCuda});
  if (!backend.ok()) GTEST_SKIP() << backend.status().message();
  SystemClock clock;
  for (int run = 0; run < 2; ++run) {
    const int64_t begin_ms = clock.monotonic_ms();
    const Status s = self_test(**backend);
    const int64_t took_ms = clock.monotonic_ms() - begin_ms;
    EXPECT_TRUE(s.ok()) << s.to_string();
    EXPECT_LT(took_ms, 2000);
    RecordProperty("run_" + std::to_string(run) + "_ms", std::to_string(took_ms));
    printf("self test: %lld ms\n", static_cast<long long>(took_ms));
  }
}

TEST(CudaSelfTest, TheRuleIsTwiceTheSimpleForm) {
  const std::vector<float> exact(1000, 1.0F), simple(1000, 1.001F), near(1000, 0.9981F),
      far(1000, 1.0021F);
  EXPECT_TRUE(cuda::check_result("k", "r", near, simple, exact, 0.0).ok());
  const Status s = cuda::check_result("attention", "gradient dk", far, simple, exact, 0.0);
  EXPECT_EQ(s.code(), Code::kInternal);
  for (const char* word : {"attention", "gradient dk", "0.002", "0.001"}) {
    EXPECT_NE(s.message().find(word), std::string::npos) << s.message();
  }
}

TEST(CudaSelfTest, OneElementThatWasNotWrittenFails) {
  const std::vector<float> exact(1000, 1.0F), simple(1000, 1.001F);
  std::vector<float> tuned = exact;
  tuned[999] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(cuda::check_result("k", "r", tuned, simple, exact, 1.0).ok());
}

}  // namespace
}  // namespace swax::test
