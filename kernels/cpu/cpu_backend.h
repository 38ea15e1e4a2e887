// The CPU backend: f32, one pool of compute threads per backend, memory from aligned_alloc.
// A call runs at once and has finished when it returns. Work is cut into pieces whose shapes follow
// from the argument shapes alone, so every number of compute threads gives the same bits; one
// thread runs the same pieces. No op allocates. Threads: as Backend. Several backends may live in
// one process; they share nothing but OpenBLAS, which is switched to one thread.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/thread_pool.h"

namespace swax::cpu {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options);

  BackendKind kind() const override { return BackendKind::kCpu; }
  Result<Buffer> allocate(int64_t bytes, MemoryKind kind) override;
  Result<std::unique_ptr<Stream>> make_stream() override;
  Event record(Stream&) override { return {}; }
  void wait(Stream&, Event) override {}
  Status sync(Stream&) override { return ok(); }
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
  std::string fingerprint() const override;

 private:
  BackendOptions options_;
  GemmForm form_;
  ThreadPool pool_;
};

// kInvalidArgument when one of them has a shape but no memory, or is bf16 where f32 is needed.
// Absent optional tensors are fine.
Status need_data(const char* op, std::initializer_list<const Tensor*> tensors,
                 bool needs_f32 = true);

}  // namespace swax::cpu
