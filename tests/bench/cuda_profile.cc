#include "tests/bench/cuda_profile.h"

#include <algorithm>
#include <cstdio>

#include "kernels/cuda/cuda_backend.h"

namespace swax::test {
namespace {

// By the way of the product; the head's are told by their size.
const char* gemm_class(const GemmArgs& a) {
  constexpr int64_t kVocabMin = 1 << 15;
  const bool head = a.trans_a ? a.c.dims[0] >= kVocabMin : a.b.dims[0] >= kVocabMin;
  if (a.trans_a) return head ? "gemm head weight gradient" : "gemm weight gradient";
  if (a.trans_b) return head ? "gemm head forward" : "gemm forward";
  return head ? "gemm head input gradient" : "gemm input gradient";
}

}  // namespace

CudaProfile::~CudaProfile() {
  for (const Span& span : spans_) {
    cudaEventDestroy(span.begin);
    cudaEventDestroy(span.end);
  }
  for (cudaEvent_t e : idle_) cudaEventDestroy(e);
}

cudaEvent_t CudaProfile::event() {
  cudaEvent_t e = nullptr;
  if (idle_.empty()) {
    cudaEventCreate(&e);
    return e;
  }
  e = idle_.back();
  idle_.pop_back();
  return e;
}

template <typename Call>
Status CudaProfile::timed(const char* name, Stream& s, double flops, Call call) {
  if (!on_) return call();
  Span span{.name = name, .flops = flops, .begin = event(), .end = event()};
  cudaEventRecord(span.begin, cuda::raw(s));
  Status status = call();
  cudaEventRecord(span.end, cuda::raw(s));
  spans_.push_back(span);
  return status;
}

void CudaProfile::collect(int64_t window) {
  Window& w = windows_[window];
  ++w.steps;
  for (const Span& span : spans_) {
    float ms = 0.0F;
    cudaEventElapsedTime(&ms, span.begin, span.end);
    Total& total = w.classes[span.name];
    total.ms += static_cast<double>(ms);
    total.flops += span.flops;
    ++total.calls;
    idle_.push_back(span.begin);
    idle_.push_back(span.end);
  }
  spans_.clear();
}

void CudaProfile::print() const {
  for (const auto& [window, w] : windows_) {
    std::vector<std::pair<std::string, Total>> sorted(w.classes.begin(), w.classes.end());
    std::sort(sorted.begin(), sorted.end(),
              [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
    const auto steps = static_cast<double>(w.steps);
    double sum = 0.0;
    std::printf("window %lld: kernel classes, of %lld steps\n", static_cast<long long>(window),
                static_cast<long long>(w.steps));
    for (const auto& [name, total] : sorted) {
      sum += total.ms / steps;
      std::printf("  %-28s %8.2f ms %6.0f calls", name.c_str(), total.ms / steps,
                  static_cast<double>(total.calls) / steps);
      if (total.flops > 0.0) std::printf(" %7.0f TFLOP/s", total.flops / total.ms * 1e-9);
      std::printf("\n");
    }
    std::printf("  %-28s %8.2f ms\n", "sum", sum);
  }
}

Status CudaProfile::copy(Stream& s, Tensor to, Tensor from) {
  return timed("copy", s, 0.0, [&] { return inner().copy(s, to, from); });
}
Status CudaProfile::gemm(Stream& s, const GemmArgs& a) {
  return timed(gemm_class(a), s, cost(a), [&] { return inner().gemm(s, a); });
}
Status CudaProfile::swa(Stream& s, const SwaArgs& a) {
  return timed("attention", s, cost(a), [&] { return inner().swa(s, a); });
}
Status CudaProfile::swa_backward(Stream& s, const SwaBackwardArgs& a) {
  return timed("attention backward", s, cost(a), [&] { return inner().swa_backward(s, a); });
}
Status CudaProfile::mlstm(Stream& s, const MlstmArgs& a) {
  return timed("mlstm", s, cost(a), [&] { return inner().mlstm(s, a); });
}
Status CudaProfile::mlstm_backward(Stream& s, const MlstmBackwardArgs& a) {
  return timed("mlstm backward", s, cost(a), [&] { return inner().mlstm_backward(s, a); });
}
Status CudaProfile::fill(Stream& s, const FillArgs& a) {
  return timed("fill", s, 0.0, [&] { return inner().fill(s, a); });
}
Status CudaProfile::add(Stream& s, const AddArgs& a) {
  return timed("slot sum", s, 0.0, [&] { return inner().add(s, a); });
}
Status CudaProfile::cast(Stream& s, const CastArgs& a) {
  return timed("weights to bf16", s, 0.0, [&] { return inner().cast(s, a); });
}
Status CudaProfile::embedding(Stream& s, const EmbeddingArgs& a) {
  return timed("embedding", s, 0.0, [&] { return inner().embedding(s, a); });
}
Status CudaProfile::embedding_backward(Stream& s, const EmbeddingBackwardArgs& a) {
  return timed("embedding backward", s, 0.0, [&] { return inner().embedding_backward(s, a); });
}
Status CudaProfile::rms_norm(Stream& s, const RmsNormArgs& a) {
  return timed("norm", s, 0.0, [&] { return inner().rms_norm(s, a); });
}
Status CudaProfile::rms_norm_apply(Stream& s, const RmsNormApplyArgs& a) {
  return timed("norm again", s, 0.0, [&] { return inner().rms_norm_apply(s, a); });
}
Status CudaProfile::rms_norm_backward(Stream& s, const RmsNormBackwardArgs& a) {
  return timed("norm backward", s, 0.0, [&] { return inner().rms_norm_backward(s, a); });
}
Status CudaProfile::head_norm(Stream& s, const HeadNormArgs& a) {
  return timed("head norm", s, 0.0, [&] { return inner().head_norm(s, a); });
}
Status CudaProfile::head_norm_backward(Stream& s, const HeadNormBackwardArgs& a) {
  return timed("head norm backward", s, 0.0, [&] { return inner().head_norm_backward(s, a); });
}
Status CudaProfile::rope(Stream& s, const RopeArgs& a) {
  return timed("rope", s, 0.0, [&] { return inner().rope(s, a); });
}
Status CudaProfile::mlstm_gates(Stream& s, const MlstmGatesArgs& a) {
  return timed("mlstm gates", s, 0.0, [&] { return inner().mlstm_gates(s, a); });
}
Status CudaProfile::mlstm_gates_backward(Stream& s, const MlstmGatesBackwardArgs& a) {
  return timed("mlstm gates backward", s, 0.0, [&] { return inner().mlstm_gates_backward(s, a); });
}
Status CudaProfile::rms_norm_gates(Stream& s, const RmsNormGatesArgs& a) {
  return timed("norm and gates", s, 0.0, [&] { return inner().rms_norm_gates(s, a); });
}
Status CudaProfile::rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) {
  return timed("norm and gates backward", s, 0.0,
               [&] { return inner().rms_norm_gates_backward(s, a); });
}
Status CudaProfile::swiglu(Stream& s, const SwigluArgs& a) {
  return timed("swiglu", s, 0.0, [&] { return inner().swiglu(s, a); });
}
Status CudaProfile::swiglu_backward(Stream& s, const SwigluBackwardArgs& a) {
  return timed("swiglu backward", s, 0.0, [&] { return inner().swiglu_backward(s, a); });
}
Status CudaProfile::cross_entropy(Stream& s, const CrossEntropyArgs& a) {
  return timed("loss", s, 0.0, [&] { return inner().cross_entropy(s, a); });
}
Status CudaProfile::row_sumsq(Stream& s, const RowSumsqArgs& a) {
  return timed("gradient norm", s, 0.0, [&] { return inner().row_sumsq(s, a); });
}
Status CudaProfile::norm_tree(Stream& s, const NormTreeArgs& a) {
  return timed("gradient norm", s, 0.0, [&] { return inner().norm_tree(s, a); });
}
Status CudaProfile::adamw(Stream& s, const AdamWArgs& a) {
  return timed("adamw", s, 0.0, [&] { return inner().adamw(s, a); });
}

}  // namespace swax::test
