// The CPU backend with the values of a bf16 run: whatever a GPU keeps in bf16 (gathered weights,
// activations, their gradients, logits) is rounded to bf16 where it is used or written; sums stay
// f32. Attention and the mLSTM cell round inside too (rounded_cells.h). The yardstick for the error
// that bf16 costs by itself. Threads: as the inner backend, which must be a CPU backend (host
// memory, calls done when they return).
#pragma once

#include <array>
#include <vector>

#include "kernels/backend_wrapper.h"

namespace swax::test {

class RoundingBackend final : public BackendWrapper {
 public:
  explicit RoundingBackend(Backend& inner) : BackendWrapper(inner) {}
  Status gemm(Stream& s, const GemmArgs& a) override;
  Status embedding(Stream& s, const EmbeddingArgs& a) override;
  Status rms_norm(Stream& s, const RmsNormArgs& a) override;
  Status rms_norm_apply(Stream& s, const RmsNormApplyArgs& a) override;
  Status rms_norm_backward(Stream& s, const RmsNormBackwardArgs& a) override;
  Status head_norm(Stream& s, const HeadNormArgs& a) override;
  Status head_norm_backward(Stream& s, const HeadNormBackwardArgs& a) override;
  Status rope(Stream& s, const RopeArgs& a) override;
  Status swa(Stream& s, const SwaArgs& a) override;
  Status swa_backward(Stream& s, const SwaBackwardArgs& a) override;
  Status mlstm_gates(Stream& s, const MlstmGatesArgs& a) override;
  Status mlstm_gates_backward(Stream& s, const MlstmGatesBackwardArgs& a) override;
  Status rms_norm_gates(Stream& s, const RmsNormGatesArgs& a) override;
  Status rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) override;
  Status mlstm(Stream& s, const MlstmArgs& a) override;
  Status mlstm_backward(Stream& s, const MlstmBackwardArgs& a) override;
  Status swiglu(Stream& s, const SwigluArgs& a) override;
  Status swiglu_backward(Stream& s, const SwigluBackwardArgs& a) override;
  Status cross_entropy(Stream& s, const CrossEntropyArgs& a) override;

 private:
  // A rounded copy that lives until the next use of the same index.
  Tensor rounded(const Tensor& t, size_t index);
  std::array<std::vector<float>, 4> copies_;
};

}  // namespace swax::test
