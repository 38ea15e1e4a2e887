// Goal: NcclCollectives moves the right bytes, refuses ranks that share a GPU, and ends a call, of
// the device or of the host, that hangs within its limit with the name of the late rank. Method:
// ranks as threads, one GPU each, over LocalCollectives as the host's group; a group of one rank
// wherever there is a GPU.
#include "worker/comm/nccl_collectives.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "proto/base/clock.h"
#include "tests/worker/collectives_device.h"
#include "worker/comm/local_collectives.h"

namespace swax::test {
namespace {

constexpr int kRanksMax = 8;

// One backend a GPU, or the reason why there is none.
struct Gpus {
  explicit Gpus(int wanted) {
    for (int i = 0; i < wanted; ++i) {
      auto opened = open_backend({.kind = BackendKind::kCuda, .ordinal = i});
      if (!opened.ok()) {
        reason = opened.status().message();
        return;
      }
      backends.push_back(std::move(opened).value());
    }
  }
  std::vector<std::unique_ptr<Backend>> backends;
  std::string reason;
};

// Runs `body` in one thread a rank.
using Body = std::function<void(Collectives& host, Backend& backend)>;
void on_each_rank(const std::vector<Backend*>& backends, const Body& body) {
  auto hosts = make_local_collectives(static_cast<int>(backends.size()));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < hosts.size(); ++r) {
    threads.emplace_back([&, r] { body(*hosts[r], *backends[r]); });
  }
  for (std::thread& t : threads) t.join();
}

std::vector<Backend*> pointers(const Gpus& gpus, size_t ranks) {
  std::vector<Backend*> out;
  for (size_t r = 0; r < ranks; ++r) out.push_back(gpus.backends[r].get());
  return out;
}

void expect_contract(Collectives& host, Backend& backend, bool copy_engines) {
  NcclOptions options;
  options.copy_engines = copy_engines;
  auto made = make_nccl_collectives(backend, host, options);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_EQ((*made)->rank(), host.rank());
  EXPECT_EQ((*made)->size(), host.size());
  EXPECT_EQ(device_contract(**made, backend,
                            {.rounds = 100, .elements_max = 200'000, .delay_bytes = 64 << 20}),
            "");
}

// A gather whose result nobody looks at.
Result<Event> gather(Collectives& c, Backend& backend, Stream& s, const Buffer& memory) {
  const int64_t count = memory.bytes() / 4 / c.size();
  auto* full = static_cast<float*>(memory.data());
  SWAX_TRY(backend.fill(s, {.x = Tensor::of(full, DType::kF32, {count}), .value = 1.0F}));
  return c.all_gather(s, Tensor::of(full + c.rank() * count, DType::kF32, {count}),
                      Tensor::of(full, DType::kF32, {count * c.size()}));
}

TEST(NcclCollectives, OneRankHolds) {
  const Gpus gpus(1);
  if (gpus.backends.empty()) GTEST_SKIP() << gpus.reason;
  for (const bool copy_engines : {false, true}) {
    on_each_rank(pointers(gpus, 1), [&](Collectives& host, Backend& backend) {
      expect_contract(host, backend, copy_engines);
    });
  }
}

TEST(NcclCollectives, RanksThatShareAGpuAreRefused) {
  const Gpus one(1), same(1);
  if (same.backends.empty()) GTEST_SKIP() << same.reason;
  on_each_rank({one.backends[0].get(), same.backends[0].get()}, [](Collectives& host,
                                                                   Backend& backend) {
    const auto made = make_nccl_collectives(backend, host);
    EXPECT_EQ(made.status().code(), Code::kFailedPrecondition);
    EXPECT_NE(made.status().message().find("ranks 0 and 1 have the same GPU"), std::string::npos)
        << made.status().message();
  });
}

TEST(NcclCollectives, EveryNumberOfRanksHolds) {
  const Gpus gpus(kRanksMax);
  if (gpus.backends.size() < 2) GTEST_SKIP() << "needs 2 GPUs: " << gpus.reason;
  for (size_t ranks = 2; ranks <= gpus.backends.size(); ++ranks) {
    for (const bool copy_engines : {false, true}) {
      on_each_rank(pointers(gpus, ranks), [&](Collectives& host, Backend& backend) {
        expect_contract(host, backend, copy_engines);
      });
    }
  }
}

constexpr int64_t kLimitMs = 2000;

// Runs body(collectives, backend, stream, memory) on every rank; calls have the limit of above.
template <typename Body>
void with_limit(const Gpus& gpus, Body body) {
  on_each_rank(pointers(gpus, gpus.backends.size()), [&](Collectives& host, Backend& backend) {
    NcclOptions options;
    options.call_ms_max = kLimitMs;
    auto made = make_nccl_collectives(backend, host, options);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    auto stream = backend.make_stream();
    auto memory = backend.allocate(1 << 20, MemoryKind::kDevice);
    ASSERT_TRUE(stream.ok() && memory.ok());
    body(**made, backend, **stream, *memory);
  });
}
void sleep_beyond_limit() { std::this_thread::sleep_for(std::chrono::milliseconds(2 * kLimitMs)); }
void expect_ended_at_limit(int64_t begin_ms) {
  const int64_t took_ms = SystemClock().monotonic_ms() - begin_ms;
  EXPECT_GE(took_ms, kLimitMs);
  EXPECT_LE(took_ms, kLimitMs + 5000);
}

TEST(NcclCollectives, AHungCallEndsWithinItsLimitAndNamesTheLateRank) {
  const Gpus gpus(kRanksMax);
  if (gpus.backends.size() < 2) GTEST_SKIP() << "needs 2 GPUs: " << gpus.reason;
  with_limit(gpus, [](Collectives& c, Backend& backend, Stream& stream, const Buffer& memory) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(gather(c, backend, stream, memory).ok());
    ASSERT_TRUE(backend.sync(stream).ok());
    ASSERT_TRUE(c.barrier().ok());
    const int64_t begin_ms = SystemClock().monotonic_ms();
    if (c.rank() == 1) {
      // A rank that hangs on its host: only its watchdog lives.
      sleep_beyond_limit();
    } else {
      const auto hung = gather(c, backend, stream, memory);
      ASSERT_TRUE(hung.ok() || hung.status().code() == Code::kUnavailable);
      ASSERT_TRUE(backend.sync(stream).ok());
      expect_ended_at_limit(begin_ms);
    }
    const auto later = gather(c, backend, stream, memory);
    EXPECT_EQ(later.status().code(), Code::kUnavailable);
    EXPECT_NE(later.status().message().find("late: rank 1 (has asked for 4 of 5 calls)"),
              std::string::npos)
        << later.status().message();
    EXPECT_EQ(c.barrier().code(), Code::kUnavailable);
  });
}

TEST(NcclCollectives, AHungHostCallEndsWithinItsLimitAndNamesTheLateRank) {
  const Gpus gpus(kRanksMax);
  if (gpus.backends.size() < 2) GTEST_SKIP() << "needs 2 GPUs: " << gpus.reason;
  with_limit(gpus, [](Collectives& c, Backend& backend, Stream& stream, const Buffer& memory) {
    // Before the first device call ranks may be as late as they like.
    if (c.rank() == 1) sleep_beyond_limit();
    ASSERT_TRUE(c.barrier().ok());
    ASSERT_TRUE(gather(c, backend, stream, memory).ok());
    ASSERT_TRUE(backend.sync(stream).ok());
    ASSERT_TRUE(c.barrier().ok());
    const int64_t begin_ms = SystemClock().monotonic_ms();
    if (c.rank() == 1) sleep_beyond_limit();
    const Status hung = c.barrier();
    EXPECT_EQ(hung.code(), Code::kUnavailable);
    EXPECT_NE(hung.message().find("late: rank 1 (has made 2 of 3 host calls)"), std::string::npos)
        << hung.message();
    if (c.rank() != 1) expect_ended_at_limit(begin_ms);
  });
}

TEST(NcclCollectives, AbortEndsEveryRank) {
  const Gpus gpus(kRanksMax);
  const size_t ranks = gpus.backends.size();
  if (ranks < 2) GTEST_SKIP() << "needs 2 GPUs: " << gpus.reason;
  on_each_rank(pointers(gpus, ranks), [&](Collectives& host, Backend& backend) {
    auto made = make_nccl_collectives(backend, host);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    auto stream = backend.make_stream();
    auto memory = backend.allocate(1 << 20, MemoryKind::kDevice);
    ASSERT_TRUE(stream.ok() && memory.ok());
    if (host.rank() == 1) {
      (*made)->abort("a test");
    } else {
      const auto hung = gather(**made, backend, **stream, *memory);
      ASSERT_TRUE(hung.ok() || hung.status().code() == Code::kUnavailable);
      ASSERT_TRUE(backend.sync(**stream).ok());
    }
    const auto later = gather(**made, backend, **stream, *memory);
    EXPECT_EQ(later.status().code(), Code::kUnavailable);
    EXPECT_NE(later.status().message().find("rank 1 aborted: a test"), std::string::npos)
        << later.status().message();
  });
}

}  // namespace
}  // namespace swax::test
