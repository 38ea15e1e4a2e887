#include "worker/model/stack.h"

#include <string>
#include <utility>

#include "proto/base/text.h"
#include "worker/model/ops.h"

namespace swax {
namespace {

// The weights of one unit, for the length of a scope. release() reports; the destructor only cleans
// up behind an error that is reported already.
class AcquiredUnit {
 public:
  AcquiredUnit(StepCtx& ctx, UnitStore& store, int unit) : ctx_(ctx), store_(store), unit_(unit) {}
  ~AcquiredUnit() {
    if (held_) static_cast<void>(release());
  }
  AcquiredUnit(const AcquiredUnit&) = delete;
  AcquiredUnit& operator=(const AcquiredUnit&) = delete;
  Status acquire(int next) {
    SWAX_ASSIGN(ctx_.weights, store_.acquire(unit_, next));
    held_ = true;
    return ok();
  }
  Status release() {
    ctx_.weights = nullptr;
    held_ = false;
    return store_.release(unit_);
  }

 private:
  StepCtx& ctx_;
  UnitStore& store_;
  int unit_;
  bool held_ = false;
};

// Puts the arena back whatever happens between.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  int64_t mark_;
};

Tensor take_TD(StepCtx& ctx) { return take_values(ctx, {ctx.tokens, ctx.shape.dim}); }

}  // namespace

Stack::Stack(const ModelShape& shape) : shape_(shape), embedding_(shape_), head_(shape_) {
  entries_.resize(static_cast<size_t>(shape_.layers));
  for (int64_t l = 0; l < shape_.layers; ++l) {
    Entry& e = entries_[static_cast<size_t>(l)];
    if (shape_.kinds[static_cast<size_t>(l)] == LayerKind::kAttention) {
      auto layer = std::make_unique<AttentionLayer>(shape_, l);
      e.attention = layer.get();
      e.layer = std::move(layer);
    } else {
      auto layer = std::make_unique<MlstmLayer>(shape_, l);
      e.mlstm = layer.get();
      e.layer = std::move(layer);
    }
  }
}

Status Stack::check(const StepCtx& ctx) const {
  const int64_t t = ctx.tokens;
  const auto bad = [&](const char* what) {
    return invalid_argument(std::string(what) + " does not fit tokens=" + to_text(t));
  };
  if (t < 1) return invalid_argument("tokens=" + to_text(t) + ": must be at least 1");
  if (ctx.window < 1) {
    return invalid_argument("window=" + to_text(ctx.window) + ": must be at least 1");
  }
  const SlotTensors& s = ctx.slot;
  if (s.tokens_T.elements() != t) return bad("slot.tokens_T");
  if (s.targets_T.elements() != t) return bad("slot.targets_T");
  if (!s.doc_start_T.empty() && s.doc_start_T.elements() != t) return bad("slot.doc_start_T");
  if (!s.reset_T.empty() && s.reset_T.elements() != t) return bad("slot.reset_T");
  return ok();
}

Status Stack::embed(StepCtx& ctx, UnitStore& store, Tensor tokens_T, Tensor y_TD) {
  AcquiredUnit unit(ctx, store, 0);
  SWAX_TRY(unit.acquire(1));
  SWAX_TRY(embedding_.forward(ctx, tokens_T, y_TD));
  return unit.release();
}

Status Stack::forward_layers(StepCtx& ctx, UnitStore& store, Tensor x_TD, Tensor* y_TD) {
  for (size_t l = 0; l < entries_.size(); ++l) {
    Entry& e = entries_[l];
    declare_saved(ctx, e.slots, *e.layer);
    e.slots.recompute = ctx.recompute.of_layer(static_cast<int64_t>(l));
    e.mark = ctx.arena.mark();
    e.x_TD = x_TD;
    const Tensor y = take_TD(ctx);
    const int u = static_cast<int>(l) + 1;
    AcquiredUnit unit(ctx, store, u);
    SWAX_TRY(unit.acquire(u + 1));
    ctx.backend.begin_region(ctx.stream);
    SWAX_TRY(run_forward(ctx, e.slots, x_TD, y, true));
    SWAX_TRY(ctx.backend.end_region(ctx.stream));
    SWAX_TRY(unit.release());
    x_TD = y;
  }
  *y_TD = x_TD;
  return ok();
}

Status Stack::head(StepCtx& ctx, UnitStore& store, Tensor x_TD, Tensor d_TD, Tensor loss_sum) {
  const int u = head_unit();
  AcquiredUnit unit(ctx, store, u);
  SWAX_TRY(unit.acquire(u > 1 ? u - 1 : -1));
  SWAX_ASSIGN(ctx.grads, store.gradient(u));
  ctx.backend.begin_region(ctx.stream);
  SWAX_TRY(head_.train(ctx, x_TD, d_TD, loss_sum));
  SWAX_TRY(ctx.backend.end_region(ctx.stream));
  SWAX_TRY(unit.release());
  return store.gradient_ready(u);
}

Status Stack::backward_layers(StepCtx& ctx, UnitStore& store, Tensor d_TD) {
  for (size_t l = entries_.size(); l-- > 0;) {
    Entry& e = entries_[l];
    const int u = static_cast<int>(l) + 1;
    AcquiredUnit unit(ctx, store, u);
    SWAX_TRY(unit.acquire(u > 1 ? u - 1 : -1));
    SWAX_ASSIGN(ctx.grads, store.gradient(u));
    ctx.backend.begin_region(ctx.stream);
    SWAX_TRY(run_backward(ctx, e.slots, d_TD, d_TD));
    SWAX_TRY(ctx.backend.end_region(ctx.stream));
    SWAX_TRY(unit.release());
    SWAX_TRY(store.gradient_ready(u));
    ctx.arena.release(e.mark);
  }
  return ok();
}

Status Stack::train_slot(StepCtx& ctx, UnitStore& store, Tensor loss_sum) {
  SWAX_TRY(check(ctx));
  const ArenaScope scope(ctx.arena);
  // One buffer carries the gradient of the residual stream through all layers, in place.
  const Tensor d_TD = take_TD(ctx), x_TD = take_TD(ctx);
  SWAX_TRY(embed(ctx, store, ctx.slot.tokens_T, x_TD));
  Tensor y_TD;
  SWAX_TRY(forward_layers(ctx, store, x_TD, &y_TD));
  SWAX_TRY(head(ctx, store, y_TD, d_TD, loss_sum));
  SWAX_TRY(backward_layers(ctx, store, d_TD));
  // The embedding's gradient needs no weights: unit 0 is not acquired again.
  SWAX_ASSIGN(ctx.grads, store.gradient(0));
  SWAX_TRY(embedding_.backward(ctx, d_TD));
  ctx.grads = nullptr;
  return store.gradient_ready(0);
}

Status Stack::eval_slot(StepCtx& ctx, UnitStore& store, Tensor loss_sum, Tensor token_loss_T,
                        Tensor logits_TV) {
  SWAX_TRY(check(ctx));
  const ArenaScope scope(ctx.arena);
  Tensor x_TD = take_TD(ctx), y_TD = take_TD(ctx);
  SWAX_TRY(embed(ctx, store, ctx.slot.tokens_T, x_TD));
  for (size_t l = 0; l < entries_.size(); ++l) {
    Entry& e = entries_[l];
    declare_saved(ctx, e.slots, *e.layer);
    const int u = static_cast<int>(l) + 1;
    AcquiredUnit unit(ctx, store, u);
    SWAX_TRY(unit.acquire(u + 1));
    SWAX_TRY(run_forward(ctx, e.slots, x_TD, y_TD, false));
    SWAX_TRY(unit.release());
    std::swap(x_TD, y_TD);
  }
  AcquiredUnit unit(ctx, store, head_unit());
  SWAX_TRY(unit.acquire(-1));
  SWAX_TRY(head_.eval(ctx, x_TD, loss_sum, token_loss_T, logits_TV));
  return unit.release();
}

Status walk_eval_slot(int units, UnitStore& store) {
  for (int unit = 0; unit < units; ++unit) {
    SWAX_TRY(store.acquire(unit, unit + 1 < units ? unit + 1 : -1));
    SWAX_TRY(store.release(unit));
  }
  return ok();
}

Status walk_train_slot(int units, UnitStore& store) {
  const int head = units - 1;
  for (int unit = 0; unit < head; ++unit) {
    SWAX_TRY(store.acquire(unit, unit + 1));
    SWAX_TRY(store.release(unit));
  }
  for (int unit = head; unit >= 1; --unit) {
    SWAX_TRY(store.acquire(unit, unit > 1 ? unit - 1 : -1));
    SWAX_TRY(store.gradient(unit));
    SWAX_TRY(store.release(unit));
    SWAX_TRY(store.gradient_ready(unit));
  }
  SWAX_TRY(store.gradient(0));
  return store.gradient_ready(0);
}

}  // namespace swax
