// The CUDA backend for sm_90a. Activations are f32 or bf16 (one type per call), sums are f32, f64
// where the spec says so; weight gradients and everything of the optimizer are f32. Each op is one
// or a few kernels on the caller's stream; the member functions stand beside their kernels (one .cu
// per group of ops). Kernels are compiled without contraction: fused multiply-add only where it is
// written. No kernel uses atomics on floating point numbers; sums have an order that follows from
// the shape alone. Threads: as Backend; any number of backends, also on one device. Memory that a
// call may take: only the first product of a shape (see gemm.h).
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/events.h"
#include "kernels/cuda/gemm.h"

namespace swax::cuda {

class CudaBackend final : public Backend {
 public:
  // kFailedPrecondition without a usable device of compute capability 9.0.
  static Result<std::unique_ptr<CudaBackend>> open(int ordinal);
  ~CudaBackend() override;

  BackendKind kind() const override { return BackendKind::kCuda; }
  Result<Buffer> allocate(int64_t bytes, MemoryKind kind) override;
  Result<std::unique_ptr<Stream>> make_stream() override;
  Event record(Stream& s) override;
  void wait(Stream& s, Event e) override;
  Status sync(Stream& s) override;
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
  Status swa(Stream& s, const SwaArgs& a) override;                                  // swa*.cu
  Status swa_backward(Stream& s, const SwaBackwardArgs& a) override;                 // swa*.cu
  Status swa_decode(Stream& s, const SwaDecodeArgs& a) override;                     // swa*.cu
  Status mlstm_gates(Stream& s, const MlstmGatesArgs& a) override;                   // gates.cu
  Status mlstm_gates_backward(Stream& s, const MlstmGatesBackwardArgs& a) override;  // gates_*.cu
  Status rms_norm_gates(Stream& s, const RmsNormGatesArgs& a) override;
  Status rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) override;
  Status mlstm(Stream& s, const MlstmArgs& a) override;                   // mlstm*.cu
  Status mlstm_backward(Stream& s, const MlstmBackwardArgs& a) override;  // mlstm*.cu
  Status mlstm_step(Stream& s, const MlstmStepArgs& a) override;          // mlstm*.cu
  Status swiglu(Stream& s, const SwigluArgs& a) override;
  Status swiglu_backward(Stream& s, const SwigluBackwardArgs& a) override;
  Status cross_entropy(Stream& s, const CrossEntropyArgs& a) override;
  Status row_sumsq(Stream& s, const RowSumsqArgs& a) override;
  Status norm_tree(Stream& s, const NormTreeArgs& a) override;
  Status adamw(Stream& s, const AdamWArgs& a) override;
  std::string fingerprint() const override;
  // Of the products, in a fixed order.
  bool has_choices() const override { return true; }
  Result<std::string> choose(Stream& s, std::span<const GemmArgs> products) override;
  Status adopt(std::string_view choices) override { return gemm_->adopt(choices); }
  bool can_capture() const override { return true; }
  Status begin_capture(Stream& s) override;
  Result<std::unique_ptr<DeviceGraph>> end_capture(Stream& s) override;
  Status launch_graph(Stream& s, DeviceGraph& graph) override;
  // The choice of a product takes and frees memory for its probe.
  int64_t allocations() const override { return allocations_ + gemm_->plans(); }

 private:
  CudaBackend(int ordinal, const cudaDeviceProp& properties);
  Status use_device() const;  // makes the device current in the calling thread

  int ordinal_;
  int multiprocessors_;
  std::atomic<int64_t> allocations_{0};  // of device memory
  std::string device_text_;
  Events events_;
  std::unique_ptr<Gemm> gemm_;
};

}  // namespace swax::cuda
