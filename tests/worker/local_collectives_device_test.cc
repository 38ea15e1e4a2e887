// Goal: LocalCollectives of ranks with device backends is ordered by streams alone: nobody reads a
// peer's memory before it is written, nobody's memory is overwritten before all have read it, and
// no call waits for the device. Method: a simulated device that runs work late and in random order;
// planted faults show that the contract would notice.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "tests/worker/collectives_device.h"
#include "tests/worker/collectives_lazy_device.h"
#include "worker/comm/local_collectives.h"

namespace swax::test {
namespace {

// W ranks on one simulated device, each with a CPU backend below.
struct LazyRanks {
  LazyRanks(int ranks, uint64_t seed, bool eager) : device(seed, eager) {
    for (int r = 0; r < ranks; ++r) {
      auto opened = open_backend({});
      EXPECT_TRUE(opened.ok());
      cpus.push_back(std::move(opened).value());
      backends.push_back(std::make_unique<LazyBackend>(device, *cpus.back()));
      pointers.push_back(backends.back().get());
    }
    handles = make_local_collectives(pointers);
  }
  void on_each_rank(const std::function<void(size_t)>& body) {
    std::vector<std::thread> threads;
    for (size_t r = 0; r < handles.size(); ++r) threads.emplace_back([&body, r] { body(r); });
    for (std::thread& t : threads) t.join();
  }
  std::vector<std::string> run_contract() {
    std::vector<std::string> bad(handles.size());
    on_each_rank([&](size_t r) { bad[r] = device_contract(*handles[r], *backends[r], {}); });
    return bad;
  }

  LazyDevice device;
  std::vector<std::unique_ptr<Backend>> cpus;
  std::vector<std::unique_ptr<LazyBackend>> backends;
  std::vector<Backend*> pointers;
  std::vector<std::unique_ptr<Collectives>> handles;
};

class LocalDevice : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LocalDevice, testing::Values(1, 2, 3, 4, 6));

TEST_P(LocalDevice, HoldsWhileWorkRunsInAnyOrder) {
  for (const uint64_t seed : {1, 2, 3}) {
    LazyRanks ranks(GetParam(), seed, true);
    for (const std::string& bad : ranks.run_contract()) EXPECT_EQ(bad, "") << "seed " << seed;
  }
}

TEST_P(LocalDevice, HoldsWhenNothingRunsBeforeTheEnd) {
  LazyRanks ranks(GetParam(), 4, false);
  for (const std::string& bad : ranks.run_contract()) EXPECT_EQ(bad, "");
}

TEST(LocalDevice, CallsReturnBeforeAnyWorkRan) {
  LazyRanks ranks(3, 5, false);
  std::vector<int64_t> memory(3 * 3, 0);
  std::vector<int64_t> mine(3, 7);
  ranks.on_each_rank([&](size_t r) {
    auto stream = ranks.backends[r]->make_stream();
    ASSERT_TRUE(stream.ok());
    const auto done = ranks.handles[r]->all_gather(**stream, Tensor::of(&mine[r], DType::kI64, {1}),
                                                   Tensor::of(&memory[3 * r], DType::kI64, {3}));
    ASSERT_TRUE(done.ok()) << done.status().to_string();
    EXPECT_NE(done->id, 0U);
    ASSERT_TRUE(ranks.handles[r]->barrier().ok());
    EXPECT_EQ(ranks.device.pieces_run(), 0);
    ASSERT_TRUE(ranks.handles[r]->barrier().ok());
    EXPECT_TRUE(ranks.backends[r]->sync(**stream).ok());
    ASSERT_TRUE(ranks.handles[r]->barrier().ok());
  });
  for (const int64_t value : memory) EXPECT_EQ(value, 7);
}

TEST(LocalDevice, AForgottenWaitWouldBeNoticed) {
  LazyRanks ranks(3, 6, true);
  ranks.backends[1]->forget_foreign_waits = true;
  std::string all;
  for (const std::string& bad : ranks.run_contract()) all += bad;
  EXPECT_NE(all, "");
}

TEST(LocalDevice, ACopyThatIsRefusedEndsTheGroup) {
  LazyRanks ranks(2, 7, true);
  ranks.backends[1]->refuse_copy = true;
  std::vector<int64_t> send(4, 1), recv(4, 0);
  std::vector<Status> first(2), second(2);
  ranks.on_each_rank([&](size_t r) {
    auto stream = ranks.backends[r]->make_stream();
    ASSERT_TRUE(stream.ok());
    const auto done =
        ranks.handles[r]->all_to_all(**stream, Tensor::of(&send[2 * r], DType::kI64, {2}),
                                     Tensor::of(&recv[2 * r], DType::kI64, {2}));
    first[r] = done.ok() ? ok() : done.status();
    second[r] = ranks.handles[r]->barrier();
    EXPECT_TRUE(ranks.backends[r]->sync(**stream).ok());
  });
  EXPECT_TRUE(first[0].ok());
  EXPECT_EQ(first[1].code(), Code::kInternal);
  EXPECT_EQ(second[0].code(), Code::kUnavailable);
  EXPECT_NE(second[0].message().find("device is lost"), std::string::npos);
}

TEST(LocalDevice, CpuBackendsAreCopiedByTheHost) {
  auto backend = open_backend({});
  ASSERT_TRUE(backend.ok());
  Backend* const pointers[] = {backend->get()};
  const auto handles = make_local_collectives(pointers);
  EXPECT_EQ(device_contract(*handles[0], **backend, {}), "");
}

}  // namespace
}  // namespace swax::test
