#include "worker/train/slot_sum.h"

#include <algorithm>
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
  for (int level = 0; level < kSumLevelsMax; ++level) {
    Block partial;
    if (level_waits(plan, level)) {
      SWAX_ASSIGN(partial, make_block(backend, DType::kF32, {total}));
    }
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
  const Tensor& flat = index == 0 ? accumulator_.tensor : partials_[index - 1].tensor;
  return flat.empty() ? Tensor{} : unit_part(flat, unit);
}

int SlotSum::place_of(int64_t slot) const {
  const SumStep step = sum_next(plan_, slot);
  const bool alone =
      step.merges == 0 && step.drain_count == 0 && (!step.group_ends || step.first_group);
  return alone ? target_of(step) : -1;
}

// Whether one of the pieces takes the sum that lies at `target`.
bool SlotSum::joined_by(std::span<const SlotPiece> pieces, int target) const {
  return std::ranges::any_of(pieces, [&](const SlotPiece& piece) {
    const SumStep step = sum_next(plan_, piece.slot);
    if (target == 0) return step.group_ends && !step.first_group;
    const std::span<const int> drained(step.drain, static_cast<size_t>(step.drain_count));
    return target - 1 < step.merges || std::ranges::find(drained, target - 1) != drained.end();
  });
}

Status SlotSum::add(Backend& backend, Stream& stream, int unit, std::span<const SlotPiece> pieces) {
  std::array<Tensor, 1 + kSumLevelsMax> sums;  // where each is
  for (int i = 0; i < places(); ++i) sums[i] = place(i, unit);
  for (size_t k = 0; k < pieces.size(); ++k) {
    const SumStep step = sum_next(plan_, pieces[k].slot);
    const Tensor& piece = pieces[k].values;
    // What joins the piece, in order; the last addition writes straight to where the sum belongs.
    std::array<Tensor, 2 * kSumLevelsMax + 1> terms;
    int count = 0;
    for (int level = 0; level < step.merges; ++level) terms[count++] = sums[1 + level];
    for (int i = 0; i < step.drain_count; ++i) terms[count++] = sums[1 + step.drain[i]];
    const int target = target_of(step);
    if (step.group_ends && !step.first_group) terms[count++] = sums[0];
    sums[target] = joined_by(pieces.subspan(k + 1), target) ? piece : place(target, unit);
    const Tensor& out = sums[target];
    if (count == 0 && out.data != piece.data) SWAX_TRY(backend.copy(stream, out, piece));
    for (int i = 0; i < count; ++i)
      SWAX_TRY(
          backend.add(stream, {.a = terms[i], .b = piece, .out = i + 1 == count ? out : piece}));
  }
  return ok();
}

}  // namespace swax
