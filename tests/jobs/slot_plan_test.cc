// Goal: the sum over slots has one order that depends on slot numbers alone.
// Method: what an owner does with arriving pieces is simulated in float32 for every number of ranks
// and compared bit by bit with the definition: a binary tree inside each group of G slots, a left
// fold over the groups.
#include "jobs/slot_plan.h"

#include <gtest/gtest.h>

#include <bit>
#include <span>
#include <vector>

#include "proto/base/rng.h"

namespace swax {
namespace {

// Values whose sums round differently in different orders: both signs, sizes from 2^-3 to 2^3.
std::vector<float> hard_values(int64_t count, uint64_t seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const PhiloxBlock b = random_block(seed, Purpose::kTest, static_cast<uint64_t>(i));
    const float mantissa = 1.0F + static_cast<float>(b[0] >> 9) * 0x1p-23F;
    const int exponent = static_cast<int>(b[1] % 7) - 3;
    const float scale = std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
    values.push_back((b[2] & 1U ? -mantissa : mantissa) * scale);
  }
  return values;
}

template <typename T>
T tree(std::span<const T> v) {
  if (v.size() == 1) return v[0];
  size_t left = 1;
  while (2 * left < v.size()) left *= 2;
  return tree(v.first(left)) + tree(v.subspan(left));
}

template <typename T>
T defined_sum(const std::vector<T>& v, size_t lanes) {
  T sum{};
  for (size_t begin = 0; begin < v.size(); begin += lanes) {
    const T group = tree(std::span<const T>(v).subspan(begin, std::min(lanes, v.size() - begin)));
    sum = begin == 0 ? group : sum + group;
  }
  return sum;
}

struct Owner {
  float acc = 0.0F;
  float partial[kSumLevelsMax] = {};

  void receive(const SumStep& step, float piece) {
    float current = piece;
    for (int level = 0; level < step.merges; ++level) current = partial[level] + current;
    if (!step.group_ends) {
      ASSERT_GE(step.store, 0);
      ASSERT_LT(step.store, kSumLevelsMax);
      partial[step.store] = current;
      return;
    }
    ASSERT_EQ(step.store, -1);
    for (int i = 0; i < step.drain_count; ++i) current = partial[step.drain[i]] + current;
    acc = step.first_group ? current : acc + current;
  }
};

TEST(SlotPlan, EveryNumberOfRanksGivesTheBitsOfTheDefinition) {
  for (const int lanes : {1, 2, 4, 8}) {
    for (int64_t slots = 1; slots <= 40; ++slots) {
      const std::vector<float> values = hard_values(slots, static_cast<uint64_t>(slots));
      const float wanted = defined_sum(values, static_cast<size_t>(lanes));
      for (int ranks = 1; ranks <= 64; ++ranks) {
        const SlotPlan plan{slots, ranks, lanes};
        Owner owner;
        int64_t arrived = 0;
        for (int64_t j = 0; j < micro_steps(plan); ++j) {
          for (int r = 0; r < ranks; ++r) {
            const int64_t slot = slot_of(plan, j, r);
            if (slot == kNoSlot) continue;
            ASSERT_EQ(slot, arrived++);  // every slot once, in rising order
            owner.receive(sum_next(plan, slot), values[static_cast<size_t>(slot)]);
          }
        }
        ASSERT_EQ(arrived, slots);
        ASSERT_EQ(std::bit_cast<uint32_t>(owner.acc), std::bit_cast<uint32_t>(wanted))
            << "G=" << lanes << " B=" << slots << " W=" << ranks;
      }
    }
  }
}

// Counted from what the owner stores and takes, micro-step by micro-step.
TEST(SlotPlan, LevelsWaitThatSlotsOfALaterMicroStepJoin) {
  for (const int lanes : {1, 2, 4, 8}) {
    for (int64_t slots = 1; slots <= 40; ++slots) {
      for (int ranks = 1; ranks <= 64; ++ranks) {
        const SlotPlan plan{slots, ranks, lanes};
        int64_t stored_by[kSumLevelsMax] = {-1, -1, -1};  // micro-step
        bool waits[kSumLevelsMax] = {};
        for (int64_t slot = 0; slot < slots; ++slot) {
          const SumStep step = sum_next(plan, slot);
          const auto take = [&](int level) {
            if (stored_by[level] < slot / ranks) waits[level] = true;
          };
          for (int level = 0; level < step.merges; ++level) take(level);
          for (int i = 0; i < step.drain_count; ++i) take(step.drain[i]);
          if (!step.group_ends) stored_by[step.store] = slot / ranks;
        }
        int count = 0;
        for (int level = 0; level < kSumLevelsMax; ++level) {
          EXPECT_EQ(level_waits(plan, level), waits[level])
              << slots << " slots, " << ranks << " ranks, " << lanes << " lanes, level " << level;
          count += waits[level] ? 1 : 0;
        }
        EXPECT_EQ(levels_waiting(plan), count);
      }
    }
  }
  EXPECT_EQ(levels_waiting({.slots = 64, .ranks = 8, .lanes = 8}), 0);
}

TEST(SlotPlan, SumsInMemoryFollowTheSameOrder) {
  for (const int lanes : {1, 2, 4, 8}) {
    for (int64_t slots = 1; slots <= 40; ++slots) {
      const std::vector<float> narrow = hard_values(slots, 99);
      std::vector<double> values;
      std::vector<int64_t> counts;
      for (const float v : narrow) {
        values.push_back(static_cast<double>(v) / 3.0);
        counts.push_back(static_cast<int64_t>(v));
      }
      const SlotPlan plan{slots, 1, lanes};
      EXPECT_EQ(std::bit_cast<uint64_t>(sum_slots(plan, values)),
                std::bit_cast<uint64_t>(defined_sum(values, static_cast<size_t>(lanes))));
      EXPECT_EQ(sum_slots(plan, counts), defined_sum(counts, static_cast<size_t>(lanes)));
    }
  }
}

// The test above can only fail if the order matters for these values.
TEST(SlotPlan, OrderMattersForTheTestValues) {
  int differ = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const std::vector<float> values = hard_values(40, seed);
    differ += defined_sum(values, 1) != defined_sum(values, 8);
    differ += defined_sum(values, 2) != defined_sum(values, 4);
  }
  EXPECT_GT(differ, 40);  // of 80
}

TEST(SlotPlan, OneLaneIsALeftFold) {
  const std::vector<float> values = hard_values(17, 3);
  float fold = values[0];
  for (size_t i = 1; i < values.size(); ++i) fold = fold + values[i];
  EXPECT_EQ(std::bit_cast<uint32_t>(defined_sum(values, 1)), std::bit_cast<uint32_t>(fold));
}

TEST(SlotPlan, MicroStepsRoundUp) {
  EXPECT_EQ(micro_steps({8, 1, 8}), 8);
  EXPECT_EQ(micro_steps({8, 3, 8}), 3);
  EXPECT_EQ(micro_steps({8, 8, 8}), 1);
  EXPECT_EQ(micro_steps({8, 64, 8}), 1);
  EXPECT_EQ(slot_of({8, 3, 8}, 2, 1), 7);
  EXPECT_EQ(slot_of({8, 3, 8}, 2, 2), kNoSlot);
}

}  // namespace
}  // namespace swax
