// Goal: a link or a library that changes what ranks exchange is found before the first step, by
// every rank, with the call and the ranks named; links that carry what they are given pass.
// Method: trainers as threads over collectives that change one bit of one element, of one call, for
// one receiver or for all alike, or deliver pieces in each other's place.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/worker/train_support.h"
#include "worker/comm/collectives_wrapper.h"
#include "worker/model/plan.h"

namespace swax::test {
namespace {

// What a faulty link does with what a call of this rank has received.
using Fault = std::function<void(int rank, bool gather, int64_t call, Tensor received)>;
// The same before the call, with what this rank sends.
using Mix = std::function<void(int rank, bool gather, Tensor sent)>;

class FaultyCollectives final : public CollectivesWrapper {
 public:
  FaultyCollectives(Collectives& inner, const Fault& fault, const Mix& mix)
      : CollectivesWrapper(inner), fault_(fault), mix_(mix) {}
  Result<Event> all_gather(Stream& s, Tensor shard, Tensor full) override {
    if (mix_) mix_(rank(), true, shard);
    SWAX_ASSIGN(const Event done, CollectivesWrapper::all_gather(s, shard, full));
    fault_(rank(), true, gathers_++, full);
    return done;
  }
  Result<Event> all_to_all(Stream& s, Tensor send, Tensor recv) override {
    if (mix_) mix_(rank(), false, send);
    SWAX_ASSIGN(const Event done, CollectivesWrapper::all_to_all(s, send, recv));
    fault_(rank(), false, exchanges_++, recv);
    return done;
  }

 private:
  const Fault& fault_;
  const Mix& mix_;
  int64_t gathers_ = 0, exchanges_ = 0;
};

// What start() of each rank says. `before`: what a rank does before it.
std::vector<Status> started(int ranks, const char* reshard, const Fault& fault, const Mix& mix = {},
                            const std::function<void(int rank)>& before = {}) {
  static const TrainData data(200, 200);
  const pb::JobSpec spec = micro_spec(data, {{"parallelism.fsdp_reshard_after_forward", reshard}});
  auto handles = make_local_collectives(ranks);
  std::vector<Status> out(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      out[static_cast<size_t>(rank)] = [&]() -> Status {
        SWAX_ASSIGN(const auto backend, open_backend({}));
        const auto replica = make_local_collectives(1);
        FaultyCollectives shard(*handles[static_cast<size_t>(rank)], fault, mix);
        VectorSink sink;
        TrainerOptions options;
        options.spec = spec;
        options.data_folders = {data.folder()};
        options.sink = &sink;
        SWAX_ASSIGN(const auto trainer,
                    Trainer::create(*backend, shard, *replica[0], std::move(options)));
        if (before) before(rank);
        SWAX_TRY(trainer->start());
        return ok();
      }();
    });
  }
  for (std::thread& t : threads) t.join();
  return out;
}

void flip(const Tensor& received, int64_t element) {
  static_cast<unsigned char*>(received.data)[element * dtype_bytes(received.dtype)] ^= 1U;
}

// By every rank.
void expect_found(const std::vector<Status>& said, const std::string& what) {
  for (const Status& s : said) {
    EXPECT_EQ(s.code(), Code::kInternal) << s.to_string();
    EXPECT_NE(s.message().find(what), std::string::npos) << s.message();
  }
}

TEST(ExchangeTest, SoundLinksPass) {
  for (const int ranks : {1, 2, 3}) {
    for (const char* reshard : {"never", "always"}) {
      for (const Status& s : started(ranks, reshard, [](int, bool, int64_t, Tensor) {}))
        EXPECT_TRUE(s.ok()) << s.to_string();
    }
  }
}

// The last element of what the second rank sent, of every unit in turn.
TEST(ExchangeTest, ABitOfAGatheredUnitIsFound) {
  static const TrainData data(200, 200);
  const int64_t units = model_shape(micro_spec(data).model())->units();
  for (const char* reshard : {"never", "always"}) {
    for (int64_t unit = 0; unit < units; ++unit) {
      const auto said = started(3, reshard, [&](int rank, bool gather, int64_t call, Tensor t) {
        if (rank == 2 && gather && call == unit) flip(t, t.elements() / 3 * 2 - 1);
      });
      expect_found(said, "all_gather: what rank 1 sent to rank 2 arrived as something else");
    }
  }
}

// Both exchange buffers.
TEST(ExchangeTest, ABitOfAnExchangeIsFound) {
  for (const int64_t buffer : {0, 1}) {
    const auto said = started(3, "never", [&](int rank, bool gather, int64_t call, Tensor t) {
      if (rank == 0 && !gather && call == buffer) flip(t, t.elements() - 1);
    });
    expect_found(said, "all_to_all: what rank 2 sent to rank 0 arrived as something else");
  }
}

TEST(ExchangeTest, PiecesInEachOthersPlaceAreFound) {
  const auto said = started(2, "never", [](int rank, bool gather, int64_t call, Tensor t) {
    if (rank != 1 || gather || call != 0) return;
    float* data = t.f32();
    std::swap_ranges(data, data + t.elements() / 2, data + t.elements() / 2);
  });
  expect_found(said, "all_to_all: what rank 0 sent to rank 1 arrived as something else");
}

// A call that leaves what was there before: nothing arrives.
TEST(ExchangeTest, NothingIsFoundToo) {
  const auto said = started(2, "never", [](int rank, bool gather, int64_t call, Tensor t) {
    if (rank == 0 && !gather && call == 1) std::fill_n(t.f32(), t.elements(), 0.0F);
  });
  expect_found(said, "all_to_all: what rank 0 sent to rank 0 arrived as something else");
}

// What all ranks get alike differs from no other rank's copy.
TEST(ExchangeTest, WhatIsWrongOnAllRanksAlikeIsFound) {
  for (const char* reshard : {"never", "always"}) {
    for (const bool swapped : {false, true}) {
      const auto said = started(3, reshard, [&](int, bool gather, int64_t call, Tensor t) {
        if (!gather || call != 1) return;
        float* data = t.f32();
        const int64_t part = t.elements() / 3;
        if (swapped) {
          std::swap_ranges(data, data + part, data + part);
        } else {
          std::fill_n(data, t.elements(), 0.0F);
        }
      });
      expect_found(said, "all_gather: what rank 0 sent to rank 0 arrived");
    }
  }
}

// The second halves of two pieces of one sender, each for the other's receiver.
TEST(ExchangeTest, PartsOfPiecesInEachOthersPlaceAreFound) {
  const auto said = started(
      3, "never", [](int, bool, int64_t, Tensor) {},
      [](int rank, bool gather, Tensor sent) {
        if (rank != 0 || gather) return;
        const int64_t piece = sent.elements() / 3;
        float* data = sent.f32() + piece;
        std::swap_ranges(data + piece / 2, data + piece, data + piece + piece / 2);
      });
  expect_found(said, "all_to_all: what rank 0 sent to rank 1 arrived");
}

// A device call has a limit of time; what comes before the first one has none.
TEST(ExchangeTest, NoRankIsInADeviceCallBeforeAllHaveWeights) {
  constexpr auto kLate = std::chrono::milliseconds(200);
  std::atomic<bool> called{false}, early{false};
  const auto said = started(
      2, "never", [](int, bool, int64_t, Tensor) {},
      [&](int rank, bool, Tensor) {
        if (rank == 0) called = true;
      },
      [&](int rank) {
        if (rank == 0) return;
        std::this_thread::sleep_for(kLate);
        early = called.load();
      });
  for (const Status& s : said) EXPECT_TRUE(s.ok()) << s.to_string();
  EXPECT_FALSE(early);
}

}  // namespace
}  // namespace swax::test
