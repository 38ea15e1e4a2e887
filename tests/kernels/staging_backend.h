// Lets tests that keep their tensors in host memory run on a device: every call copies the memory
// of its tensors to device memory, runs the op of the inner backend there, and copies all of it
// back. Tensors that overlap on the host overlap in the same way on the device. Each piece lies
// between poisoned bands that are compared afterwards: a write outside is kInternal naming op and
// offset. Memory from allocate() is device memory and is passed through. Slow. Threads: as the
// inner backend.
#pragma once

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/backend_wrapper.h"

namespace swax::test {

class StagingBackend final : public BackendWrapper {
 public:
  // `inner` outlives the wrapper.
  explicit StagingBackend(Backend& inner) : BackendWrapper(inner) {}
  Result<Buffer> allocate(int64_t bytes, MemoryKind kind) override;
  Status copy(Stream& s, Tensor to, Tensor from) override;
  Status fill(Stream& s, const FillArgs& a) override;
  Status add(Stream& s, const AddArgs& a) override;
  Status cast(Stream& s, const CastArgs& a) override;
  Status digest(Stream& s, const DigestArgs& a) override;
  Status gemm(Stream& s, const GemmArgs& a) override;
  Status embedding(Stream& s, const EmbeddingArgs& a) override;
  Status embedding_backward(Stream& s, const EmbeddingBackwardArgs& a) override;
  Status rms_norm(Stream& s, const RmsNormArgs& a) override;
  Status rms_norm_apply(Stream& s, const RmsNormApplyArgs& a) override;
  Status rms_norm_backward(Stream& s, const RmsNormBackwardArgs& a) override;
  Status head_norm(Stream& s, const HeadNormArgs& a) override;
  Status head_norm_backward(Stream& s, const HeadNormBackwardArgs& a) override;
  Status rope(Stream& s, const RopeArgs& a) override;
  Status swa(Stream& s, const SwaArgs& a) override;
  Status swa_backward(Stream& s, const SwaBackwardArgs& a) override;
  Status swa_decode(Stream& s, const SwaDecodeArgs& a) override;
  Status mlstm_gates(Stream& s, const MlstmGatesArgs& a) override;
  Status mlstm_gates_backward(Stream& s, const MlstmGatesBackwardArgs& a) override;
  Status rms_norm_gates(Stream& s, const RmsNormGatesArgs& a) override;
  Status rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) override;
  Status mlstm(Stream& s, const MlstmArgs& a) override;
  Status mlstm_backward(Stream& s, const MlstmBackwardArgs& a) override;
  Status mlstm_step(Stream& s, const MlstmStepArgs& a) override;
  Status swiglu(Stream& s, const SwigluArgs& a) override;
  Status swiglu_backward(Stream& s, const SwigluBackwardArgs& a) override;
  Status cross_entropy(Stream& s, const CrossEntropyArgs& a) override;
  Status row_sumsq(Stream& s, const RowSumsqArgs& a) override;
  Status norm_tree(Stream& s, const NormTreeArgs& a) override;
  Status adamw(Stream& s, const AdamWArgs& a) override;

 private:
  // Runs call() with the tensors (and scalars, when given) moved to the device.
  template <typename Scalars, typename Call>
  Status staged(Stream& s, const char* op, std::initializer_list<Tensor*> tensors,
                Scalars** scalars, Call call);
  bool on_device(const void* data) const;

  std::vector<std::pair<const char*, const char*>> device_;  // of allocate(), kept for ever
};

}  // namespace swax::test
