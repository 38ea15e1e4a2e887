#include "jobs/slot_plan.h"

#include <bit>

#include "proto/base/check.h"
#include "proto/base/ids.h"

namespace swax {
namespace {

template <typename T>
T sum_in_order(const SlotPlan& p, const std::vector<T>& values) {
  SWAX_CHECK(static_cast<int64_t>(values.size()) == p.slots);
  T sum{};
  T partial[kSumLevelsMax + 1] = {};
  for (int64_t slot = 0; slot < p.slots; ++slot) {
    const SumStep step = sum_next(p, slot);
    T current = values[static_cast<size_t>(slot)];
    for (int level = 0; level < step.merges; ++level) current = partial[level] + current;
    if (!step.group_ends) {
      partial[step.store] = current;
      continue;
    }
    for (int i = 0; i < step.drain_count; ++i) current = partial[step.drain[i]] + current;
    sum = step.first_group ? current : sum + current;
  }
  return sum;
}

}  // namespace

int64_t micro_steps(const SlotPlan& p) { return div_ceil(p.slots, p.ranks); }

int64_t slot_of(const SlotPlan& p, int64_t micro_step, int rank) {
  const int64_t slot = micro_step * p.ranks + rank;
  return slot < p.slots ? slot : kNoSlot;
}

// A binary counter: before slot i of a group, partial[l] is occupied exactly where bit l of i is
// set. Slot i merges into the run of low set bits; what remains above them is drained when the
// group ends, so a short last group of n slots is tree(largest power of two below n) + tree(rest).
SumStep sum_next(const SlotPlan& p, int64_t slot) {
  SWAX_DCHECK(slot >= 0 && slot < p.slots);
  const uint32_t lane = static_cast<uint32_t>(slot % p.lanes);
  SumStep step;
  step.merges = std::countr_one(lane);
  step.first_group = slot < p.lanes;
  step.group_ends = lane + 1 == static_cast<uint32_t>(p.lanes) || slot + 1 == p.slots;
  if (!step.group_ends) {
    step.store = step.merges;
    return step;
  }
  for (int level = step.merges + 1; level < kSumLevelsMax; ++level) {
    if ((lane >> level & 1U) != 0) step.drain[step.drain_count++] = level;
  }
  return step;
}

// The bits of the counter between two micro-steps; they repeat after `lanes` micro-steps.
bool level_waits(const SlotPlan& p, int level) {
  for (int64_t j = 1; j <= p.lanes && j * p.ranks < p.slots; ++j) {
    if ((j * p.ranks % p.lanes >> level & 1) != 0) return true;
  }
  return false;
}

int levels_waiting(const SlotPlan& p) {
  int count = 0;
  for (int level = 0; level < kSumLevelsMax; ++level) count += level_waits(p, level) ? 1 : 0;
  return count;
}

double sum_slots(const SlotPlan& p, const std::vector<double>& values) {
  return sum_in_order(p, values);
}

int64_t sum_slots(const SlotPlan& p, const std::vector<int64_t>& values) {
  return sum_in_order(p, values);
}

}  // namespace swax
