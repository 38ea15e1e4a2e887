// Trainer: what is allocated before the first step, and the checks that it is what was planned.
#include <bit>
#include <charconv>
#include <cstring>

#include "jobs/schedule.h"
#include "jobs/spec.h"
#include "proto/base/hash.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"
#include "worker/train/product_list.h"
#include "worker/train/trainer.h"

namespace swax {

Result<std::unique_ptr<Trainer>> Trainer::create(Backend& backend, Collectives& shard,
                                                 Collectives& replica, TrainerOptions options) {
  std::unique_ptr<GraphBackend> graphs;
  if (options.graphs && backend.can_capture()) graphs = std::make_unique<GraphBackend>(backend);
  std::unique_ptr<Trainer> self(new Trainer(backend, std::move(graphs), std::move(options)));
  SWAX_TRY(self->allocate(shard, replica));
  return self;
}

Status Trainer::allocate(Collectives& shard, Collectives& replica) {
  const pb::JobSpec& spec = options_.spec;
  SWAX_ASSIGN(shape_, model_shape(spec.model()));
  const int ranks = shard.size();
  layout_ = make_layout(shape_, ranks);
  slots_ = {.slots = spec.training().global_batch_size(),
            .ranks = ranks,
            .lanes = static_cast<int>(spec.training().reduction_lanes())};
  total_steps_ = total_steps(spec);
  SWAX_ASSIGN(plan_, plan_memory(spec, ranks));
  if (backend_.kind() != plan_.backend)
    return invalid_argument("training.backend=" + spec.training().backend() +
                            ": the trainer was given the other backend");
  SWAX_ASSIGN(compute_, backend_.make_stream());
  SWAX_ASSIGN(comm_, backend_.make_stream());
  SWAX_ASSIGN(arena_block_, make_block(backend_, DType::kU8, {plan_.arena_bytes}));
  Arena::Poison poison;  // only debug builds call it
  if (plan_.backend != BackendKind::kCpu)
    poison = [this](void* data, int64_t bytes) { poison_device(data, bytes); };
  arena_ = std::make_unique<Arena>(arena_block_.tensor.data, plan_.arena_bytes, std::move(poison));
  rank_ = std::make_unique<RankContext>(RankContext{.backend = backend_,
                                                    .compute = *compute_,
                                                    .comm = *comm_,
                                                    .arena = *arena_,
                                                    .shard = shard,
                                                    .replica = replica});
  SWAX_ASSIGN(model_, Model::create(shape_));
  SWAX_ASSIGN(fsdp_, Fsdp::create(*rank_, shape_, layout_, slots_, plan_options(spec)));
  SWAX_ASSIGN(optimizer_, Optimizer::create(*rank_, shape_, layout_, spec, *fsdp_));
  table_ = std::make_unique<StateTable>(shape_, layout_, shard.rank());
  BatchSourceOptions source;
  source.spec = &options_.spec;
  source.folders = options_.data_folders;
  source.rank = shard.rank();
  source.ranks = ranks;
  SWAX_ASSIGN(source_, BatchSource::open(source));
  SWAX_TRY(allocate_inputs());
  SWAX_TRY(settle_products());
  SWAX_TRY(allocate_checkpointer());
  allocations_ = backend_.allocations();
  return check_plan();
}

// A dry run finds the products of a step and of a validation, before there are weights.
Status Trainer::settle_products() {
  if (!backend_.has_choices()) return ok();
  MeasuringBackend measuring(plan_.backend);
  ProductList list(measuring);
  PlacesOnly places(*fsdp_);
  StepCtx ctx = step_ctx(list, options_.spec.window().long_());
  const Tensor loss = flat_part(losses_.tensor, 0, 1);
  SWAX_TRY(model_->train_slot(ctx, places, loss));
  SWAX_TRY(model_->eval_slot(ctx, places, loss, Tensor{}, Tensor{}));
  SWAX_ASSIGN(choices_, settle_kernel_choices(backend_, *compute_, rank_->shard, list.products(),
                                              options_.choices_file));
  if (!choices_.lines.empty())
    options_.fingerprint += " products=" + xxh3_128(choices_.lines).hex();
  return ok();
}

Status Trainer::allocate_checkpointer() {
  const pb::JobSpec& spec = options_.spec;
  // Also without saves: what an earlier attempt saved is loaded.
  if (options_.ckpt_root.empty()) return ok();
  CheckpointerOptions checkpoint;
  checkpoint.ckpt_root = options_.ckpt_root;
  checkpoint.job = spec.job().name();
  checkpoint.epoch = options_.epoch;
  checkpoint.numeric_id = numeric_id(spec).hex();
  checkpoint.spec_hash = spec_hash(spec).hex();
  checkpoint.fingerprint = options_.fingerprint;
  checkpoint.build_id = options_.build_id;
  checkpoint.keep = static_cast<int>(spec.checkpoint().keep_latest_k());
  checkpoint.report_durable = options_.report_durable;
  checkpoint.tokens_per_step = slots_.slots * spec.training().seq_len();
  SWAX_ASSIGN(checkpointer_, Checkpointer::create(*rank_, *fsdp_, *table_, checkpoint,
                                                  speaks() ? options_.sink : nullptr));
  return ok();
}

void Trainer::poison_device(void* data, int64_t bytes) {
  const Tensor words =
      Tensor::of(data, DType::kF32, {exact_div(bytes, static_cast<int64_t>(sizeof(float)))});
  // An error of a device stays: the next call reports it.
  static_cast<void>(
      backend_.fill(*compute_, {.x = words, .value = std::bit_cast<float>(~uint32_t{0})}));
}

// Where copies run beside the host, the slots of a step lie in pinned memory until its end.
Status Trainer::allocate_slots() {
  const int64_t tokens = options_.spec.training().seq_len();
  SWAX_ASSIGN(tokens_, make_block(backend_, DType::kI32, {tokens}));
  SWAX_ASSIGN(targets_, make_block(backend_, DType::kI32, {tokens}));
  SWAX_ASSIGN(doc_start_, make_block(backend_, DType::kI32, {tokens}));
  SWAX_ASSIGN(reset_, make_block(backend_, DType::kU8, {tokens}));
  if (plan_.backend == BackendKind::kCpu) return ok();
  const int64_t all = micro_steps(slots_) * tokens;
  SWAX_ASSIGN(host_tokens_, make_block(backend_, DType::kI32, {all}, MemoryKind::kPinned));
  SWAX_ASSIGN(host_targets_, make_block(backend_, DType::kI32, {all}, MemoryKind::kPinned));
  SWAX_ASSIGN(host_doc_start_, make_block(backend_, DType::kI32, {all}, MemoryKind::kPinned));
  SWAX_ASSIGN(host_reset_, make_block(backend_, DType::kU8, {all}, MemoryKind::kPinned));
  return ok();
}

Status Trainer::allocate_inputs() {
  const int64_t tokens = options_.spec.training().seq_len();
  const int64_t half = shape_.head_dim / 2;
  const int64_t micro = micro_steps(slots_);
  const int64_t scalar_bytes = static_cast<int64_t>(sizeof(StepScalars));
  const int64_t state_tensors = table_->tensors();
  SWAX_TRY(allocate_slots());
  SWAX_ASSIGN(rope_cos_, make_block(backend_, DType::kF32, {tokens, half}));
  SWAX_ASSIGN(rope_sin_, make_block(backend_, DType::kF32, {tokens, half}));
  SWAX_ASSIGN(scalars_, make_block(backend_, DType::kU8, {scalar_bytes}));
  SWAX_ASSIGN(losses_, make_block(backend_, DType::kF64, {micro}));
  SWAX_ASSIGN(digest_, make_block(backend_, DType::kI64, {2 * state_tensors}));
  SWAX_ASSIGN(host_scalars_, make_block(backend_, DType::kU8, {scalar_bytes}, MemoryKind::kPinned));
  SWAX_ASSIGN(host_losses_, make_block(backend_, DType::kF64, {micro}, MemoryKind::kPinned));
  SWAX_ASSIGN(host_digest_,
              make_block(backend_, DType::kI64, {2 * state_tensors}, MemoryKind::kPinned));
  std::vector<float> cos(static_cast<size_t>(tokens * half)), sin(cos.size());
  const Tensor host_cos = Tensor::of(cos.data(), DType::kF32, {tokens, half});
  const Tensor host_sin = Tensor::of(sin.data(), DType::kF32, {tokens, half});
  fill_rope_tables(shape_, host_cos, host_sin);
  SWAX_TRY(backend_.copy(*compute_, rope_cos_.tensor, host_cos));
  SWAX_TRY(backend_.copy(*compute_, rope_sin_.tensor, host_sin));
  SWAX_TRY(backend_.sync(*compute_));
  const size_t ranks = static_cast<size_t>(slots_.ranks);
  gathered_losses_.resize(ranks * micro);
  slot_losses_.resize(slots_.slots);
  my_counts_.resize(micro);
  gathered_counts_.resize(ranks * micro);
  digest_sums_.resize(state_tensors);
  gathered_digests_.resize(ranks * state_tensors);
  round_.resize(ranks);
  // Readers and buffers of the held-out set are made now, not in the middle of the run.
  return source_->validation_windows() > 0 ? source_->validation(0, &validation_batch_) : ok();
}

// Planned = allocated, category by category: a difference is a bug of the plan.
Status Trainer::check_plan() const {
  struct Line {
    const char* name;
    int64_t planned, allocated;
  };
  const Line lines[] = {
      {"master", plan_.master_bytes, fsdp_->master().bytes()},
      {"moments", plan_.moment_bytes, fsdp_->adam_m().bytes() + fsdp_->adam_v().bytes()},
      {"gradient sums", plan_.accumulator_bytes + plan_.partial_bytes, fsdp_->sum_bytes()},
      {"gathered weights", plan_.gather_bytes, fsdp_->gather_bytes()},
      {"exchange", plan_.exchange_bytes, fsdp_->exchange_bytes()},
      {"norm", plan_.norm_bytes, optimizer_->bytes()},
      {"staging", plan_.staging_bytes,
       checkpointer_ ? checkpointer_->staging_bytes() : plan_.staging_bytes},
  };
  for (const Line& line : lines)
    if (line.planned != line.allocated)
      return internal_error(std::string("memory plan: ") + line.name + " planned " +
                            to_text(line.planned) + " bytes, allocated " + to_text(line.allocated));
  return ok();
}

namespace {

Result<int64_t> flip_number(std::string_view text, int64_t low, int64_t high, const char* what) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high)
    return invalid_argument(std::string("gradient flip: ") + what + " \"" + printable(text) +
                            "\" must be in " + to_text(low) + ".." + to_text(high));
  return value;
}

}  // namespace

Result<GradientFlip> parse_gradient_flip(const std::string& text) {
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() != 4)
    return invalid_argument("gradient flip \"" + printable(text) +
                            "\": must be step:tensor:element:bit");
  GradientFlip flip;
  flip.tensor = std::string(parts[1]);
  SWAX_ASSIGN(flip.step, flip_number(parts[0], 1, 1'000'000'000, "step"));
  SWAX_ASSIGN(flip.element, flip_number(parts[2], 0, INT64_MAX, "element"));
  SWAX_ASSIGN(const int64_t bit, flip_number(parts[3], 0, 31, "bit"));
  flip.bit = static_cast<int>(bit);
  return flip;
}

}  // namespace swax
