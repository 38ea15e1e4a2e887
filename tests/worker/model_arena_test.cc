// The arena and the order in which the stack uses a UnitStore: LIFO memory, exact plans, calls of a
// fixed order, errors that leave the arena where it was.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/worker/model_rig.h"
#include "worker/model/arena.h"

namespace swax::test {
namespace {

struct alignas(256) Block {
  unsigned char bytes[4096];
};

TEST(Arena, HandsOutAlignedMemoryInOrder) {
  Block block{};
  Arena arena(block.bytes, 4096);
  const Tensor a = arena.take(DType::kU8, {1});
  const Tensor b = arena.take(DType::kF32, {3, 5, 2});
  const Tensor c = arena.take(DType::kF64, {8});
  EXPECT_EQ(a.data, block.bytes);
  EXPECT_EQ(b.data, block.bytes + 256);
  EXPECT_EQ(c.data, block.bytes + 512);
  EXPECT_EQ(b.rank, 3);
  EXPECT_EQ(b.row_stride, 10);
  EXPECT_TRUE(b.contiguous());
  EXPECT_EQ(arena.used(), 768);
}

TEST(Arena, ReleasesInReverseAndRemembersThePeak) {
  Block block{};
  Arena arena(block.bytes, 4096);
  const Tensor a = arena.take(DType::kF32, {64});
  const int64_t mark = arena.mark();
  const Tensor b = arena.take(DType::kF32, {512});
  arena.release(mark);
  EXPECT_EQ(arena.used(), mark);
  EXPECT_EQ(arena.peak(), mark + 2048);
  EXPECT_EQ(arena.take(DType::kF32, {1}).data, b.data);
  arena.release(0);
  EXPECT_EQ(arena.peak(), mark + 2048);
  arena.reset_peak();
  EXPECT_EQ(arena.peak(), 0);
  EXPECT_EQ(arena.take(DType::kF32, {64}).data, a.data);
}

TEST(Arena, PoisonsWhatIsReleasedInDebugBuilds) {
#ifdef NDEBUG
  GTEST_SKIP() << "poison is off in this build type";
#endif
  Block block{};
  Arena arena(block.bytes, 4096);
  arena.take(DType::kU8, {256});
  arena.take(DType::kU8, {256});
  arena.release(256);
  EXPECT_EQ(block.bytes[255], 0x00);
  EXPECT_EQ(block.bytes[256], 0xff);
  EXPECT_EQ(block.bytes[511], 0xff);
  EXPECT_EQ(block.bytes[512], 0x00);
}

TEST(Arena, MeasuresTheSameBytesWithoutMemory) {
  Block block{};
  Arena real(block.bytes, 4096), measuring = Arena::measuring();
  for (Arena* arena : {&real, &measuring}) {
    arena->take(DType::kBF16, {33});
    const int64_t mark = arena->mark();
    arena->take(DType::kI64, {7, 3});
    arena->release(mark);
    arena->take(DType::kF32, {5});
  }
  EXPECT_EQ(real.used(), measuring.used());
  EXPECT_EQ(real.peak(), measuring.peak());
  EXPECT_TRUE(measuring.is_measuring());
  EXPECT_NE(Arena::measuring(0).take(DType::kF32, {1}).data,
            Arena::measuring(1).take(DType::kF32, {1}).data);
}

TEST(ArenaDeathTest, TooSmallABlockIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Block block{};
  Arena arena(block.bytes, 512);
  arena.take(DType::kF32, {65});  // rounds up to 512
  EXPECT_DEATH(arena.take(DType::kU8, {1}), "check failed");
}

// Writes down every call and can refuse one.
class RecordingStore final : public UnitStore {
 public:
  explicit RecordingStore(UnitStore& inner) : inner_(inner) {}
  Result<const UnitTensors*> acquire(int unit, int next) override {
    SWAX_TRY(note("a" + std::to_string(unit) + ">" + std::to_string(next)));
    return inner_.acquire(unit, next);
  }
  Status release(int unit) override {
    SWAX_TRY(note("r" + std::to_string(unit)));
    return inner_.release(unit);
  }
  Result<const UnitTensors*> gradient(int unit) override {
    SWAX_TRY(note("g" + std::to_string(unit)));
    return inner_.gradient(unit);
  }
  Status gradient_ready(int unit) override {
    SWAX_TRY(note("G" + std::to_string(unit)));
    return inner_.gradient_ready(unit);
  }
  std::string calls;
  int count = 0;
  int refuse = -1;  // index of the call to refuse

 private:
  Status note(const std::string& call) {
    calls += (calls.empty() ? "" : " ") + call;
    return count++ == refuse ? unavailable("test") : ok();
  }
  UnitStore& inner_;
};

struct OneRank {
  ModelShape shape = tiny_shape({});  // layers S and M: units 0, 1, 2, head 3
  SlotData slot = random_slot(1, 20, shape.vocab);
  Rig rig{shape, random_weights(shape, 1)};
  RecordingStore store{rig.store()};
};

TEST(UnitStoreOrder, TrainingVisitsUnitsUpAndDown) {
  for (const RecomputeMode mode :
       {RecomputeMode::kNone, RecomputeMode::kLight, RecomputeMode::kBlock}) {
    OneRank s;
    s.rig.train(s.slot, {.recompute = mode}, &s.store);
    EXPECT_TRUE(s.rig.status().ok()) << s.rig.status().to_string();
    EXPECT_EQ(s.store.calls,
              "a0>1 r0 a1>2 r1 a2>3 r2 "
              "a3>2 g3 r3 G3 a2>1 g2 r2 G2 a1>-1 g1 r1 G1 g0 G0");
  }
}

TEST(UnitStoreOrder, EvaluationVisitsUnitsOnce) {
  OneRank s;
  s.rig.eval(s.slot, {}, &s.store);
  EXPECT_TRUE(s.rig.status().ok()) << s.rig.status().to_string();
  EXPECT_EQ(s.store.calls, "a0>1 r0 a1>2 r1 a2>3 r2 a3>-1 r3");
}

TEST(UnitStoreOrder, ErrorsComeThroughAndReleaseTheArena) {
  OneRank whole;
  whole.rig.train(whole.slot, {}, &whole.store);
  for (int call = 0; call < whole.store.count; ++call) {
    OneRank s;
    s.store.refuse = call;
    s.rig.train(s.slot, {.recompute = RecomputeMode::kLight}, &s.store);  // checks the arena's end
    EXPECT_EQ(s.rig.status().code(), Code::kUnavailable) << call;
    // The rig can be used again: no layer keeps a tensor of the failed run.
    s.rig.train(s.slot, {});
    EXPECT_TRUE(s.rig.status().ok()) << s.rig.status().to_string();
  }
}

TEST(ModelInputs, WrongSizesAreRefused) {
  OneRank s;
  SlotData slot = s.slot;
  slot.targets.pop_back();
  s.rig.train(slot, {});
  EXPECT_EQ(s.rig.status().code(), Code::kInvalidArgument);
  s.rig.eval(s.slot, {.window = 0});
  EXPECT_EQ(s.rig.status().code(), Code::kInvalidArgument);
}

TEST(ResidentStoreTest, RefusesWhatItDoesNotHold) {
  OneRank s;
  EXPECT_EQ(s.rig.store().acquire(4, -1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(s.rig.store().acquire(-1, -1).status().code(), Code::kInvalidArgument);
  std::vector<float> weights = s.rig.weights();
  ResidentStore frozen(s.shape, Tensor::of(weights.data(), DType::kF32, {s.shape.parameters()}),
                       {});
  EXPECT_TRUE(frozen.acquire(0, 1).ok());
  EXPECT_EQ(frozen.gradient(0).status().code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace swax::test
