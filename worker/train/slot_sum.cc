#include "worker/train/slot_sum.h"

#include <array>

namespace swax {

Result<SlotSum> SlotSum::create(Backend& backend, const Layout& layout, const SlotPlan& plan) {
  SlotSum sum;
  sum.plan_ = plan;
  int64_t total = 0;
  for (const UnitLayout& unit : layout.units) {
    sum.unit_begin_.push_back(total);
    sum.unit_elements_.push_back(unit.shard_elements);
    total += unit.shard_elements;
  }
  SWAX_ASSIGN(sum.accumulator_, make_block(backend, DType::kF32, {total}));
  for (int level = 0; level < sum_levels(plan); ++level) {
    SWAX_ASSIGN(Block partial, make_block(backend, DType::kF32, {total}));
    sum.partials_.push_back(std::move(partial));
  }
  return sum;
}

Tensor SlotSum::unit_part(const Tensor& flat, int unit) const {
  return flat_part(flat, unit_begin_[unit], unit_elements_[unit]);
}

Tensor SlotSum::unit_accumulator(int unit) const { return unit_part(accumulator_.tensor, unit); }

int64_t SlotSum::bytes() const {
  int64_t bytes = accumulator_.buffer.bytes();
  for (const Block& partial : partials_) bytes += partial.buffer.bytes();
  return bytes;
}

Tensor SlotSum::place(int index, int unit) const {
  return unit_part(index == 0 ? accumulator_.tensor : partials_[index - 1].tensor, unit);
}

int SlotSum::place_of(int64_t slot) const {
  const SumStep step = sum_next(plan_, slot);
  const bool alone =
      step.merges == 0 && step.drain_count == 0 && (!step.group_ends || step.first_group);
  return alone ? target_of(step) : -1;
}

Status SlotSum::add(Backend& backend, Stream& stream, int unit, int64_t slot, Tensor piece) {
  const SumStep step = sum_next(plan_, slot);
  // The terms that join the piece, in order; the last addition writes straight to where the sum
  // belongs.
  std::array<Tensor, 2 * kSumLevelsMax + 1> terms;
  int count = 0;
  for (int level = 0; level < step.merges; ++level)
    terms[count++] = unit_part(partials_[level].tensor, unit);
  for (int i = 0; i < step.drain_count; ++i)
    terms[count++] = unit_part(partials_[step.drain[i]].tensor, unit);
  const Tensor target = place(target_of(step), unit);
  if (step.group_ends && !step.first_group) terms[count++] = target;
  if (count == 0) return backend.copy(stream, target, piece);
  for (int i = 0; i < count; ++i)
    SWAX_TRY(
        backend.add(stream, {.a = terms[i], .b = piece, .out = i + 1 == count ? target : piece}));
  return ok();
}

}  // namespace swax
