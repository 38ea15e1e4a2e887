#include "worker/train/generate.h"

#include <algorithm>

#include "kernels/measuring_backend.h"
#include "proto/base/files.h"
#include "proto/base/log.h"
#include "proto/base/math.h"
#include "proto/base/rng.h"
#include "proto/base/text.h"
#include "storage/checkpoint_store.h"
#include "worker/data/build.h"
#include "worker/train/state.h"

namespace swax {
namespace {

Status read_weights(CheckpointReader& reader, const ModelShape& shape, float* out) {
  for (size_t i = 0; i < shape.tensors.size(); ++i) {
    const TensorInfo& info = shape.tensors[i];
    const std::string name = state_tensor_name(shape, 0, static_cast<int>(i));
    const int id = reader.tensor_id(name);
    if (id < 0) return data_loss("tensor " + name + " is not in the checkpoint");
    SWAX_TRY(
        reader.read(static_cast<uint32_t>(id), 0, {out, static_cast<size_t>(info.elements())}));
    out += info.elements();
  }
  return ok();
}

Status read_checkpoint(const std::string& ckpt_root, const CheckpointName& name,
                       const ModelShape& shape, float* out) {
  const auto reader = CheckpointReader::open(ckpt_root, name);
  const Status status = reader.ok() ? read_weights(**reader, shape, out) : reader.status();
  // A part of a committed checkpoint that is not there is damage too.
  return status.code() == Code::kNotFound ? data_loss(status.message()) : status;
}

// Bytes of arena one decoded token needs: the same code on a measuring arena.
Result<int64_t> decode_arena_bytes(Model& model, int64_t window) {
  MeasuringBackend measuring;
  const ModelShape& shape = model.shape();
  SWAX_ASSIGN(const auto stream, measuring.make_stream());
  SWAX_ASSIGN(const auto state, model.make_decode_state(measuring, window));
  Arena arena = Arena::measuring();
  Arena outside = Arena::measuring();
  ResidentStore store(shape, outside.take(DType::kF32, {shape.parameters()}), Tensor{});
  StepCtx ctx{.backend = measuring, .stream = *stream, .arena = arena, .shape = shape};
  ctx.tokens = 1;
  ctx.window = window;
  SWAX_TRY(model.decode(ctx, store, *state, 0, outside.take(DType::kF32, {shape.vocab})));
  return arena.peak();
}

}  // namespace

Result<Buffer> load_model_weights(Backend& backend, const ModelShape& shape,
                                  const std::string& ckpt_root, int64_t step,
                                  int64_t* loaded_step) {
  SWAX_ASSIGN(const std::vector<CheckpointEntry> entries, list_checkpoints(ckpt_root));
  const int64_t n = shape.parameters();
  SWAX_ASSIGN(Buffer host, backend.allocate(n * 4, MemoryKind::kPinned));
  Status why = not_found("no committed checkpoint in " + ckpt_root);
  for (const CheckpointEntry& entry : entries) {
    if (step >= 0 && static_cast<int64_t>(entry.name.step) != step) continue;
    const std::string folder = join_path(ckpt_root, entry.name.folder());
    if (!entry.committed && !path_exists(join_path(folder, "COMMITTED"))) continue;
    const Status status = entry.problem.empty() ? read_checkpoint(ckpt_root, entry.name, shape,
                                                                  static_cast<float*>(host.data()))
                                                : data_loss(entry.problem);
    if (status.ok()) {
      *loaded_step = static_cast<int64_t>(entry.name.step);
      if (backend.kind() == BackendKind::kCpu) return host;
      SWAX_ASSIGN(Buffer device, backend.allocate(n * 4, MemoryKind::kDevice));
      SWAX_ASSIGN(const auto stream, backend.make_stream());
      SWAX_TRY(backend.copy(*stream, Tensor::of(device.data(), DType::kF32, {n}),
                            Tensor::of(host.data(), DType::kF32, {n})));
      SWAX_TRY(backend.sync(*stream));
      return device;
    }
    if (why.code() == Code::kNotFound) why = status.with_context(entry.name.folder());  // newest
    log_warn("generate", "checkpoint cannot be read",
             {{"checkpoint", entry.name.folder()}, {"reason", status.message()}});
  }
  return step >= 0 ? why.with_context("checkpoint of step " + to_text(step)) : why;
}

int32_t sample_token(std::span<const float> logits, double temperature, int top_k, uint64_t seed,
                     int64_t position, std::vector<std::pair<float, int32_t>>& scratch) {
  scratch.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    scratch.emplace_back(logits[i], static_cast<int32_t>(i));
  // Largest first; equal logits by token, so the order is total.
  const auto before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  const size_t keep = temperature <= 0.0 ? 1
                      : top_k > 0 ? std::min<size_t>(static_cast<size_t>(top_k), scratch.size())
                                  : scratch.size();
  std::partial_sort(scratch.begin(), scratch.begin() + static_cast<std::ptrdiff_t>(keep),
                    scratch.end(), before);
  if (keep == 1) return scratch[0].second;
  double total = 0.0;
  for (size_t i = 0; i < keep; ++i)
    total += math::exp((static_cast<double>(scratch[i].first) - scratch[0].first) / temperature);
  const uint32_t word = random_block(seed, Purpose::kSample, static_cast<uint64_t>(position))[0];
  double left = unit_open_closed(word) * total;
  for (size_t i = 0; i < keep; ++i) {
    left -= math::exp((static_cast<double>(scratch[i].first) - scratch[0].first) / temperature);
    if (left <= 0.0) return scratch[i].second;
  }
  return scratch[keep - 1].second;
}

Result<int64_t> generate(Backend& backend, const GenerateOptions& options,
                         const std::function<void(std::string_view)>& emit) {
  SWAX_ASSIGN(const ModelShape shape, model_shape(options.spec.model()));
  if (shape.vocab < kByteVocab)
    return invalid_argument("model.vocab_size=" + to_text(shape.vocab) +
                            ": text needs at least 257");
  int64_t loaded = 0;
  SWAX_ASSIGN(Buffer weights,
              load_model_weights(backend, shape, options.ckpt_root, options.step, &loaded));
  SWAX_ASSIGN(const auto model, Model::create(shape));
  SWAX_ASSIGN(const auto stream, backend.make_stream());
  const int64_t window = options.window > 0 ? options.window : options.spec.window().long_();
  SWAX_ASSIGN(const auto state, model->make_decode_state(backend, window));
  ResidentStore store(shape, Tensor::of(weights.data(), DType::kF32, {shape.parameters()}),
                      Tensor{});
  SWAX_ASSIGN(const int64_t arena_bytes, decode_arena_bytes(*model, window));
  SWAX_ASSIGN(Buffer arena_memory, backend.allocate(arena_bytes, MemoryKind::kDevice));
  SWAX_ASSIGN(Buffer logits_memory, backend.allocate(shape.vocab * 4, MemoryKind::kPinned));
  Arena arena(arena_memory.data(), arena_bytes);
  StepCtx ctx{.backend = backend, .stream = *stream, .arena = arena, .shape = shape};
  ctx.tokens = 1;
  ctx.window = window;
  const Tensor logits = Tensor::of(logits_memory.data(), DType::kF32, {shape.vocab});
  std::vector<std::pair<float, int32_t>> scratch;
  scratch.reserve(static_cast<size_t>(shape.vocab));

  // A document begins after EOD; the prompt follows it.
  int32_t token = static_cast<int32_t>(kEodToken);
  SWAX_TRY(model->decode(ctx, store, *state, token, logits));
  for (const char c : options.prompt) {
    token = static_cast<unsigned char>(c);
    SWAX_TRY(model->decode(ctx, store, *state, token, logits));
  }
  SWAX_TRY(backend.sync(*stream));
  for (int64_t i = 0; i < options.tokens; ++i) {
    token = sample_token({logits.f32(), static_cast<size_t>(kByteVocab)}, options.temperature,
                         options.top_k, options.seed, state->position(), scratch);
    const char byte = static_cast<char>(token);
    emit(token == static_cast<int32_t>(kEodToken) ? std::string_view("\n\n")
                                                  : std::string_view(&byte, 1));
    if (i + 1 == options.tokens) break;
    SWAX_TRY(model->decode(ctx, store, *state, token, logits));
    SWAX_TRY(backend.sync(*stream));
  }
  return loaded;
}

}  // namespace swax
