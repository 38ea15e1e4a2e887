#include "tests/worker/slot_run.h"

#include <cmath>
#include <initializer_list>
#include <memory>
#include <utility>

#include "worker/model/model.h"
#include "worker/model/plan.h"

namespace swax::test {
namespace {

// Device memory, filled from host vectors.
class Memory {
 public:
  Memory(Backend& backend, Stream& stream) : backend_(backend), stream_(stream) {}
  Result<Tensor> take(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor t = Tensor::of(nullptr, dtype, dims);
    SWAX_ASSIGN(Buffer buffer, backend_.allocate(t.bytes(), MemoryKind::kDevice));
    t.data = buffer.data();
    buffers_.push_back(std::move(buffer));
    return t;
  }
  // Empty for an empty vector (an optional tensor).
  template <typename T>
  Result<Tensor> upload(DType dtype, const std::vector<T>& values) {
    if (values.empty()) return Tensor{};
    const auto count = static_cast<int64_t>(values.size());
    SWAX_ASSIGN(const Tensor t, take(dtype, {count}));
    const Tensor host =
        Tensor::of(const_cast<void*>(static_cast<const void*>(values.data())), dtype, {count});
    SWAX_TRY(backend_.copy(stream_, t, host));
    SWAX_TRY(backend_.sync(stream_));
    return t;
  }

 private:
  Backend& backend_;
  Stream& stream_;
  std::vector<Buffer> buffers_;
};

Result<Tensor> upload_weights(Backend& backend, Stream& stream, Memory& memory, DType values,
                              const std::vector<float>& weights) {
  SWAX_ASSIGN(const Tensor wide, memory.upload(DType::kF32, weights));
  if (values == DType::kF32) return wide;
  SWAX_ASSIGN(const Tensor narrow, memory.take(values, {wide.elements()}));
  SWAX_TRY(backend.cast(stream, {.from = wide, .to = narrow}));
  return narrow;
}

}  // namespace

Result<SlotRun> run_slot(Backend& backend, BackendKind kind, const ModelShape& shape,
                         const std::vector<float>& weights, const SlotData& slot,
                         const RunOptions& options) {
  SWAX_ASSIGN(const auto stream, backend.make_stream());
  Memory memory(backend, *stream);
  const Precision precision = precision_of(kind);
  const int64_t tokens = slot.size(), pairs = shape.head_dim / 2;
  SWAX_ASSIGN(const Tensor flat,
              upload_weights(backend, *stream, memory, precision.values, weights));
  SWAX_ASSIGN(const Tensor grads, memory.take(DType::kF32, {shape.parameters()}));
  SWAX_TRY(backend.fill(*stream, {.x = grads, .value = NAN}));
  std::vector<float> cos(static_cast<size_t>(tokens * pairs)), sin(cos.size());
  fill_rope_tables(shape, Tensor::of(cos.data(), DType::kF32, {tokens, pairs}),
                   Tensor::of(sin.data(), DType::kF32, {tokens, pairs}));
  SWAX_ASSIGN(const Tensor cos_TP, memory.upload(DType::kF32, cos));
  SWAX_ASSIGN(const Tensor sin_TP, memory.upload(DType::kF32, sin));
  StepScalars scalars;
  scalars.inv_targets = 1.0F / static_cast<float>(target_count(slot));
  const auto* bytes = reinterpret_cast<const uint8_t*>(&scalars);
  SWAX_ASSIGN(const Tensor on_device,
              memory.upload(DType::kU8, std::vector<uint8_t>(bytes, bytes + sizeof scalars)));
  SWAX_ASSIGN(const Tensor loss, memory.upload(DType::kF64, std::vector<double>{0.0}));
  SWAX_ASSIGN(const int64_t arena_bytes, train_arena_bytes(shape, tokens, options.recompute, kind));
  SWAX_ASSIGN(const Tensor arena_memory, memory.take(DType::kU8, {arena_bytes}));
  const bool host = backend.kind() == BackendKind::kCpu;
  Arena arena(
      arena_memory.data, arena_bytes, host ? Arena::Poison() : [](void*, int64_t) {});
  SWAX_ASSIGN(const auto model, Model::create(shape));
  ResidentStore store(shape, flat, grads);
  StepCtx ctx{.backend = backend, .stream = *stream, .arena = arena, .shape = shape};
  ctx.tokens = tokens;
  ctx.window = options.window;
  ctx.precision = precision;
  ctx.recompute = options.recompute;
  SWAX_ASSIGN(ctx.slot.tokens_T, memory.upload(DType::kI32, slot.tokens));
  SWAX_ASSIGN(ctx.slot.targets_T, memory.upload(DType::kI32, slot.targets));
  SWAX_ASSIGN(ctx.slot.doc_start_T, memory.upload(DType::kI32, slot.doc_start));
  SWAX_ASSIGN(ctx.slot.reset_T, memory.upload(DType::kU8, slot.reset));
  ctx.rope_cos_TP = cos_TP.reshaped({tokens, pairs});
  ctx.rope_sin_TP = sin_TP.reshaped({tokens, pairs});
  ctx.scalars = static_cast<const StepScalars*>(on_device.data);
  SWAX_TRY(model->train_slot(ctx, store, loss));
  SlotRun run;
  run.grads.resize(weights.size());
  SWAX_TRY(
      backend.copy(*stream, Tensor::of(run.grads.data(), DType::kF32, {grads.elements()}), grads));
  SWAX_TRY(backend.copy(*stream, Tensor::of(&run.loss, DType::kF64, {1}), loss));
  SWAX_TRY(backend.sync(*stream));
  return run;
}

}  // namespace swax::test
