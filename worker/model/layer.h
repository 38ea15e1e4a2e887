// The trainer has no autograd: a layer is a class with an explicit forward and backward, one slot
// (sequence) in flight.
//
// Memory. Activations live in a LIFO arena. Before a layer's forward the model takes y_TD; the
// layer then declares what its backward needs (SavedSpec), StepCtx takes the kept ones first and
// everything else above them as scratch, released at the end of forward. Recompute is a policy of
// StepCtx, not of layers: `none` keeps all; `light` does not keep what `reform` can make again from
// kept tensors; `block` keeps only the layer's input and runs forward again before backward. All
// three give the same bits, so layers may differ in it. Weights come from a UnitStore (FSDP ring or
// resident copies) and gradients go to it: worker/model knows no ranks.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "jobs/model_shape.h"
#include "kernels/backend.h"
#include "worker/model/arena.h"

namespace swax {

enum class RecomputeMode { kNone, kLight, kBlock };

// `mode` in the first `layers` layers (0: in all), a step less in the others: memory that is left
// beside `mode` in all layers saves work.
struct RecomputePolicy {
  RecomputeMode mode = RecomputeMode::kNone;
  int64_t layers = 0;
  constexpr RecomputePolicy(RecomputeMode m = RecomputeMode::kNone, int64_t first_layers = 0)
      : mode(m), layers(first_layers) {}
  constexpr RecomputeMode of_layer(int64_t layer) const {
    if (layers == 0 || layer < layers) return mode;
    return mode == RecomputeMode::kBlock ? RecomputeMode::kLight : RecomputeMode::kNone;
  }
  bool operator==(const RecomputePolicy&) const = default;
};

// The arithmetic of a backend as far as the layers see it; it decides bits, so it is frozen with
// the backend. Always f32: statistics of norms, gates, lse, weight gradients, scratch; f64: losses.
struct Precision {
  DType values = DType::kF32;       // activations and their gradients, logits, gathered weights
  int64_t loss_chunk = kLossChunk;  // tokens whose logits exist at once
  bool joined = false;              // products of one input with several weights are one product
};
constexpr Precision precision_of(BackendKind kind) {
  if (kind == BackendKind::kCpu) return {};
  return {.values = DType::kBF16, .loss_chunk = kLossChunkCuda, .joined = true};
}

// One slot's inputs in device memory. T tokens.
struct SlotTensors {
  Tensor tokens_T;     // i32
  Tensor targets_T;    // i32, < 0 ignored
  Tensor doc_start_T;  // i32, or empty when document borders are off
  Tensor reset_T;      // u8, or empty
};

// The tensors of one unit in ModelShape order of that unit.
struct UnitTensors {
  std::vector<Tensor> tensors;
};

// Where weights come from and gradients go. Implemented by worker/train/fsdp; by ResidentStore for
// generation and tests.
class UnitStore {
 public:
  virtual ~UnitStore() = default;
  // Weights of `unit`, valid until release(unit). `next` is the unit wanted after this one (-1:
  // none), for prefetch. Order of calls is the same on all ranks.
  virtual Result<const UnitTensors*> acquire(int unit, int next) = 0;
  virtual Status release(int unit) = 0;
  // fp32 views of the unit's slot gradient, every element of which backward must write; then
  // gradient_ready hands it over.
  virtual Result<const UnitTensors*> gradient(int unit) = 0;
  virtual Status gradient_ready(int unit) = 0;
};

struct SavedSpec {
  int tag = 0;
  DType dtype = DType::kF32;
  std::array<int64_t, 4> dims{};
  int rank = 0;
  bool reform = false;  // `light` may drop it: Layer::reform makes it again
};

class Layer;

struct StepCtx {
  Backend& backend;
  Stream& stream;
  Arena& arena;
  const ModelShape& shape;
  int64_t tokens = 0;  // T
  int64_t window = 0;  // of this step
  Precision precision{};
  RecomputePolicy recompute{};
  SlotTensors slot{};
  Tensor rope_cos_TP{};
  Tensor rope_sin_TP{};
  const StepScalars* scalars = nullptr;
  const UnitTensors* weights = nullptr;  // of the unit being run
  const UnitTensors* grads = nullptr;    // of the unit being run, backward only
  // Saved tensors of the layer being run, by tag. save(): where forward writes it. saved(): what
  // backward reads (re-formed when dropped).
  Tensor save(int tag);
  Result<Tensor> saved(int tag);
  // Bookkeeping of the running layer, filled by the model loop.
  struct Slots;
  Slots* slots = nullptr;
};

class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::vector<SavedSpec> saved_specs(const ModelShape& shape, int64_t tokens,
                                             DType values) const = 0;
  // Tags of the specs are 0, 1, 2, ... in order.
  // x_TD stays untouched until this layer's backward is done; y_TD = x + mixer + MLP. y_TD empty:
  // only the saved tensors are wanted (block recompute). The arena ends where it began.
  virtual Status forward(StepCtx& ctx, Tensor x_TD, Tensor y_TD) = 0;
  // dx_TD may be the same tensor as dy_TD. Writes every gradient of ctx.grads. May overwrite saved
  // tensors.
  virtual Status backward(StepCtx& ctx, Tensor x_TD, Tensor dy_TD, Tensor dx_TD) = 0;
  // Makes a dropped tensor again in `out` from kept ones: the same bits as in forward.
  virtual Status reform(StepCtx& ctx, Tensor x_TD, int tag, Tensor out) = 0;
};

}  // namespace swax
