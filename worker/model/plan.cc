#include "worker/model/plan.h"

#include <algorithm>
#include <memory>

#include "kernels/graph_backend.h"
#include "kernels/measuring_backend.h"
#include "proto/base/text.h"
#include "worker/model/model.h"

namespace swax {
namespace {

constexpr int64_t kF32Bytes = 4, kI32Bytes = 4, kF64Bytes = 8, kI64Bytes = 8;
constexpr int kStreams = 3;  // compute, exchange, checkpoint copy

// The model run on a backend and an arena that have no memory behind them.
class DryRun {
 public:
  static Result<std::unique_ptr<DryRun>> make(const ModelShape& shape, int64_t tokens,
                                              int64_t window,
                                              BackendKind kind = BackendKind::kCpu) {
    auto run = std::make_unique<DryRun>(shape, kind);
    SWAX_ASSIGN(run->model_, Model::create(shape));
    SWAX_ASSIGN(run->stream_, run->backend_.make_stream());
    run->tokens_ = tokens;
    run->window_ = window;
    return run;
  }
  DryRun(const ModelShape& shape, BackendKind kind)
      : shape_(shape),
        backend_(kind),
        weights_(memory_.take(precision_of(kind).values, {shape.parameters()})),
        gradients_(memory_.take(DType::kF32, {shape.parameters()})),
        store_(shape, weights_, gradients_) {}

  Status train(RecomputePolicy recompute) {
    StepCtx ctx = context();
    ctx.recompute = recompute;
    return model_->train_slot(ctx, store_, loss_sum_);
  }
  Status eval() {
    StepCtx ctx = context();
    return model_->eval_slot(ctx, store_, loss_sum_, {}, {});
  }
  Status decode() {
    StepCtx ctx = context();
    SWAX_ASSIGN(const auto state, model_->make_decode_state(backend_, window_));
    return model_->decode(ctx, store_, *state, 0, memory_.take(DType::kF32, {shape_.vocab}));
  }
  int64_t arena_bytes() const { return arena_.peak(); }
  double flops() const { return backend_.counts().flops; }

 private:
  StepCtx context() {
    const int64_t pairs = shape_.head_dim / 2;
    return {.backend = backend_,
            .stream = *stream_,
            .arena = arena_,
            .shape = shape_,
            .tokens = tokens_,
            .window = window_,
            .precision = precision_of(backend_.kind()),
            .recompute = {},
            .slot = {.tokens_T = memory_.take(DType::kI32, {tokens_}),
                     .targets_T = memory_.take(DType::kI32, {tokens_}),
                     .doc_start_T = memory_.take(DType::kI32, {tokens_}),
                     .reset_T = memory_.take(DType::kU8, {tokens_})},
            .rope_cos_TP = memory_.take(DType::kF32, {tokens_, pairs}),
            .rope_sin_TP = memory_.take(DType::kF32, {tokens_, pairs}),
            .scalars = &scalars_};
  }

  const ModelShape& shape_;
  MeasuringBackend backend_;
  std::unique_ptr<Stream> stream_;
  Arena memory_ = Arena::measuring();  // weights, inputs: never read
  Arena arena_ = Arena::measuring(1);
  Tensor weights_, gradients_;
  Tensor loss_sum_ = memory_.take(DType::kF64, {1});
  ResidentStore store_;
  std::unique_ptr<Model> model_;
  StepScalars scalars_;
  int64_t tokens_ = 0, window_ = 0;
};

void plan_inputs(const ModelShape& shape, const SlotPlan& slots, int64_t tokens, MemoryPlan* plan) {
  constexpr int64_t kStateKinds = 3;  // weights and both moments have digests
  const int64_t slot = tokens * (3 * kI32Bytes + 1);
  const int64_t tables = 2 * tokens * (shape.head_dim / 2) * kF32Bytes;
  const int64_t digests = 2 * kStateKinds * static_cast<int64_t>(shape.tensors.size()) * kI64Bytes;
  const int64_t numbers =
      static_cast<int64_t>(sizeof(StepScalars)) + micro_steps(slots) * kF64Bytes + digests;
  const bool gpu = plan->backend != BackendKind::kCpu;
  plan->input_pinned_bytes = numbers + (gpu ? micro_steps(slots) * slot : 0);
  plan->input_bytes = slot + tables + numbers + plan->input_pinned_bytes;
}

// Regions that differ: by window in attention, by the place of a gradient that one rank forms where
// its sum belongs (or in the exchange buffer), by the place of resharded weights.
void plan_graphs(const ModelShape& shape, const SlotPlan& slots, const PlanOptions& options,
                 MemoryPlan* plan) {
  constexpr int64_t kWindows = 2;
  if (options.backend == BackendKind::kCpu) return;
  const int64_t gradient_places = slots.ranks == 1 ? levels_waiting(slots) + 2 : 1;
  const int64_t weight_places = options.reshard ? options.prefetch + 1 : 1;
  int64_t forward = 0;
  for (const LayerKind kind : shape.kinds) forward += kind == LayerKind::kAttention ? kWindows : 1;
  const int64_t regions = weight_places * (forward + gradient_places * (forward + 1));
  plan->graph_bytes =
      std::min<int64_t>(regions, GraphBackend::kGraphsMax) * GraphBackend::kGraphBytes;
}

// Row sums of this rank, those of all ranks, the order of the table, and the tree over it.
int64_t norm_bytes(const Layout& layout) {
  const int64_t table_rows = static_cast<int64_t>(layout.row_order.size());
  return layout.rows_per_rank_max * (layout.ranks + 1) * kF64Bytes +
         table_rows * (kI64Bytes + kF64Bytes);
}

}  // namespace

int64_t MemoryPlan::total() const {
  return master_bytes + moment_bytes + accumulator_bytes + partial_bytes + gather_bytes +
         exchange_bytes + norm_bytes + arena_bytes + input_bytes + staging_bytes + workspace_bytes +
         graph_bytes;
}

int64_t MemoryPlan::host_bytes() const {
  return backend == BackendKind::kCpu ? total() : staging_bytes + input_pinned_bytes;
}

BackendKind backend_kind(const pb::JobSpec& spec) {
  return spec.training().backend() == "cuda" ? BackendKind::kCuda : BackendKind::kCpu;
}

RecomputeMode recompute_mode(const std::string& name) {
  if (name == "light") return RecomputeMode::kLight;
  if (name == "block") return RecomputeMode::kBlock;
  return RecomputeMode::kNone;
}

std::string recompute_text(const pb::JobSpec& spec) {
  const pb::ActivationCheckpoint& a = spec.activation_checkpoint();
  if (a.layers() == 0 || a.layers() == spec.model().layers() || a.mode() == "none") return a.mode();
  return a.mode() + " in " + to_text(uint64_t{a.layers()}) + " of " +
         to_text(uint64_t{spec.model().layers()}) + " layers";
}

PlanOptions plan_options(const pb::JobSpec& spec) {
  const pb::Parallelism& p = spec.parallelism();
  // `default` keeps gathered weights: memory is cheaper than a second gather.
  return {.backend = backend_kind(spec),
          .recompute = {recompute_mode(spec.activation_checkpoint().mode()),
                        int64_t{spec.activation_checkpoint().layers()}},
          .reshard = p.fsdp_reshard_after_forward() == "always",
          .prefetch = static_cast<int>(p.prefetch())};
}

Result<int64_t> train_arena_bytes(const ModelShape& shape, int64_t tokens,
                                  RecomputePolicy recompute, BackendKind backend) {
  SWAX_ASSIGN(const auto run, DryRun::make(shape, tokens, 1, backend));
  SWAX_TRY(run->train(recompute));
  return run->arena_bytes();
}

Result<int64_t> eval_arena_bytes(const ModelShape& shape, int64_t tokens, BackendKind backend) {
  SWAX_ASSIGN(const auto run, DryRun::make(shape, tokens, 1, backend));
  SWAX_TRY(run->eval());
  return run->arena_bytes();
}

Result<int64_t> decode_arena_bytes(const ModelShape& shape) {
  SWAX_ASSIGN(const auto run, DryRun::make(shape, 1, 1));
  SWAX_TRY(run->decode());
  return run->arena_bytes();
}

Result<MemoryPlan> plan_memory(const pb::JobSpec& spec, int ranks) {
  if (ranks < 1) {
    return invalid_argument("ranks=" + to_text(ranks) + ": must be at least 1");
  }
  SWAX_ASSIGN(const ModelShape shape, model_shape(spec.model()));
  const PlanOptions options = plan_options(spec);
  const Layout layout = make_layout(shape, ranks);
  const int64_t tokens = spec.training().seq_len();
  const int64_t window = std::max<int64_t>(spec.window().long_(), 1);
  const int64_t shard = layout.shard_elements_total() * kF32Bytes;
  const SlotPlan slots{.slots = spec.training().global_batch_size(),
                       .ranks = ranks,
                       .lanes = static_cast<int>(spec.training().reduction_lanes())};

  SWAX_ASSIGN(const auto run, DryRun::make(shape, tokens, window, options.backend));
  SWAX_TRY(run->train(options.recompute));
  MemoryPlan plan;
  plan.ranks = ranks;
  plan.backend = options.backend;
  plan.step_flops = run->flops();
  plan.arena_bytes = run->arena_bytes();
  plan.master_bytes = shard;
  plan.moment_bytes = 2 * shard;
  plan.accumulator_bytes = shard;
  plan.partial_bytes = levels_waiting(slots) * shard;
  plan.staging_bytes = 3 * shard;
  plan.exchange_bytes = (ranks > 1 ? 3 : 1) * layout.flat_elements_max() * kF32Bytes;
  plan.norm_bytes = norm_bytes(layout);
  plan_inputs(shape, slots, tokens, &plan);
  plan.workspace_bytes = kStreams * stream_workspace_bytes(options.backend);
  if (spec.training().graphs()) plan_graphs(shape, slots, options, &plan);
  const int64_t value_bytes = dtype_bytes(precision_of(options.backend).values);
  if (options.reshard) {
    plan.ring_units = std::min(options.prefetch + 1, shape.units());
    plan.gather_bytes = plan.ring_units * layout.flat_elements_max() * value_bytes;
  } else {
    plan.ring_units = shape.units();
    for (const UnitLayout& unit : layout.units) {
      plan.gather_bytes += unit.flat_elements * value_bytes;
    }
  }
  return plan;
}

}  // namespace swax
