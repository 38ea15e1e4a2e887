#include "worker/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "jobs/schedule.h"
#include "jobs/spec.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/text.h"

namespace swax {

namespace {

// work(from, to) over parts of [0, count), a thread a part when it is worth it.
template <typename Work>
void in_threads(int64_t count, Work work) {
  constexpr int64_t kPartMin = 1 << 16;
  const int64_t parts =
      std::clamp<int64_t>(count / kPartMin, 1, std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (int64_t p = 1; p < parts; ++p)
    threads.emplace_back([=] { work(count * p / parts, count * (p + 1) / parts); });
  work(0, count / parts);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

Trainer::~Trainer() = default;

void Trainer::phase(const char* name) {
  if (options_.sink) options_.sink->phase(name);
}

Result<int64_t> Trainer::start() {
  phase("load");
  step_ = 0;
  if (checkpointer_) {
    SWAX_ASSIGN(step_, checkpointer_->load());
    if (step_ > total_steps_)
      return failed_precondition("the checkpoint is at step " + to_text(step_) + ", the run has " +
                                 to_text(total_steps_) + " steps");
  }
  if (step_ == 0) SWAX_TRY(init_state());
  SWAX_TRY(fsdp_->check_exchange(digest_.tensor, host_digest_.tensor));
  return step_;
}

// Every value is a function of its index: threads share the work, and the host holds one chunk.
Status Trainer::init_state() {
  constexpr int64_t kChunkElements = 1 << 24;
  for (const Tensor& t : {fsdp_->master(), fsdp_->adam_m(), fsdp_->adam_v()})
    SWAX_TRY(backend_.fill(*compute_, {.x = t, .value = 0.0F}));
  std::vector<float> chunk(static_cast<size_t>(std::min(kChunkElements, fsdp_->shard_elements())));
  for (const StatePiece& piece : table_->pieces()) {
    const TensorInfo& info = shape_.tensors[piece.tensor];
    for (int64_t begin = 0; begin < piece.elements; begin += kChunkElements) {
      const int64_t count = std::min(kChunkElements, piece.elements - begin);
      in_threads(count, [&](int64_t from, int64_t to) {
        for (int64_t i = from; i < to; ++i)
          chunk[i] =
              init_value(info, shape_, options_.spec.job().seed(), piece.tensor_begin + begin + i);
      });
      SWAX_TRY(backend_.copy(*compute_, flat_part(fsdp_->master(), piece.flat_begin + begin, count),
                             Tensor::of(chunk.data(), DType::kF32, {count})));
      SWAX_TRY(backend_.sync(*compute_));
    }
  }
  SWAX_TRY(backend_.sync(*compute_));
  fsdp_->weights_changed();
  return ok();
}

// Through pinned memory of its own where there is one (a GPU): a copy from other host memory would
// wait for the stream.
Status Trainer::load_slot(const SlotBatch& batch, int64_t micro_step) {
  const int64_t tokens = options_.spec.training().seq_len();
  SWAX_CHECK(static_cast<int64_t>(batch.tokens_T.size()) == tokens);
  const auto load = [&](const Block& to, const Block& pinned, const auto& values) {
    void* data = const_cast<void*>(static_cast<const void*>(values.data()));
    Tensor from = Tensor::of(data, to.tensor.dtype, {static_cast<int64_t>(values.size())});
    if (!pinned.tensor.empty()) {
      const Tensor row = flat_part(pinned.tensor, micro_step * tokens, from.elements());
      std::memcpy(row.data, from.data, static_cast<size_t>(from.bytes()));
      from = row;
    }
    return backend_.copy(*compute_, to.tensor, from);
  };
  SWAX_TRY(load(tokens_, host_tokens_, batch.tokens_T));
  SWAX_TRY(load(targets_, host_targets_, batch.targets_T));
  if (!shape_.doc_reset) return ok();
  SWAX_TRY(load(doc_start_, host_doc_start_, batch.doc_start_T));
  return load(reset_, host_reset_, batch.reset_T);
}

StepCtx Trainer::step_ctx(Backend& backend, int64_t window) {
  StepCtx ctx{.backend = backend, .stream = *compute_, .arena = *arena_, .shape = shape_};
  ctx.tokens = options_.spec.training().seq_len();
  ctx.window = window;
  ctx.precision = precision_of(plan_.backend);
  ctx.recompute = plan_options(options_.spec).recompute;
  ctx.slot = {
      .tokens_T = tokens_.tensor, .targets_T = targets_.tensor, .doc_start_T = {}, .reset_T = {}};
  if (shape_.doc_reset) {
    ctx.slot.doc_start_T = doc_start_.tensor;
    ctx.slot.reset_T = reset_.tensor;
  }
  ctx.rope_cos_TP = rope_cos_.tensor;
  ctx.rope_sin_TP = rope_sin_.tensor;
  ctx.scalars = static_cast<const StepScalars*>(scalars_.tensor.data);
  return ctx;
}

// Targets of the whole step, known before the backward pass so that every gradient is scaled by the
// global count.
Result<int64_t> Trainer::count_targets(const std::vector<SlotBatch>& slots) {
  for (size_t j = 0; j < slots.size(); ++j)
    my_counts_[j] = slots[j].slot == kNoSlot ? 0 : slots[j].targets;
  SWAX_TRY(rank_->shard.all_gather_host(std::as_bytes(std::span(my_counts_)),
                                        std::as_writable_bytes(std::span(gathered_counts_))));
  int64_t total = 0;
  for (const int64_t count : gathered_counts_) total += count;
  return total;
}

Status Trainer::write_scalars(int64_t targets) {
  const BiasCorrection bias = bias_correction(options_.spec, step_);
  StepScalars scalars;
  scalars.lr = learning_rate(options_.spec, step_);
  scalars.weight_decay = static_cast<float>(options_.spec.optimizer().weight_decay());
  scalars.inv_targets = targets > 0 ? static_cast<float>(1.0 / static_cast<double>(targets)) : 0.0F;
  scalars.bias1 = bias.bias1;
  scalars.bias2 = bias.bias2;
  scalars.max_norm = static_cast<float>(options_.spec.training().max_norm());
  std::memcpy(host_scalars_.tensor.data, &scalars, sizeof scalars);
  SWAX_TRY(backend_.copy(*compute_, scalars_.tensor, host_scalars_.tensor));
  std::memset(host_losses_.tensor.data, 0, static_cast<size_t>(host_losses_.tensor.bytes()));
  return backend_.copy(*compute_, losses_.tensor, host_losses_.tensor);
}

Status Trainer::run_slots(const std::vector<SlotBatch>& slots) {
  StepCtx ctx = step_ctx(backend_, attention_window(options_.spec, step_));
  for (size_t j = 0; j < slots.size(); ++j) {
    fsdp_->begin_micro_step(static_cast<int64_t>(j));
    if (slots[j].slot == kNoSlot) {
      SWAX_TRY(fsdp_->idle_train_slot());
      continue;
    }
    SWAX_TRY(load_slot(slots[j], static_cast<int64_t>(j)));
    SWAX_TRY(
        model_->train_slot(ctx, *fsdp_, flat_part(losses_.tensor, static_cast<int64_t>(j), 1)));
  }
  return ok();
}

Status Trainer::read_back() {
  SWAX_TRY(backend_.copy(*compute_, host_scalars_.tensor, scalars_.tensor));
  SWAX_TRY(backend_.copy(*compute_, host_losses_.tensor, losses_.tensor));
  return backend_.sync(*compute_);
}

// Mean loss per target: slot losses of all ranks, added in slot order.
Result<double> Trainer::total_loss(int64_t targets) {
  const std::span<const double> mine(host_losses_.tensor.f64(),
                                     static_cast<size_t>(host_losses_.tensor.elements()));
  SWAX_TRY(rank_->shard.all_gather_host(std::as_bytes(mine),
                                        std::as_writable_bytes(std::span(gathered_losses_))));
  const int64_t micro = micro_steps(slots_);
  for (int64_t j = 0; j < micro; ++j)
    for (int rank = 0; rank < slots_.ranks; ++rank)
      if (const int64_t slot = slot_of(slots_, j, rank); slot != kNoSlot)
        slot_losses_[slot] = gathered_losses_[rank * micro + j];
  return targets > 0 ? sum_slots(slots_, slot_losses_) / static_cast<double>(targets) : 0.0;
}

Status Trainer::train_step() {
  SystemClock clock;
  const int64_t begin_ns = clock.monotonic_ns();
  SWAX_ASSIGN(const std::vector<SlotBatch>* const slots, source_->step(step_));
  SWAX_ASSIGN(const int64_t targets, count_targets(*slots));
  SWAX_TRY(write_scalars(targets));
  SWAX_TRY(run_slots(*slots));
  if (options_.flip.step == step_ + 1 && !options_.flip.tensor.empty()) SWAX_TRY(flip_gradient());
  SWAX_TRY(optimizer_->update(static_cast<StepScalars*>(scalars_.tensor.data),
                              checkpointer_ ? checkpointer_->copied() : Event{}));
  SWAX_TRY(read_back());
  SWAX_ASSIGN(loss_, total_loss(targets));
  StepScalars scalars;
  std::memcpy(&scalars, host_scalars_.tensor.data, sizeof scalars);
  grad_norm_ = scalars.grad_norm;
  nonfinite_ = scalars.nonfinite != 0 || !std::isfinite(loss_);
  const int64_t window = attention_window(options_.spec, step_);
  ++step_;
  const int64_t tokens = slots_.slots * options_.spec.training().seq_len();
  const int64_t step_ns = clock.monotonic_ns() - begin_ns;
  trained_tokens_ += tokens;
  trained_ns_ += step_ns;
  const uint64_t every = options_.spec.debug().hash_every();
  const bool hash = every > 0 && static_cast<uint64_t>(step_) % every == 0;
  if (hash) SWAX_TRY(digest_sums());
  if (options_.sink)
    options_.sink->step({.step = step_,
                         .window = window,
                         .loss = loss_,
                         .grad_norm = grad_norm_,
                         .targets = targets,
                         .tokens = tokens,
                         .step_ns = step_ns,
                         .lr = scalars.lr,
                         .digests = hash ? std::span<const DigestSums>(digest_sums_)
                                         : std::span<const DigestSums>()});
  return ok();
}

Status Trainer::agree(bool may_save) {
  StepFlags flags;
  flags[StepFlags::kStop] = stop_.load(std::memory_order_relaxed);
  flags[StepFlags::kSave] = save_.exchange(0, std::memory_order_relaxed);
  if (checkpointer_) checkpointer_->fill_flags(flags);
  SWAX_TRY(rank_->shard.max_host(flags.values));
  stop_agreed_ = stop_agreed_ || flags[StepFlags::kStop] != 0;
  if (!saves()) return ok();
  SWAX_TRY(checkpointer_->settle(flags));
  const int64_t interval = static_cast<int64_t>(options_.spec.checkpoint().interval());
  const bool due = step_ % interval == 0 || flags[StepFlags::kSave] != 0;
  if (!may_save || !due || step_ == checkpointer_->last_saved_step()) return ok();
  if (!checkpointer_->idle()) {
    log_warn("train", "checkpoint skipped: the previous one is still being written",
             {{"step", step_}});
    if (speaks())
      options_.sink->event("checkpoint_skipped", step_, "the previous one is still being written");
    return ok();
  }
  return checkpointer_->begin(step_, loss_);
}

Status Trainer::drain_saves() {
  while (checkpointer_ && !checkpointer_->idle()) {
    struct timespec pause {
      0, 1'000'000
    };
    nanosleep(&pause, nullptr);
    SWAX_TRY(agree(false));
  }
  return ok();
}

Status Trainer::end_of_warmup() {
  if (speaks() && choices_.chosen) options_.sink->event("kernel_choices", step_, choices_.lines);
  phase("train");
  return ok();
}

Result<RunOutcome> Trainer::run() {
  const uint64_t validate_every = options_.spec.validation().freq();
  phase("warmup");
  bool first = true;
  while (step_ < total_steps_) {
    SWAX_TRY(train_step());
    if (first) SWAX_TRY(end_of_warmup());
    first = false;
    if (backend_.allocations() != allocations_)
      return internal_error("device memory was taken in step " + to_text(step_));
    if (nonfinite_)
      return finish(RunOutcome::Kind::kNonFinite,
                    "non-finite loss or gradient at step " + to_text(step_));
    if (validate_every > 0 && static_cast<uint64_t>(step_) % validate_every == 0 &&
        step_ < total_steps_)
      SWAX_TRY(validate_state(false));
    SWAX_TRY(agree(step_ < total_steps_));
    if (stop_agreed_ && step_ < total_steps_)
      return finish(RunOutcome::Kind::kStopped, "stopped on request at step " + to_text(step_));
  }
  SWAX_TRY(validate_state(true));
  return finish(RunOutcome::Kind::kDone, "");
}

void Trainer::wait_for_room(int64_t* pause_ms) {
  constexpr int64_t kPauseMaxMs = 10'000;
  *pause_ms = std::min(kPauseMaxMs, 2 * *pause_ms);
  std::this_thread::sleep_for(std::chrono::milliseconds(*pause_ms));
  phase("save");  // it lives
}

Result<RunOutcome> Trainer::finish(RunOutcome::Kind kind, std::string reason) {
  phase("save");
  RunOutcome outcome;
  outcome.kind = kind;
  outcome.step = step_;
  outcome.loss = loss_;
  outcome.validation_bpb = validation_bpb_;
  outcome.reason = std::move(reason);
  outcome.tokens_per_s = trained_ns_ > 0 ? static_cast<double>(trained_tokens_) * 1e9 /
                                               static_cast<double>(trained_ns_)
                                         : 0.0;
  SWAX_TRY(drain_saves());
  // The state after a non-finite step is the state before it (AdamW left it alone): nothing worth a
  // checkpoint. A save that fails is tried again until settle() gives up loudly; without room on
  // the disk it waits for some.
  int64_t pause_ms = 500;
  while (saves() && kind != RunOutcome::Kind::kNonFinite && step_ > 0 &&
         checkpointer_->last_saved_step() != step_) {
    if (checkpointer_->no_room()) wait_for_room(&pause_ms);
    SWAX_TRY(checkpointer_->begin(step_, loss_));
    SWAX_TRY(drain_saves());
  }
  SWAX_ASSIGN(outcome.digest, digest());
  phase("leaving");
  return outcome;
}

}  // namespace swax
