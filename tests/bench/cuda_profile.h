// A backend around the CUDA backend that puts events around every call and adds up the time by
// class of kernel. Off, it only forwards. Threads: as Backend.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/backend_wrapper.h"

namespace swax::test {

class CudaProfile final : public BackendWrapper {
 public:
  explicit CudaProfile(Backend& inner) : BackendWrapper(inner) {}
  ~CudaProfile() override;
  void enable(bool on) { on_ = on; }
  // A call inside a graph has no time of its own.
  bool can_capture() const override { return !on_ && BackendWrapper::can_capture(); }
  // After a sync: adds what was recorded since the last call to the classes of `window`.
  void collect(int64_t window);
  // ms and calls a step of every class, by window, the largest first.
  void print() const;

  Status copy(Stream& s, Tensor to, Tensor from) override;
  Status fill(Stream& s, const FillArgs& a) override;
  Status add(Stream& s, const AddArgs& a) override;
  Status cast(Stream& s, const CastArgs& a) override;
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
  Status mlstm_gates(Stream& s, const MlstmGatesArgs& a) override;
  Status mlstm_gates_backward(Stream& s, const MlstmGatesBackwardArgs& a) override;
  Status rms_norm_gates(Stream& s, const RmsNormGatesArgs& a) override;
  Status rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) override;
  Status mlstm(Stream& s, const MlstmArgs& a) override;
  Status mlstm_backward(Stream& s, const MlstmBackwardArgs& a) override;
  Status swiglu(Stream& s, const SwigluArgs& a) override;
  Status swiglu_backward(Stream& s, const SwigluBackwardArgs& a) override;
  Status cross_entropy(Stream& s, const CrossEntropyArgs& a) override;
  Status row_sumsq(Stream& s, const RowSumsqArgs& a) override;
  Status norm_tree(Stream& s, const NormTreeArgs& a) override;
  Status adamw(Stream& s, const AdamWArgs& a) override;

 private:
  struct Span {
    const char* name;
    double flops;
    cudaEvent_t begin, end;
  };
  struct Total {
    double ms = 0.0, flops = 0.0;
    int64_t calls = 0;
  };
  struct Window {
    int64_t steps = 0;
    std::map<std::string, Total> classes;
  };
  template <typename Call>
  Status timed(const char* name, Stream& s, double flops, Call call);
  cudaEvent_t event();

  bool on_ = false;
  std::vector<Span> spans_;
  std::vector<cudaEvent_t> idle_;
  std::map<int64_t, Window> windows_;
};

}  // namespace swax::test
