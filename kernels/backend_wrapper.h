// Forwards every call to another backend. Tests and tools override the calls that they distort,
// refuse or count. Threads: as the inner backend, which must outlive the wrapper.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"

namespace swax {

class BackendWrapper : public Backend {
 public:
  explicit BackendWrapper(Backend& inner) : inner_(inner) {}
  BackendKind kind() const override { return inner_.kind(); }
  Result<Buffer> allocate(int64_t bytes, MemoryKind kind) override {
    return inner_.allocate(bytes, kind);
  }
  Result<std::unique_ptr<Stream>> make_stream() override { return inner_.make_stream(); }
  Event record(Stream& s) override { return inner_.record(s); }
  void wait(Stream& s, Event e) override { inner_.wait(s, e); }
  Status sync(Stream& s) override { return inner_.sync(s); }
  Status copy(Stream& s, Tensor to, Tensor from) override { return inner_.copy(s, to, from); }
  void begin_region(Stream& s) override { inner_.begin_region(s); }
  Status end_region(Stream& s) override { return inner_.end_region(s); }
  bool can_capture() const override { return inner_.can_capture(); }
  Status begin_capture(Stream& s) override { return inner_.begin_capture(s); }
  Result<std::unique_ptr<DeviceGraph>> end_capture(Stream& s) override {
    return inner_.end_capture(s);
  }
  Status launch_graph(Stream& s, DeviceGraph& graph) override {
    return inner_.launch_graph(s, graph);
  }

  Status fill(Stream& s, const FillArgs& a) override { return inner_.fill(s, a); }
  Status add(Stream& s, const AddArgs& a) override { return inner_.add(s, a); }
  Status cast(Stream& s, const CastArgs& a) override { return inner_.cast(s, a); }
  Status digest(Stream& s, const DigestArgs& a) override { return inner_.digest(s, a); }
  Status gemm(Stream& s, const GemmArgs& a) override { return inner_.gemm(s, a); }
  Status embedding(Stream& s, const EmbeddingArgs& a) override { return inner_.embedding(s, a); }
  Status embedding_backward(Stream& s, const EmbeddingBackwardArgs& a) override {
    return inner_.embedding_backward(s, a);
  }
  Status rms_norm(Stream& s, const RmsNormArgs& a) override { return inner_.rms_norm(s, a); }
  Status rms_norm_apply(Stream& s, const RmsNormApplyArgs& a) override {
    return inner_.rms_norm_apply(s, a);
  }
  Status rms_norm_backward(Stream& s, const RmsNormBackwardArgs& a) override {
    return inner_.rms_norm_backward(s, a);
  }
  Status head_norm(Stream& s, const HeadNormArgs& a) override { return inner_.head_norm(s, a); }
  Status head_norm_backward(Stream& s, const HeadNormBackwardArgs& a) override {
    return inner_.head_norm_backward(s, a);
  }
  Status rope(Stream& s, const RopeArgs& a) override { return inner_.rope(s, a); }
  Status swa(Stream& s, const SwaArgs& a) override { return inner_.swa(s, a); }
  Status swa_backward(Stream& s, const SwaBackwardArgs& a) override {
    return inner_.swa_backward(s, a);
  }
  Status swa_decode(Stream& s, const SwaDecodeArgs& a) override { return inner_.swa_decode(s, a); }
  Status mlstm_gates(Stream& s, const MlstmGatesArgs& a) override {
    return inner_.mlstm_gates(s, a);
  }
  Status mlstm_gates_backward(Stream& s, const MlstmGatesBackwardArgs& a) override {
    return inner_.mlstm_gates_backward(s, a);
  }
  Status rms_norm_gates(Stream& s, const RmsNormGatesArgs& a) override {
    return inner_.rms_norm_gates(s, a);
  }
  Status rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) override {
    return inner_.rms_norm_gates_backward(s, a);
  }
  Status mlstm(Stream& s, const MlstmArgs& a) override { return inner_.mlstm(s, a); }
  Status mlstm_backward(Stream& s, const MlstmBackwardArgs& a) override {
    return inner_.mlstm_backward(s, a);
  }
  Status mlstm_step(Stream& s, const MlstmStepArgs& a) override { return inner_.mlstm_step(s, a); }
  Status swiglu(Stream& s, const SwigluArgs& a) override { return inner_.swiglu(s, a); }
  Status swiglu_backward(Stream& s, const SwigluBackwardArgs& a) override {
    return inner_.swiglu_backward(s, a);
  }
  Status cross_entropy(Stream& s, const CrossEntropyArgs& a) override {
    return inner_.cross_entropy(s, a);
  }
  Status row_sumsq(Stream& s, const RowSumsqArgs& a) override { return inner_.row_sumsq(s, a); }
  Status norm_tree(Stream& s, const NormTreeArgs& a) override { return inner_.norm_tree(s, a); }
  Status adamw(Stream& s, const AdamWArgs& a) override { return inner_.adamw(s, a); }

  std::string fingerprint() const override { return inner_.fingerprint(); }
  bool has_choices() const override { return inner_.has_choices(); }
  Result<std::string> choose(Stream& s, std::span<const GemmArgs> products) override {
    return inner_.choose(s, products);
  }
  Status adopt(std::string_view choices) override { return inner_.adopt(choices); }
  int64_t allocations() const override { return inner_.allocations(); }

 protected:
  Backend& inner() { return inner_; }

 private:
  Backend& inner_;
};

}  // namespace swax
