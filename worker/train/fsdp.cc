#include "worker/train/fsdp.h"

#include <algorithm>

#include "worker/model/model.h"

namespace swax {
namespace {

// Flat; its memory is of the kind that the ranks exchange best.
Result<Block> make_exchange_block(RankContext& rank, DType dtype, int64_t elements) {
  Block block;
  if (elements == 0) return block;
  SWAX_ASSIGN(block.buffer, rank.shard.allocate(rank.backend, elements * dtype_bytes(dtype)));
  block.tensor = Tensor::of(block.buffer.data(), dtype, {elements});
  SWAX_TRY(rank.shard.register_buffer(block.tensor));
  return block;
}

}  // namespace

Result<std::unique_ptr<Fsdp>> Fsdp::create(RankContext& rank, const ModelShape& shape,
                                           const Layout& layout, const SlotPlan& plan,
                                           const PlanOptions& options) {
  Backend& backend = rank.backend;
  SWAX_ASSIGN(SlotSum sum, SlotSum::create(backend, layout, plan));
  std::unique_ptr<Fsdp> self(new Fsdp(rank, shape, layout, plan, std::move(sum)));
  self->values_ = precision_of(options.backend).values;
  self->reshard_ = options.reshard;
  self->prefetch_ = options.prefetch > 0;
  self->arrived_.reserve(static_cast<size_t>(plan.ranks));
  int64_t flat_max = 0;
  for (const UnitLayout& unit : layout.units) {
    self->unit_begin_.push_back(self->total_);
    self->total_ += unit.shard_elements;
    flat_max = std::max(flat_max, unit.flat_elements);
  }
  SWAX_ASSIGN(self->master_, make_block(backend, DType::kF32, {self->total_}));
  SWAX_ASSIGN(self->m_, make_block(backend, DType::kF32, {self->total_}));
  SWAX_ASSIGN(self->v_, make_block(backend, DType::kF32, {self->total_}));
  self->exchanges_.resize(plan.ranks > 1 ? 2 : 1);
  for (Exchange& each : self->exchanges_) {
    SWAX_ASSIGN(each.block, make_exchange_block(rank, DType::kF32, flat_max));
  }
  SWAX_ASSIGN(self->received_,
              make_exchange_block(rank, DType::kF32, plan.ranks > 1 ? flat_max : int64_t{0}));
  // Padding is sent and added like everything else but enters no result; zeros keep it finite.
  std::vector<Tensor> zeroed = {self->master_.tensor, self->m_.tensor, self->v_.tensor,
                                self->received_.tensor};
  for (const Exchange& each : self->exchanges_) zeroed.push_back(each.block.tensor);
  for (const Tensor& t : zeroed)
    if (!t.empty()) SWAX_TRY(backend.fill(rank.compute, {.x = t, .value = 0.0F}));

  const int units = static_cast<int>(layout.units.size());
  const int slots = options.reshard ? std::min(units, (self->prefetch_ ? 1 : 0) + 1) : units;
  self->ring_.resize(slots);
  self->own_current_.resize(units);
  for (int i = 0; i < slots; ++i) {
    RingSlot& slot = self->ring_[i];
    const int64_t elements = options.reshard ? flat_max : layout.units[i].flat_elements;
    SWAX_ASSIGN(slot.block, make_exchange_block(rank, self->values_, elements));
    slot.views.resize(units);
    for (int unit = 0; unit < units; ++unit)
      if (options.reshard || unit == i) slot.views[unit] = self->views_of(unit, slot.block.tensor);
  }
  for (int unit = 0; unit < units; ++unit) {
    self->gradients_.push_back(self->gradient_places(unit));
    auto& gaps = self->padding_.emplace_back();
    int64_t end = 0;
    for (const TensorPlace& place : layout.units[unit].places) {
      if (place.begin > end) gaps.emplace_back(end, place.begin - end);
      end = place.begin + place.elements;
    }
    if (layout.units[unit].flat_elements > end)
      gaps.emplace_back(end, layout.units[unit].flat_elements - end);
  }
  SWAX_TRY(backend.sync(rank.compute));
  return self;
}

// A place of the sum counts only where it is aligned like the exchange buffer, so that products see
// the same addresses and give the same bits.
std::vector<Fsdp::GradientPlace> Fsdp::gradient_places(int unit) {
  constexpr uintptr_t kAlignment = 256;
  const Tensor own = flat_part(exchange(unit).block.tensor, 0, layout_.units[unit].flat_elements);
  std::vector<GradientPlace> places = {{.flat = own, .views = views_of(unit, own)}};
  if (plan_.ranks > 1) return places;
  for (int i = 0; i < sum_.places(); ++i) {
    const Tensor flat = sum_.place(i, unit);
    const bool aligned = reinterpret_cast<uintptr_t>(flat.data) % kAlignment == 0;
    places.push_back(aligned && !flat.empty() ? GradientPlace{flat, views_of(unit, flat)}
                                              : GradientPlace{});
  }
  return places;
}

Fsdp::GradientPlace& Fsdp::gradient_place(int unit) {
  std::vector<GradientPlace>& places = gradients_[unit];
  const int place = plan_.ranks == 1 ? sum_.place_of(slot_of(plan_, micro_step_, 0)) : -1;
  GradientPlace& wanted = places[place + 1];
  return wanted.flat.empty() ? places[0] : wanted;
}

UnitTensors Fsdp::views_of(int unit, const Tensor& flat) const {
  UnitTensors views;
  for (const TensorPlace& place : layout_.units[unit].places) {
    const TensorInfo& info = shape_.tensors[place.tensor];
    const Tensor part = flat_part(flat, place.begin, place.elements);
    views.tensors.push_back(info.shape.size() == 2 ? part.reshaped({info.shape[0], info.shape[1]})
                                                   : part);
  }
  return views;
}

int Fsdp::find(int unit) const {
  if (!reshard_) return ring_[unit].unit == unit ? unit : -1;
  for (size_t i = 0; i < ring_.size(); ++i)
    if (ring_[i].unit == unit) return static_cast<int>(i);
  return -1;
}

int Fsdp::free_slot(int unit) const {
  if (!reshard_) return unit;
  for (size_t i = 0; i < ring_.size(); ++i)
    if (!ring_[i].in_use) return static_cast<int>(i);
  return -1;
}

Status Fsdp::gather(int unit, int index) {
  RingSlot& slot = ring_[index];
  const UnitLayout& layout = layout_.units[unit];
  rank_.backend.wait(rank_.comm, slot.released);
  Tensor shard = flat_part(master_.tensor, unit_begin_[unit], layout.shard_elements);
  const Tensor full = flat_part(slot.block.tensor, 0, layout.flat_elements);
  if (values_ != DType::kF32) {
    const Tensor own =
        flat_part(full, rank_.shard.rank() * layout.shard_elements, layout.shard_elements);
    if (!own_current_[unit]) SWAX_TRY(rank_.backend.cast(rank_.comm, {.from = shard, .to = own}));
    own_current_[unit] = !reshard_;
    shard = own;
  }
  if (plan_.ranks > 1) {
    SWAX_ASSIGN(slot.ready, rank_.shard.all_gather(rank_.comm, shard, full));
  } else {
    SWAX_TRY(rank_.backend.copy(rank_.comm, full, shard));
    slot.ready = rank_.backend.record(rank_.comm);
  }
  slot.unit = unit;
  return ok();
}

Result<const UnitTensors*> Fsdp::acquire(int unit, int next) {
  int index = find(unit);
  if (index < 0) {
    index = free_slot(unit);
    SWAX_CHECK(index >= 0);
    SWAX_TRY(gather(unit, index));
  }
  RingSlot& slot = ring_[index];
  slot.in_use = true;
  rank_.backend.wait(rank_.compute, slot.ready);
  if (prefetch_ && next >= 0 && find(next) < 0) {
    const int ahead = free_slot(next);
    if (ahead >= 0) SWAX_TRY(gather(next, ahead));
  }
  return &slot.views[unit];
}

Status Fsdp::release(int unit) {
  const int index = find(unit);
  SWAX_CHECK(index >= 0);
  ring_[index].in_use = false;
  ring_[index].released = rank_.backend.record(rank_.compute);
  return ok();
}

void Fsdp::drop_gathered() {
  for (RingSlot& slot : ring_) {
    SWAX_CHECK(!slot.in_use);
    slot.unit = -1;
  }
}

void Fsdp::weights_changed() {
  drop_gathered();
  own_current_.assign(own_current_.size(), false);
}

// A refused update leaves the values alone too: what was not current before is cast as ever. One
// rank's own part is the whole copy, which stays gathered.
void Fsdp::weights_updated() {
  if (plan_.ranks > 1 || own_values(0).empty()) drop_gathered();
}

Tensor Fsdp::own_values(int unit) const {
  if (reshard_ || values_ == DType::kF32) return {};
  const int64_t count = unit_elements(unit);
  return flat_part(ring_[unit].block.tensor, rank_.shard.rank() * count, count);
}

Result<const UnitTensors*> Fsdp::gradient(int unit) {
  GradientPlace& place = gradient_place(unit);
  rank_.backend.wait(rank_.compute, exchange(unit).done);
  for (const auto& [begin, count] : padding_[unit])
    SWAX_TRY(rank_.backend.fill(rank_.compute,
                                {.x = flat_part(place.flat, begin, count), .value = 0.0F}));
  return &place.views;
}

Status Fsdp::gradient_ready(int unit) {
  Backend& backend = rank_.backend;
  const UnitLayout& layout = layout_.units[unit];
  const Tensor sent = gradients_[unit][0].flat;
  // Formed in its place: whoever adds to it later waits for the compute stream anyway.
  if (gradient_place(unit).flat.data != sent.data) return ok();
  backend.wait(rank_.comm, backend.record(rank_.compute));
  if (plan_.ranks == 1) {
    const SlotPiece own{slot_of(plan_, micro_step_, 0), sent};
    SWAX_TRY(sum_.add(backend, rank_.comm, unit, {&own, 1}));
  } else {
    const Tensor received = flat_part(received_.tensor, 0, layout.flat_elements);
    SWAX_ASSIGN(const Event arrived, rank_.shard.all_to_all(rank_.comm, sent, received));
    backend.wait(rank_.comm, arrived);
    arrived_.clear();
    for (int peer = 0; peer < plan_.ranks; ++peer) {
      const int64_t slot = slot_of(plan_, micro_step_, peer);
      if (slot == kNoSlot) continue;  // an absent slot is skipped, never added as zero
      arrived_.push_back(
          {slot, flat_part(received, peer * layout.shard_elements, layout.shard_elements)});
    }
    SWAX_TRY(sum_.add(backend, rank_.comm, unit, arrived_));
  }
  exchange(unit).done = backend.record(rank_.comm);
  return ok();
}

Status Fsdp::idle_train_slot() { return walk_train_slot(shape_.units(), *this); }

Status Fsdp::idle_eval_slot() { return walk_eval_slot(shape_.units(), *this); }

const UnitTensors& Fsdp::weight_places(int unit) const {
  return ring_[reshard_ ? 0 : unit].views[unit];
}

int64_t Fsdp::gather_bytes() const {
  int64_t bytes = 0;
  for (const RingSlot& slot : ring_) bytes += slot.block.buffer.bytes();
  return bytes;
}

int64_t Fsdp::exchange_bytes() const {
  int64_t bytes = received_.buffer.bytes();
  for (const Exchange& each : exchanges_) bytes += each.block.buffer.bytes();
  return bytes;
}

}  // namespace swax
