// Slots: which rank computes which sequence, and the order of every sum over sequences. Pure.
// Sum order (design): slots form groups of `lanes` consecutive slots; inside a group a
// binary tree, over groups a left fold in rising order. The order depends on slot numbers alone, so
// every number of ranks gives the same bits.
#pragma once

#include <cstdint>
#include <vector>

namespace swax {

struct SlotPlan {
  int64_t slots = 0;  // B, sequences of a step
  int ranks = 1;      // W
  int lanes = 8;      // G, power of two <= 8
};

constexpr int64_t kNoSlot = -1;
constexpr int kSumLevelsMax = 3;  // log2 of the largest G

int64_t micro_steps(const SlotPlan& p);                            // ceil(B / W)
int64_t slot_of(const SlotPlan& p, int64_t micro_step, int rank);  // j * W + r, or kNoSlot

// What the owner of a piece does when the piece of `slot` arrives; slots arrive in rising order.
//   cur = piece
//   for l in 0..merges-1: cur = partial[l] + cur        (the earlier slots stand on the left)
//   if the group ends with this slot:
//     for each level in `drain`, rising: cur = partial[level] + cur
//     acc = first_group ? cur : acc + cur
//   else: partial[store] = cur
struct SumStep {
  int merges = 0;
  int store = -1;  // level to store to, -1 when the group ends here
  int drain_count = 0;
  int drain[kSumLevelsMax] = {0, 0, 0};
  bool group_ends = false;
  bool first_group = false;
};
SumStep sum_next(const SlotPlan& p, int64_t slot);

// Whether a partial sum of `level` waits for slots of a later micro-step. The owner holds those
// beside its accumulator; the others live while the pieces of one micro-step are added.
bool level_waits(const SlotPlan& p, int level);
int levels_waiting(const SlotPlan& p);  // their number

// The same order over doubles and integers that lie in memory ([B] in slot order).
double sum_slots(const SlotPlan& p, const std::vector<double>& values);
int64_t sum_slots(const SlotPlan& p, const std::vector<int64_t>& values);

}  // namespace swax
