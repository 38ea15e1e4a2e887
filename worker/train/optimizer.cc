#include "worker/train/optimizer.h"

#include "proto/base/ids.h"

namespace swax {

Result<std::unique_ptr<Optimizer>> Optimizer::create(RankContext& rank, const ModelShape& shape,
                                                     const Layout& layout, const pb::JobSpec& spec,
                                                     Fsdp& fsdp) {
  std::unique_ptr<Optimizer> self(new Optimizer(rank, fsdp));
  Backend& backend = rank.backend;
  self->beta1_ = static_cast<float>(spec.optimizer().beta1());
  self->beta2_ = static_cast<float>(spec.optimizer().beta2());
  self->eps_ = static_cast<float>(spec.optimizer().eps());
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const int64_t begin = fsdp.unit_begin(static_cast<int>(unit));
    std::vector<DecaySegment>& decay = self->decay_.emplace_back();
    for (const ShardPiece& piece : layout.units[unit].pieces[rank.shard.rank()]) {
      self->rows_.push_back({.begin = begin + piece.shard_begin,
                             .rows = exact_div(piece.elements, piece.row_elements),
                             .row_elements = piece.row_elements,
                             .first_row = piece.first_row});
      decay.push_back({.begin = piece.shard_begin,
                       .end = piece.shard_begin + piece.elements,
                       .decay = shape.tensors[piece.tensor].decay});
    }
  }
  const int64_t rows = static_cast<int64_t>(layout.row_order.size());
  SWAX_ASSIGN(self->row_sums_, make_block(backend, DType::kF64, {layout.rows_per_rank_max}));
  SWAX_ASSIGN(self->gathered_,
              make_block(backend, DType::kF64, {layout.rows_per_rank_max * layout.ranks}));
  SWAX_ASSIGN(self->order_, make_block(backend, DType::kI64, {rows}));
  SWAX_ASSIGN(self->scratch_, make_block(backend, DType::kF64, {rows}));
  std::vector<int64_t> order = layout.row_order;
  SWAX_TRY(backend.copy(rank.compute, self->order_.tensor,
                        Tensor::of(order.data(), DType::kI64, {rows})));
  SWAX_TRY(backend.sync(rank.compute));
  SWAX_TRY(rank.shard.register_buffer(self->row_sums_.tensor));
  SWAX_TRY(rank.shard.register_buffer(self->gathered_.tensor));
  return self;
}

Status Optimizer::gather_row_sums() {
  Backend& backend = rank_.backend;
  if (rank_.shard.size() == 1)
    return backend.copy(rank_.compute, gathered_.tensor, row_sums_.tensor);
  backend.wait(rank_.comm, backend.record(rank_.compute));
  SWAX_ASSIGN(const Event gathered,
              rank_.shard.all_gather(rank_.comm, row_sums_.tensor, gathered_.tensor));
  backend.wait(rank_.compute, gathered);
  return ok();
}

Status Optimizer::update(StepScalars* scalars, Event state_free) {
  Backend& backend = rank_.backend;
  // The gradient sum is complete on the exchange stream.
  backend.wait(rank_.compute, backend.record(rank_.comm));
  SWAX_TRY(backend.row_sumsq(
      rank_.compute,
      {.x_S = fsdp_.gradient_sum(), .segments = rows_, .row_sums_R = row_sums_.tensor}));
  SWAX_TRY(gather_row_sums());
  SWAX_TRY(backend.norm_tree(rank_.compute, {.gathered_R = gathered_.tensor,
                                             .order = order_.tensor,
                                             .scratch = scratch_.tensor,
                                             .scalars = scalars}));
  backend.wait(rank_.compute, state_free);
  SWAX_TRY(adamw(scalars));
  backend.wait(rank_.comm, backend.record(rank_.compute));
  fsdp_.weights_updated();
  return ok();
}

// A call per unit: the values of each lie in a buffer of their own.
Status Optimizer::adamw(const StepScalars* scalars) {
  for (size_t u = 0; u < decay_.size(); ++u) {
    const int unit = static_cast<int>(u);
    const auto part = [&](const Tensor& flat) {
      return flat_part(flat, fsdp_.unit_begin(unit), fsdp_.unit_elements(unit));
    };
    SWAX_TRY(rank_.backend.adamw(rank_.compute, {.master_S = part(fsdp_.master()),
                                                 .m_S = part(fsdp_.adam_m()),
                                                 .v_S = part(fsdp_.adam_v()),
                                                 .grad_S = part(fsdp_.gradient_sum()),
                                                 .segments = decay_[u],
                                                 .scalars = scalars,
                                                 .beta1 = beta1_,
                                                 .beta2 = beta2_,
                                                 .eps = eps_,
                                                 .values_S = fsdp_.own_values(unit)}));
  }
  return ok();
}

int64_t Optimizer::bytes() const {
  return row_sums_.buffer.bytes() + gathered_.buffer.bytes() + order_.buffer.bytes() +
         scratch_.buffer.bytes();
}

}  // namespace swax
