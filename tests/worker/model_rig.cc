#include "tests/worker/model_rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/tensor_check.h"
#include "worker/model/plan.h"

namespace swax::test {
namespace {

void poison(void* data, int64_t bytes) { std::memset(data, 0xff, static_cast<size_t>(bytes)); }

template <typename T>
Tensor view(std::vector<T>& v, DType dtype) {
  return v.empty() ? Tensor{} : Tensor::of(v.data(), dtype, {static_cast<int64_t>(v.size())});
}

double norm(const std::vector<double>& x) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

double step(double longest_sum, double chained) {
  return rounding_bound(static_cast<int64_t>(longest_sum), chained);
}

}  // namespace

ModelShape tiny_shape(const TinyModel& m) {
  pb::Model p;
  p.set_pattern(m.pattern);
  p.set_layers(m.layers);
  p.set_dim(m.dim);
  p.set_vocab_size(m.vocab);
  p.set_heads(m.heads);
  p.set_kv_heads(m.kv_heads);
  p.set_head_dim(m.head_dim);
  p.set_mlstm_heads(m.mlstm_heads);
  p.set_mlstm_qk_dim(m.qk);
  p.set_mlstm_v_dim(m.v);
  p.set_ff_dim(m.ff);
  p.set_rope_base(10000.0);
  p.set_norm_eps(m.norm_eps);
  p.set_gate_cap(15.0);
  p.set_logit_cap(m.logit_cap);
  p.set_doc_reset(true);
  p.set_mlstm_chunk(m.chunk);
  Result<ModelShape> shape = model_shape(p);
  SWAX_CHECK(shape.ok());
  return std::move(shape).value();
}

SlotData random_slot(uint64_t seed, int64_t tokens, int64_t vocab,
                     const std::vector<int64_t>& first_tokens) {
  SlotData s;
  s.tokens = random_ints(seed, "tokens", tokens, static_cast<int32_t>(vocab));
  s.targets.assign(s.tokens.begin() + 1, s.tokens.end());
  s.targets.push_back(tokens == 1 ? 0 : -1);
  if (first_tokens.empty()) return s;
  s.reset.assign(static_cast<size_t>(tokens), 0);
  for (const int64_t first : first_tokens) {
    s.reset[static_cast<size_t>(first)] = 1;
    if (first > 0) s.targets[static_cast<size_t>(first - 1)] = -1;
  }
  const std::vector<int32_t> reset(s.reset.begin(), s.reset.end());
  s.doc_start = reference::first_tokens(reset);
  return s;
}

int64_t target_count(const SlotData& slot) {
  return std::count_if(slot.targets.begin(), slot.targets.end(), [](int32_t t) { return t >= 0; });
}

std::vector<float> random_weights(const ModelShape& shape, uint64_t seed) {
  std::vector<float> flat;
  for (const TensorInfo& t : shape.tensors) {
    Draw draw{.mean = 0.0, .std = 1.0 / std::sqrt(static_cast<double>(t.row_elements()))};
    if (t.shape.size() == 1) draw = {.mean = 1.0, .std = 0.2};
    if (t.init == InitRule::kInputGateBias) draw = {.mean = -1.0, .std = 0.5};
    if (t.init == InitRule::kForgetGateBias) draw = {.mean = 3.0, .std = 1.0};
    const std::vector<float> values = random_normal(seed, t.name, t.elements(), draw);
    flat.insert(flat.end(), values.begin(), values.end());
  }
  return flat;
}

Rig::Rig(const ModelShape& shape, std::vector<float> weights, const BackendOptions& options)
    : shape_(shape), weights_(std::move(weights)), grads_(weights_.size()) {
  auto backend = open_backend(options);
  SWAX_CHECK(backend.ok());
  backend_ = std::move(backend).value();
  auto stream = backend_->make_stream();
  SWAX_CHECK(stream.ok());
  stream_ = std::move(stream).value();
  auto model = Model::create(shape_);
  SWAX_CHECK(model.ok());
  model_ = std::move(model).value();
  store_ = std::make_unique<ResidentStore>(shape_, view(weights_, DType::kF32),
                                           view(grads_, DType::kF32));
}

RunResult Rig::train(const SlotData& slot, const RunOptions& o, UnitStore* store) {
  return run(slot, o, store, true);
}
RunResult Rig::eval(const SlotData& slot, const RunOptions& o, UnitStore* store) {
  return run(slot, o, store, false);
}

RunResult Rig::run(const SlotData& slot, const RunOptions& o, UnitStore* store, bool train) {
  RunResult r;
  SlotData in = slot;
  const int64_t tokens = in.size();
  const auto planned =
      train ? train_arena_bytes(shape_, tokens, o.recompute) : eval_arena_bytes(shape_, tokens);
  if (!planned.ok()) ADD_FAILURE() << planned.status().to_string();
  SWAX_CHECK(planned.ok());
  r.arena_planned = *planned;
  auto memory = backend_->allocate(*planned, MemoryKind::kDevice);
  SWAX_CHECK(memory.ok());
  poison(memory->data(), *planned);
  Arena arena(memory->data(), *planned);
  poison(grads_.data(), static_cast<int64_t>(grads_.size() * sizeof(float)));

  std::vector<float> cos(static_cast<size_t>(tokens * shape_.head_dim / 2)), sin(cos.size());
  const Tensor cos_TP = view(cos, DType::kF32).reshaped({tokens, shape_.head_dim / 2});
  const Tensor sin_TP = view(sin, DType::kF32).reshaped({tokens, shape_.head_dim / 2});
  fill_rope_tables(shape_, cos_TP, sin_TP);
  StepScalars scalars;
  scalars.inv_targets =
      o.inv_targets > 0 ? o.inv_targets : 1.0F / static_cast<float>(target_count(slot));
  StepCtx ctx{.backend = *backend_,
              .stream = *stream_,
              .arena = arena,
              .shape = shape_,
              .tokens = tokens,
              .window = o.window,
              .recompute = o.recompute,
              .slot = {.tokens_T = view(in.tokens, DType::kI32),
                       .targets_T = view(in.targets, DType::kI32),
                       .doc_start_T = view(in.doc_start, DType::kI32),
                       .reset_T = view(in.reset, DType::kU8)},
              .rope_cos_TP = cos_TP,
              .rope_sin_TP = sin_TP,
              .scalars = &scalars};
  UnitStore& units = store != nullptr ? *store : *store_;
  const Tensor loss = Tensor::of(&r.loss, DType::kF64, {1});
  if (train) {
    status_ = model_->train_slot(ctx, units, loss);
    r.grads = grads_;
  } else {
    r.token_loss.assign(static_cast<size_t>(tokens), -1.0);
    r.logits.assign(static_cast<size_t>(tokens * shape_.vocab), NAN);
    status_ = model_->eval_slot(ctx, units, loss, view(r.token_loss, DType::kF64),
                                view(r.logits, DType::kF32).reshaped({tokens, shape_.vocab}));
  }
  EXPECT_EQ(arena.used(), 0);
  r.arena_peak = arena.peak();
  return r;
}

std::vector<float> Rig::decode(const std::vector<int32_t>& tokens, int64_t window) {
  const auto planned = decode_arena_bytes(shape_);
  if (!planned.ok()) ADD_FAILURE() << planned.status().to_string();
  SWAX_CHECK(planned.ok());
  auto memory = backend_->allocate(*planned, MemoryKind::kDevice);
  SWAX_CHECK(memory.ok());
  Arena arena(memory->data(), *planned);
  auto state = model_->make_decode_state(*backend_, window);
  SWAX_CHECK(state.ok());
  const int64_t bytes = (*state)->bytes();
  StepCtx ctx{.backend = *backend_, .stream = *stream_, .arena = arena, .shape = shape_};
  ctx.tokens = 1;
  const auto vocab = static_cast<size_t>(shape_.vocab);
  std::vector<float> logits(tokens.size() * vocab);
  for (size_t t = 0; t < tokens.size(); ++t) {
    EXPECT_EQ((*state)->position(), static_cast<int64_t>(t));
    status_ = model_->decode(ctx, *store_, **state, tokens[t],
                             Tensor::of(&logits[t * vocab], DType::kF32, {shape_.vocab}));
    EXPECT_TRUE(status_.ok()) << status_.to_string();
    if (!status_.ok()) break;
  }
  EXPECT_EQ((*state)->bytes(), bytes);
  EXPECT_EQ(arena.used(), 0);
  EXPECT_EQ(arena.peak(), *planned);
  return logits;
}

reference::ModelSizes reference_sizes(const ModelShape& m) {
  std::string pattern;
  for (const LayerKind kind : m.kinds) pattern += static_cast<char>(kind);
  return {.pattern = pattern,
          .layers = m.layers,
          .dim = m.dim,
          .vocab = m.vocab,
          .ff_dim = m.ff,
          .q_heads = m.heads,
          .kv_heads = m.kv_heads,
          .head_dim = m.head_dim,
          .mlstm_heads = m.mlstm_heads,
          .qk_dim = m.mlstm_qk,
          .v_dim = m.mlstm_v,
          .rope_base = m.rope_base,
          .norm_eps = m.norm_eps,
          .mlstm_eps = 1e-6,
          .gate_cap = m.gate_cap,
          .logit_cap = m.logit_cap};
}

std::vector<float> tensor_of(const ModelShape& shape, const std::vector<float>& flat,
                             size_t index) {
  int64_t begin = 0;
  for (size_t i = 0; i < index; ++i) begin += shape.tensors[i].elements();
  return {flat.begin() + begin, flat.begin() + begin + shape.tensors[index].elements()};
}

reference::Tensors reference_weights(const ModelShape& shape, const std::vector<float>& flat) {
  reference::Tensors weights;
  for (size_t i = 0; i < shape.tensors.size(); ++i) {
    weights[shape.tensors[i].name] = widen(tensor_of(shape, flat, i));
  }
  return weights;
}

reference::ModelGrad reference_run(const ModelShape& shape, const reference::Tensors& weights,
                                   const SlotData& slot, int64_t window, reference::Canary canary) {
  const std::vector<int32_t> reset(slot.reset.begin(), slot.reset.end());
  return reference::model_backward(reference_sizes(shape), weights,
                                   {.tokens_T = slot.tokens,
                                    .targets_T = slot.targets,
                                    .reset_T = reset,
                                    .window = window,
                                    .chunk = shape.mlstm_chunk,
                                    .canary = canary});
}

Conditioning conditioning(const ModelShape& shape, const std::vector<float>& weights,
                          const SlotData& slot, int64_t window, const reference::ModelGrad& at) {
  // Small enough for the first order, large enough to stand far above the rounding of float64. One
  // direction can miss the bad one of a small tensor, hence the largest of a few.
  constexpr double kStep = 0x1p-24;
  constexpr uint64_t kDirections = 4;
  Conditioning c;
  for (uint64_t direction = 0; direction < kDirections; ++direction) {
    reference::Tensors moved = reference_weights(shape, weights);
    for (auto& [name, values] : moved) {
      const std::vector<float> noise =
          random_normal(99 + direction, name, static_cast<int64_t>(values.size()));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] *= 1.0 + kStep * static_cast<double>(noise[i]);
      }
    }
    const reference::ModelGrad there = reference_run(shape, moved, slot, window);
    const auto raise = [&](double& k, std::span<const double> a, std::span<const double> b) {
      k = std::max({k, 1.0, rel_error(a, b) / kStep});
    };
    raise(c.logits, there.out.logits_TV, at.out.logits_TV);
    raise(c.loss, {&there.out.loss, 1}, {&at.out.loss, 1});
    for (const auto& [name, grad] : at.grads) raise(c.grads[name], there.grads.at(name), grad);
  }
  for (const TensorInfo& t : shape.tensors) {
    if (t.init != InitRule::kInputGateBias && t.init != InitRule::kForgetGateBias) continue;
    std::string matrix = t.name;
    matrix[matrix.size() - 2] = 'w';  // "mlstm.bi" -> "mlstm.wi"
    const double columns = static_cast<double>(shape.dim);
    c.grads[t.name] += c.grads[matrix] * norm(at.grads.at(matrix)) /
                       (std::sqrt(columns) * norm(at.grads.at(t.name)));
  }
  return c;
}

double forward_stage_bound(const ModelShape& m, int64_t tokens, int64_t window) {
  const double d = static_cast<double>(m.dim), e = static_cast<double>(m.head_dim);
  const double qk = static_cast<double>(m.mlstm_qk), u = static_cast<double>(m.mlstm_v);
  const double keys = static_cast<double>(std::min(window, tokens));
  // The product itself, the residual add in it, and what follows up to the next product.
  const double mlp_in = step(d, 2) + step(d, 3);
  const double mlp_mid = step(d, 1) + step(1, 4);  // SwiGLU: four roundings
  const double attention =
      step(d, 1) + step(1, 2) + step(keys + e, 4);  // RoPE: two products, a sum
  const double cell = step(d, 1) + step(static_cast<double>(m.mlstm_chunk) + qk, 8) + step(u, 3);
  const double loss = step(d, 1) + step(static_cast<double>(m.vocab), 4);
  double largest = std::max({mlp_in, mlp_mid + step(static_cast<double>(m.ff), 2), loss});
  for (const LayerKind kind : m.kinds) {
    largest = std::max(largest, kind == LayerKind::kAttention ? attention : cell);
  }
  return largest;
}

double backward_stage_bound(const ModelShape& m, int64_t tokens, int64_t window) {
  return 2.0 * forward_stage_bound(m, tokens, window) + step(static_cast<double>(tokens), 1);
}

}  // namespace swax::test
