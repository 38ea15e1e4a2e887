// LocalCollectives against the contract that every implementation must keep, for 1 to 8 ranks, with
// delays, and what ends a group: abort, a rank that leaves, an injected fault, ranks that disagree.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/base/rng.h"
#include "tests/worker/comm_contract.h"
#include "worker/comm/local_collectives.h"

namespace swax::test {
namespace {

using Handles = std::vector<std::unique_ptr<Collectives>>;

void on_each_rank(Handles& handles, const std::function<void(Collectives&)>& body) {
  std::vector<std::thread> threads;
  for (auto& handle : handles) threads.emplace_back([&] { body(*handle); });
  for (std::thread& t : threads) t.join();
}

std::vector<Status> barrier_on_each_rank(Handles& handles) {
  std::vector<Status> ends(handles.size());
  on_each_rank(handles, [&](Collectives& c) {
    Status s = ok();
    for (int i = 0; i < 100 && s.ok(); ++i) s = c.barrier();
    ends[static_cast<size_t>(c.rank())] = s;
  });
  return ends;
}

class LocalContract : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LocalContract, testing::Range(1, 9));

TEST_P(LocalContract, Holds) {
  Handles handles = make_local_collectives(GetParam());
  ASSERT_EQ(static_cast<int>(handles.size()), GetParam());
  on_each_rank(handles, [](Collectives& c) { EXPECT_EQ(collectives_contract(c), ""); });
}

TEST_P(LocalContract, HoldsWhenRanksComeLate) {
  LocalFaults faults;
  faults.before = [](int rank, int64_t call) {
    const uint64_t index = static_cast<uint64_t>(call * 8 + rank);
    const uint32_t word = random_block(3, Purpose::kTest, index)[0];
    if (word % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(word % 400));
    return true;
  };
  Handles handles = make_local_collectives(GetParam(), faults);
  on_each_rank(handles, [](Collectives& c) { EXPECT_EQ(collectives_contract(c), ""); });
}

TEST_P(LocalContract, InjectedFaultFailsEveryRank) {
  LocalFaults faults;
  const int bad_rank = GetParam() - 1;
  faults.before = [bad_rank](int rank, int64_t call) { return rank != bad_rank || call != 5; };
  Handles handles = make_local_collectives(GetParam(), faults);
  for (const Status& s : barrier_on_each_rank(handles)) {
    EXPECT_EQ(s.code(), Code::kUnavailable);
    EXPECT_NE(s.message().find("call 5"), std::string::npos) << s.to_string();
  }
}

TEST_P(LocalContract, AbortFailsEveryRankForGood) {
  Handles handles = make_local_collectives(GetParam());
  on_each_rank(handles, [](Collectives& c) { EXPECT_TRUE(c.barrier().ok()); });
  handles.front()->abort("test");
  for (const Status& s : barrier_on_each_rank(handles)) {
    EXPECT_EQ(s.code(), Code::kUnavailable);
    EXPECT_NE(s.message().find("rank 0 aborted: test"), std::string::npos) << s.to_string();
  }
  for (const Status& s : barrier_on_each_rank(handles)) EXPECT_EQ(s.code(), Code::kUnavailable);
}

TEST(LocalCollectives, AbortFromAnotherThreadWakesWaitingRanks) {
  Handles handles = make_local_collectives(3);
  std::atomic<int> failed{0};
  std::vector<std::thread> waiting;
  for (size_t r = 0; r < 2; ++r) {
    waiting.emplace_back([&, r] {
      if (handles[r]->barrier().code() == Code::kUnavailable) ++failed;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(failed.load(), 0);
  handles[0]->abort("from outside");
  for (std::thread& t : waiting) t.join();
  EXPECT_EQ(failed.load(), 2);
}

TEST(LocalCollectives, RankThatLeavesFailsTheWaitingOnes) {
  Handles handles = make_local_collectives(4);
  std::vector<Status> ends(4);
  on_each_rank(handles, [&](Collectives& c) {
    const auto r = static_cast<size_t>(c.rank());
    ends[r] = c.barrier();
    if (r == 2) {
      handles[r].reset();  // the thread ends, as after an error of its own
      return;
    }
    ends[r] = c.barrier();
  });
  for (const size_t r : {size_t{0}, size_t{1}, size_t{3}}) {
    EXPECT_EQ(ends[r].code(), Code::kUnavailable);
    EXPECT_NE(ends[r].message().find("rank 2 left"), std::string::npos) << ends[r].to_string();
  }
  EXPECT_TRUE(ends[2].ok());
}

TEST(LocalCollectives, RankMayLeaveBehindTheLastCall) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    Handles handles = make_local_collectives(3);
    std::vector<Status> ends(3);
    on_each_rank(handles, [&](Collectives& c) {
      const auto r = static_cast<size_t>(c.rank());
      ends[r] = c.barrier();
      handles[r].reset();
    });
    for (const Status& s : ends) EXPECT_TRUE(s.ok()) << s.to_string();
  }
}

TEST(LocalCollectives, RanksThatDisagreeFail) {
  Handles handles = make_local_collectives(2);
  std::vector<Status> ends(2);
  on_each_rank(handles, [&](Collectives& c) {
    std::vector<int64_t> values(c.rank() == 0 ? 1 : 2, 0);
    ends[static_cast<size_t>(c.rank())] = c.max_host(values);
  });
  for (const Status& s : ends) {
    EXPECT_EQ(s.code(), Code::kUnavailable);
    EXPECT_NE(s.message().find("ranks disagree"), std::string::npos) << s.to_string();
  }
}

TEST(LocalCollectives, WrongSizesAreRefusedAndEndTheGroup) {
  Handles handles = make_local_collectives(2);
  NoStream s;
  std::vector<float> data(8);
  const Tensor three = Tensor::of(data.data(), DType::kF32, {3});
  const Tensor four = Tensor::of(data.data(), DType::kF32, {4});
  EXPECT_EQ(handles[0]->all_gather(s, three, four).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(handles[0]->all_to_all(s, three, three).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(handles[1]->barrier().code(), Code::kUnavailable);
}

TEST(LocalCollectives, GroupsDoNotShareAnything) {
  Handles a = make_local_collectives(2), b = make_local_collectives(2);
  a[0]->abort("only this group");
  on_each_rank(b, [](Collectives& c) { EXPECT_EQ(collectives_contract(c), ""); });
}

}  // namespace
}  // namespace swax::test
