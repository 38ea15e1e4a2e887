// Decoding: one token at a time on a state whose size does not depend on the position. Source:
// model-spec 6.
#include <cstring>
#include <string>
#include <utility>

#include "worker/model/stack.h"

#include "proto/base/text.h"

namespace swax {
namespace {

// Per layer either a ring of keys and values or an mLSTM state. The token and the rotary row of its
// position are made by the host in `staging` and copied; decode ends with a wait for the stream, so
// the next call may write them again.
class State final : public Model::DecodeState {
 public:
  struct PerLayer {
    Tensor k_RGE, v_RGE, state_NKU1, m_N;
  };
  int64_t position() const override { return next; }
  int64_t bytes() const override { return device.bytes() + staging.bytes(); }

  Buffer device, staging;
  std::vector<PerLayer> layers;
  Tensor token, cos_TP, sin_TP;                 // device
  Tensor host_token, host_cos_TP, host_sin_TP;  // staging
  int64_t next = 0;
};

// Lays the tensors of the state out in an arena: run once to measure, once to build.
void lay_out(const ModelShape& m, int64_t window, Arena& arena, State& s) {
  s.layers.assign(static_cast<size_t>(m.layers), {});
  for (size_t l = 0; l < s.layers.size(); ++l) {
    State::PerLayer& p = s.layers[l];
    if (m.kinds[l] == LayerKind::kAttention) {
      p.k_RGE = arena.take(DType::kF32, {window, m.kv_heads, m.head_dim});
      p.v_RGE = arena.take(DType::kF32, {window, m.kv_heads, m.head_dim});
    } else {
      p.state_NKU1 = arena.take(DType::kF32, {m.mlstm_heads, m.mlstm_qk, m.mlstm_v + 1});
      p.m_N = arena.take(DType::kF32, {m.mlstm_heads});
    }
  }
  s.token = arena.take(DType::kI32, {1});
  s.cos_TP = arena.take(DType::kF32, {1, m.head_dim / 2});
  s.sin_TP = arena.take(DType::kF32, {1, m.head_dim / 2});
}

void lay_out_staging(const ModelShape& m, Arena& arena, State& s) {
  s.host_token = arena.take(DType::kI32, {1});
  s.host_cos_TP = arena.take(DType::kF32, {1, m.head_dim / 2});
  s.host_sin_TP = arena.take(DType::kF32, {1, m.head_dim / 2});
}

Status clear(Backend& backend, const ModelShape& m, State& s) {
  SWAX_ASSIGN(const std::unique_ptr<Stream> stream, backend.make_stream());
  for (size_t l = 0; l < s.layers.size(); ++l) {
    if (m.kinds[l] == LayerKind::kAttention) continue;  // empty slots of a ring are never read
    State::PerLayer& p = s.layers[l];
    SWAX_TRY(backend.fill(*stream, {.x = p.state_NKU1, .value = 0.0F}));
    SWAX_TRY(backend.fill(*stream, {.x = p.m_N, .value = kMlstmNoPast}));
  }
  return backend.sync(*stream);
}

}  // namespace

Result<std::unique_ptr<Model::DecodeState>> Stack::make_decode_state(Backend& backend,
                                                                     int64_t window) {
  if (window < 1) {
    return invalid_argument("window=" + to_text(window) + ": must be at least 1");
  }
  auto s = std::make_unique<State>();
  Arena measure = Arena::measuring(), measure_staging = Arena::measuring();
  lay_out(shape_, window, measure, *s);
  lay_out_staging(shape_, measure_staging, *s);
  SWAX_ASSIGN(s->device, backend.allocate(measure.used(), MemoryKind::kDevice));
  SWAX_ASSIGN(s->staging, backend.allocate(measure_staging.used(), MemoryKind::kPinned));
  Arena arena(s->device.data(), s->device.bytes());
  Arena staging(s->staging.data(), s->staging.bytes());
  lay_out(shape_, window, arena, *s);
  lay_out_staging(shape_, staging, *s);
  SWAX_TRY(clear(backend, shape_, *s));
  return std::unique_ptr<DecodeState>(std::move(s));
}

Status Stack::decode(StepCtx& ctx, UnitStore& store, DecodeState& state, int32_t token,
                     Tensor logits_V) {
  if (token < 0 || token >= shape_.vocab) {
    return invalid_argument("token=" + to_text(token) + ": must be 0.." +
                            to_text(shape_.vocab - 1));
  }
  if (ctx.tokens != 1) {
    return invalid_argument("tokens=" + to_text(ctx.tokens) + ": decoding takes 1");
  }
  auto& s = static_cast<State&>(state);  // the only implementation
  if (!ctx.arena.is_measuring()) {
    *s.host_token.i32() = token;
    rope_table_row(s.next, shape_.rope_base, s.host_cos_TP, s.host_sin_TP, 0);
  }
  SWAX_TRY(ctx.backend.copy(ctx.stream, s.token, s.host_token));
  SWAX_TRY(ctx.backend.copy(ctx.stream, s.cos_TP, s.host_cos_TP));
  SWAX_TRY(ctx.backend.copy(ctx.stream, s.sin_TP, s.host_sin_TP));
  const ScratchScope scope(ctx);
  Tensor x_TD = ctx.arena.take(DType::kF32, {1, shape_.dim});
  Tensor y_TD = ctx.arena.take(DType::kF32, {1, shape_.dim});
  SWAX_TRY(embed(ctx, store, s.token, x_TD));
  for (size_t l = 0; l < entries_.size(); ++l) {
    Entry& e = entries_[l];
    const State::PerLayer& p = s.layers[l];
    const int unit = static_cast<int>(l) + 1;
    SWAX_ASSIGN(ctx.weights, store.acquire(unit, unit + 1));
    SWAX_TRY(
        e.attention != nullptr
            ? e.attention->decode(ctx, {.x_TD = x_TD,
                                        .y_TD = y_TD,
                                        .k_RGE = p.k_RGE,
                                        .v_RGE = p.v_RGE,
                                        .cos_TP = s.cos_TP,
                                        .sin_TP = s.sin_TP,
                                        .position = s.next})
            : e.mlstm->decode(
                  ctx, {.x_TD = x_TD, .y_TD = y_TD, .state_NKU1 = p.state_NKU1, .m_N = p.m_N}));
    SWAX_TRY(store.release(unit));
    std::swap(x_TD, y_TD);
  }
  SWAX_ASSIGN(ctx.weights, store.acquire(head_unit(), -1));
  SWAX_TRY(head_.logits(ctx, x_TD, logits_V.reshaped({1, shape_.vocab})));
  SWAX_TRY(store.release(head_unit()));
  ++s.next;
  return ok();
}

}  // namespace swax
