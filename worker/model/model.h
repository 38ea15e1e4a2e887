// The stack: embedding, layers by pattern, output norm + head with fused loss. Forward and backward
// of one slot, evaluation of one slot, and decoding of one token with constant memory. Source:
// model-spec 1.3. Threads: one. Nothing is allocated inside train_slot, eval_slot and decode: all
// comes from ctx.arena.
#pragma once

#include <memory>
#include <vector>

#include "worker/model/layer.h"

namespace swax {

class Model {
 public:
  static Result<std::unique_ptr<Model>> create(const ModelShape& shape);
  virtual ~Model() = default;
  virtual const ModelShape& shape() const = 0;

  // loss_sum (f64 [1], device) += sum over targets of the loss in nats. Gradients of all units pass
  // through `store`, units in falling order, scaled by scalars->inv_targets. The arena ends where
  // it began.
  virtual Status train_slot(StepCtx& ctx, UnitStore& store, Tensor loss_sum) = 0;
  // The same loss without gradients. token_loss_T (f64 [T]) may be empty. logits_TV (f32 [T,V]) may
  // be empty; tests use it.
  virtual Status eval_slot(StepCtx& ctx, UnitStore& store, Tensor loss_sum, Tensor token_loss_T,
                           Tensor logits_TV) = 0;

  // Decoding. The state is a constant number of bytes for any length: K/V rings of `window` keys
  // and mLSTM (C, n, m).
  class DecodeState {
   public:
    virtual ~DecodeState() = default;
    virtual int64_t position() const = 0;
    virtual int64_t bytes() const = 0;
  };
  virtual Result<std::unique_ptr<DecodeState>> make_decode_state(Backend& backend,
                                                                 int64_t window) = 0;
  // Feeds one token, writes logits_V (soft-capped, f32). ctx.tokens is 1.
  virtual Status decode(StepCtx& ctx, UnitStore& store, DecodeState& state, int32_t token,
                        Tensor logits_V) = 0;
};

// The calls on `store` that train_slot and eval_slot of a model with `units` units make, in the
// same order and with the same arguments, but nothing computed: what a rank without a slot does so
// that the others' collectives complete.
Status walk_train_slot(int units, UnitStore& store);
Status walk_eval_slot(int units, UnitStore& store);

// RoPE tables for positions 0..T-1 into cos/sin [T, head_dim/2] host-accessible tensors.
void fill_rope_tables(const ModelShape& shape, Tensor cos_TP, Tensor sin_TP);

// All units resident in one buffer; gradients resident too when asked. For generation, tests and
// one-rank tools.
class ResidentStore final : public UnitStore {
 public:
  // weights and gradients are flat [parameters] in table order without padding; gradients may be
  // empty.
  ResidentStore(const ModelShape& shape, Tensor weights, Tensor gradients);
  Result<const UnitTensors*> acquire(int unit, int next) override;
  Status release(int unit) override;
  Result<const UnitTensors*> gradient(int unit) override;
  Status gradient_ready(int unit) override;

 private:
  std::vector<UnitTensors> weights_, grads_;
};

}  // namespace swax
