#include "worker/model/recompute.h"

#include <span>
#include <string>

namespace swax {
namespace {

bool kept(RecomputeMode mode, const SavedSpec& spec) {
  switch (mode) {
    case RecomputeMode::kNone:
      return true;
    case RecomputeMode::kLight:
      return !spec.reform;
    case RecomputeMode::kBlock:
      return false;
  }
  return true;
}

Tensor take(StepCtx& ctx, const SavedSpec& spec) {
  return ctx.arena.take(spec.dtype,
                        std::span<const int64_t>(spec.dims.data(), static_cast<size_t>(spec.rank)));
}

// Makes `slots` the running layer's for the length of a scope.
class Running {
 public:
  Running(StepCtx& ctx, StepCtx::Slots& slots) : ctx_(ctx) { ctx_.slots = &slots; }
  ~Running() { ctx_.slots = nullptr; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  StepCtx& ctx_;
};

StepCtx::Slots::Entry& entry_of(StepCtx& ctx, int tag) {
  SWAX_CHECK(ctx.slots != nullptr);
  SWAX_CHECK(tag >= 0);
  SWAX_CHECK(static_cast<size_t>(tag) < ctx.slots->entries.size());
  return ctx.slots->entries[static_cast<size_t>(tag)];
}

}  // namespace

Tensor StepCtx::save(int tag) {
  const Tensor t = entry_of(*this, tag).tensor;
  SWAX_CHECK(!t.empty());
  return t;
}

Result<Tensor> StepCtx::saved(int tag) {
  Slots::Entry& e = entry_of(*this, tag);
  if (e.tensor.empty()) {
    SWAX_CHECK(e.spec.reform);
    const int64_t mark = arena.mark();
    const Tensor out = take(*this, e.spec);
    SWAX_TRY(slots->layer->reform(*this, slots->x_TD, tag, out));
    e.tensor = out;
    e.mark = mark;
  }
  return e.tensor;
}

ScratchScope::~ScratchScope() {
  if (ctx_.slots != nullptr) {
    for (StepCtx::Slots::Entry& e : ctx_.slots->entries) {
      if (e.mark < mark_) continue;
      e.tensor = Tensor{};
      e.mark = -1;
    }
  }
  ctx_.arena.release(mark_);
}

void declare_saved(StepCtx& ctx, StepCtx::Slots& slots, Layer& layer) {
  const DType values = ctx.precision.values;
  if (slots.layer == &layer && slots.tokens == ctx.tokens && slots.values == values) return;
  slots.layer = &layer;
  slots.tokens = ctx.tokens;
  slots.values = values;
  slots.entries.clear();
  for (const SavedSpec& spec : layer.saved_specs(ctx.shape, ctx.tokens, values)) {
    SWAX_CHECK(spec.tag == static_cast<int>(slots.entries.size()));
    slots.entries.push_back({.spec = spec, .tensor = {}, .mark = -1});
  }
}

Status run_forward(StepCtx& ctx, StepCtx::Slots& slots, Tensor x_TD, Tensor y_TD, bool keep) {
  slots.x_TD = x_TD;
  const auto keeps = [&](const SavedSpec& spec) { return keep && kept(slots.recompute, spec); };
  for (auto& e : slots.entries) e.tensor = keeps(e.spec) ? take(ctx, e.spec) : Tensor{};
  Status status;
  {
    const Running running(ctx, slots);
    const ScratchScope scratch(ctx);
    for (auto& e : slots.entries) {
      if (!keeps(e.spec)) e.tensor = take(ctx, e.spec);
    }
    status = slots.layer->forward(ctx, x_TD, y_TD);
  }
  for (auto& e : slots.entries) {
    if (!keeps(e.spec)) e.tensor = Tensor{};
  }
  return status;
}

Status run_backward(StepCtx& ctx, StepCtx::Slots& slots, Tensor dy_TD, Tensor dx_TD) {
  const Running running(ctx, slots);
  const ScratchScope scratch(ctx);
  if (slots.recompute == RecomputeMode::kBlock) {
    for (auto& e : slots.entries) {
      e.mark = ctx.arena.mark();
      e.tensor = take(ctx, e.spec);
    }
    // Forward has only scopes of its own as scratch, so backward starts right above the saved ones.
    const int64_t mark = ctx.arena.mark();
    SWAX_TRY(slots.layer->forward(ctx, slots.x_TD, Tensor{}));
    SWAX_CHECK(ctx.arena.mark() == mark);
  }
  return slots.layer->backward(ctx, slots.x_TD, dy_TD, dx_TD);
}

}  // namespace swax
