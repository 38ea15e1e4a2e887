// A backend without memory: it checks the shapes of every call and adds up the work, so that a plan
// (arena bytes, FLOPs of a step) comes from running the real model code on a machine without the
// device. Tensors may have null data everywhere; buffers are counted and hold nothing.
// Numbers that only a device could give (loss, norms) are never produced.
// Threads: as Backend; buffers may be freed by any thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "kernels/backend.h"

namespace swax {

class MeasuringBackend final : public Backend {
 public:
  struct Counts {
    double flops = 0.0;        // sum of cost() over ops that have one
    int64_t calls = 0;         // model, optimizer and element-wise ops
    int64_t device_bytes = 0;  // held now
    int64_t device_bytes_max = 0;
    int64_t pinned_bytes = 0;
    int64_t pinned_bytes_max = 0;
  };
  MeasuringBackend();
  ~MeasuringBackend() override;
  // Reported by kind(); the numbers do not depend on it.
  explicit MeasuringBackend(BackendKind kind);
  Counts counts() const;
  void reset_work();  // flops and calls back to 0

  BackendKind kind() const override { return kind_; }
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
  std::string fingerprint() const override { return "measuring"; }

 private:
  struct Pool {
    std::atomic<int64_t> bytes{0};
    int64_t bytes_max = 0;
  };
  Status counted(const Status& valid, double flops);
  BackendKind kind_ = BackendKind::kCpu;
  Pool device_;
  Pool pinned_;
  double flops_ = 0.0;
  int64_t calls_ = 0;
};

}  // namespace swax
