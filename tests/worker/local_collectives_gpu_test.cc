// Goal: ranks that are threads on one GPU, each with its own backend and streams, exchange device
// memory rightly whatever the GPU runs first. Method: the contract of collectives_device.h with
// fills of a large buffer as delays. Skipped with the reason where there is no device.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "tests/worker/collectives_device.h"
#include "worker/comm/local_collectives.h"

namespace swax::test {
namespace {

class LocalGpu : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LocalGpu, testing::Values(1, 2, 3, 4));

TEST_P(LocalGpu, Holds) {
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<Backend*> pointers;
  for (int r = 0; r < GetParam(); ++r) {
    auto opened = open_backend({.kind = BackendKind::kCuda});
    if (!opened.ok()) GTEST_SKIP() << opened.status().message();
    pointers.push_back(opened->get());
    backends.push_back(std::move(opened).value());
  }
  auto handles = make_local_collectives(pointers);
  std::vector<std::string> bad(handles.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < handles.size(); ++r) {
    threads.emplace_back([&, r] {
      bad[r] = device_contract(
          *handles[r], *backends[r],
          {.rounds = 100, .elements_max = 50'000, .delay_bytes = int64_t{256} << 20});
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& text : bad) EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace swax::test
