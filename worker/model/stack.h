// The one implementation of Model. train_slot and eval_slot stand in stack.cc, decoding in
// decode.cc. Internal to worker/model. Threads: one (it keeps the saved tensors of the slot in
// flight).
#pragma once

#include <memory>
#include <vector>

#include "worker/model/attention_layer.h"
#include "worker/model/ends.h"
#include "worker/model/mlstm_layer.h"
#include "worker/model/model.h"
#include "worker/model/recompute.h"

namespace swax {

class Stack final : public Model {
 public:
  explicit Stack(const ModelShape& shape);
  const ModelShape& shape() const override { return shape_; }
  Status train_slot(StepCtx& ctx, UnitStore& store, Tensor loss_sum) override;
  Status eval_slot(StepCtx& ctx, UnitStore& store, Tensor loss_sum, Tensor token_loss_T,
                   Tensor logits_TV) override;
  Result<std::unique_ptr<DecodeState>> make_decode_state(Backend& backend, int64_t window) override;
  Status decode(StepCtx& ctx, UnitStore& store, DecodeState& state, int32_t token,
                Tensor logits_V) override;

 private:
  // kinds and layers side by side: decoding needs the layer's own class.
  struct Entry {
    AttentionLayer* attention = nullptr;
    MlstmLayer* mlstm = nullptr;
    std::unique_ptr<Layer> layer;
    StepCtx::Slots slots;
    Tensor x_TD;       // input of the layer, from forward to backward
    int64_t mark = 0;  // arena mark below its output
  };
  int head_unit() const { return static_cast<int>(entries_.size()) + 1; }
  Status check(const StepCtx& ctx) const;
  Status forward_layers(StepCtx& ctx, UnitStore& store, Tensor x_TD, Tensor* y_TD);
  Status head(StepCtx& ctx, UnitStore& store, Tensor x_TD, Tensor d_TD, Tensor loss_sum);
  Status backward_layers(StepCtx& ctx, UnitStore& store, Tensor d_TD);
  Status embed(StepCtx& ctx, UnitStore& store, Tensor tokens_T, Tensor y_TD);

  ModelShape shape_;
  Embedding embedding_;
  Head head_;
  std::vector<Entry> entries_;
};

}  // namespace swax
