// FSDP-style sharding of one rank: fp32 master weights and AdamW moments of its shard, gathered
// copies of whole units while they are needed, slot gradients exchanged by all-to-all and added in
// slot order (slot_sum). The same code for every Collectives. Gathered copies have the value type
// of the backend and live in a ring of prefetch + 1 units (reshard) or all at once. One rank
// exchanges nothing, and forms a gradient where its sum belongs when nothing joins it. Several form
// the gradients of neighbouring units in two buffers, so that one travels while the next is formed.
// Which unit is gathered when follows from the order of acquire calls alone, so all ranks make the
// same collective calls. Threads: one. Nothing is allocated after create().
#pragma once

#include <memory>
#include <vector>

#include "jobs/layout.h"
#include "jobs/slot_plan.h"
#include "worker/model/layer.h"
#include "worker/model/plan.h"
#include "worker/train/rank_context.h"
#include "worker/train/slot_sum.h"

namespace swax {

class Fsdp final : public UnitStore {
 public:
  static Result<std::unique_ptr<Fsdp>> create(RankContext& rank, const ModelShape& shape,
                                              const Layout& layout, const SlotPlan& plan,
                                              const PlanOptions& options);

  // UnitStore.
  Result<const UnitTensors*> acquire(int unit, int next) override;
  Status release(int unit) override;
  Result<const UnitTensors*> gradient(int unit) override;
  Status gradient_ready(int unit) override;

  // Before the first step, with weights there: every unit is gathered and every exchange buffer
  // sent, and digests (device and pinned host memory, [2 N] i64 each) say that all of it arrived.
  // kInternal on all ranks when something did not.
  Status check_exchange(const Tensor& sums, const Tensor& host_sums);
  // Says which slots arrive in the exchanges that follow.
  void begin_micro_step(int64_t micro_step) { micro_step_ = micro_step; }
  // What a rank without a slot does so that the others' collectives complete; the order of
  // Model::train_slot and eval_slot.
  Status idle_train_slot();
  Status idle_eval_slot();
  // The master weights changed: gathered copies are stale.
  void weights_changed();
  // The same by the optimizer, which has written what own_values() asks for.
  void weights_updated();
  // Where the optimizer puts the new weights of this rank's shard in the value type, so that no
  // gather casts them: its part of the gathered copy. Empty where that is f32 or given back.
  Tensor own_values(int unit) const;

  // Flat over units: [S of unit 0, S of unit 1, ...].
  Tensor master() const { return master_.tensor; }
  Tensor adam_m() const { return m_.tensor; }
  Tensor adam_v() const { return v_.tensor; }
  Tensor gradient_sum() const { return sum_.accumulator(); }
  int64_t unit_begin(int unit) const { return unit_begin_[unit]; }
  int64_t unit_elements(int unit) const { return layout_.units[unit].shard_elements; }
  int64_t shard_elements() const { return total_; }
  // Where a unit's weights and its slot gradient lie, or as aligned as where they will lie: for
  // whoever needs the addresses before there are values.
  const UnitTensors& weight_places(int unit) const;
  const UnitTensors& slot_gradient_places(int unit) const { return gradients_[unit][0].views; }
  int64_t gather_bytes() const;
  int64_t exchange_bytes() const;
  int64_t sum_bytes() const { return sum_.bytes(); }

 private:
  struct RingSlot {
    Block block;
    int unit = -1;
    bool in_use = false;
    Event ready;     // the gather is complete
    Event released;  // the last reader is done
    std::vector<UnitTensors>
        views;  // by unit; one entry at [unit] when every unit has its own slot
  };
  // Where the gradient of a unit may be formed: the exchange buffer first, then, for one rank, the
  // places of the sum. No tensors: not there.
  struct GradientPlace {
    Tensor flat;
    UnitTensors views;
  };
  // Where slot gradients wait to be sent.
  struct Exchange {
    Block block;
    Event done;  // what was there is where it belongs
  };
  Fsdp(RankContext& rank, const ModelShape& shape, const Layout& layout, const SlotPlan& plan,
       SlotSum sum)
      : rank_(rank), shape_(shape), layout_(layout), plan_(plan), sum_(std::move(sum)) {}
  UnitTensors views_of(int unit, const Tensor& flat) const;
  std::vector<GradientPlace> gradient_places(int unit);
  GradientPlace& gradient_place(int unit);
  Exchange& exchange(int unit) { return exchanges_[unit % exchanges_.size()]; }
  int find(int unit) const;
  int free_slot(int unit) const;
  Status gather(int unit, int slot);
  void drop_gathered();
  Result<std::vector<Tensor>> parts_to_check(int unit);

  RankContext& rank_;
  const ModelShape& shape_;
  const Layout& layout_;
  SlotPlan plan_;
  SlotSum sum_;
  DType values_ = DType::kF32;
  bool reshard_ = false;
  bool prefetch_ = false;
  int64_t micro_step_ = 0;
  int64_t total_ = 0;
  std::vector<int64_t> unit_begin_;
  Block master_, m_, v_, received_;
  std::vector<SlotPiece> arrived_;   // pieces of received_
  std::vector<Exchange> exchanges_;  // unit u uses number u modulo their number
  std::vector<RingSlot> ring_;
  // By unit: own_values() hold the master weights, as of the last cast or update.
  std::vector<bool> own_current_;
  std::vector<std::vector<GradientPlace>> gradients_;  // by unit
  std::vector<std::vector<std::pair<int64_t, int64_t>>>
      padding_;  // by unit: {begin, count} inside the flat buffer
};

}  // namespace swax
