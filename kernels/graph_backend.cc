#include "kernels/graph_backend.h"

#include <utility>

namespace swax {

GraphBackend::~GraphBackend() = default;

void GraphBackend::begin_region(Stream& s) {
  SWAX_CHECK(region_.load(std::memory_order_relaxed) == nullptr);
  region_.store(&s, std::memory_order_relaxed);
}

// Only calls on the region's own stream belong to it.
template <typename Args>
Status GraphBackend::call(Stream& s, const Args& a) {
  const Stream* const region = region_.load(std::memory_order_relaxed);
  if (region == nullptr) return make_call(inner(), s, a);
  SWAX_CHECK(&s == region);
  calls_.emplace_back(a);
  return ok();
}

Status GraphBackend::make_all(Stream& s) {
  for (const Call& c : calls_) SWAX_TRY(make_call(inner(), s, c));
  return ok();
}

Status GraphBackend::flush() {
  Stream* const region = region_.load(std::memory_order_relaxed);
  if (region == nullptr || calls_.empty()) return ok();
  const Status status = make_all(*region);
  calls_.clear();
  if (failed_.ok()) failed_ = status;
  return status;
}

Status GraphBackend::capture(Stream& s, std::unique_ptr<DeviceGraph>& graph) {
  SWAX_TRY(inner().begin_capture(s));
  const Status status = make_all(s);
  auto made = inner().end_capture(s);  // also after an error: the stream must leave the capture
  SWAX_TRY(status);
  SWAX_ASSIGN(graph, std::move(made));
  ++counts_.captured;
  return ok();
}

Status GraphBackend::end_region(Stream& s) {
  SWAX_CHECK(region_.load(std::memory_order_relaxed) == &s);
  const auto run = [&]() -> Status {
    SWAX_TRY(failed_);
    if (calls_.empty()) return ok();
    if (!inner().can_capture()) {
      ++counts_.direct;
      return make_all(s);
    }
    words_.clear();
    words_.push_back(s.id());  // a stream has its own workspace
    for (const Call& c : calls_) append_words(c, words_);
    const Hash128 key = xxh3_128(words_.data(), words_.size() * sizeof(uint64_t));
    const auto at = graphs_.find(key);
    if (at == graphs_.end()) {
      if (static_cast<int>(graphs_.size()) < graphs_max_) graphs_.emplace(key, nullptr);
      ++counts_.direct;
      return make_all(s);
    }
    if (!at->second) SWAX_TRY(capture(s, at->second));
    ++counts_.launched;
    return inner().launch_graph(s, *at->second);
  };
  const Status status = run();
  calls_.clear();
  region_.store(nullptr, std::memory_order_relaxed);
  return status;
}

Event GraphBackend::record(Stream& s) {
  static_cast<void>(flush());  // kept in failed_
  return inner().record(s);
}
void GraphBackend::wait(Stream& s, Event e) {
  static_cast<void>(flush());
  inner().wait(s, e);
}
// From any thread: what another one has put off is none of its business.
Status GraphBackend::sync(Stream& s) {
  SWAX_CHECK(region_.load(std::memory_order_relaxed) != &s);
  return inner().sync(s);
}

Status GraphBackend::copy(Stream& s, Tensor to, Tensor from) {
  return call(s, CopyArgs{.to = to, .from = from});
}
Status GraphBackend::fill(Stream& s, const FillArgs& a) { return call(s, a); }
Status GraphBackend::add(Stream& s, const AddArgs& a) { return call(s, a); }
Status GraphBackend::cast(Stream& s, const CastArgs& a) { return call(s, a); }
Status GraphBackend::gemm(Stream& s, const GemmArgs& a) { return call(s, a); }
Status GraphBackend::embedding(Stream& s, const EmbeddingArgs& a) { return call(s, a); }
Status GraphBackend::embedding_backward(Stream& s, const EmbeddingBackwardArgs& a) {
  return call(s, a);
}
Status GraphBackend::rms_norm(Stream& s, const RmsNormArgs& a) { return call(s, a); }
Status GraphBackend::rms_norm_apply(Stream& s, const RmsNormApplyArgs& a) { return call(s, a); }
Status GraphBackend::rms_norm_backward(Stream& s, const RmsNormBackwardArgs& a) {
  return call(s, a);
}
Status GraphBackend::head_norm(Stream& s, const HeadNormArgs& a) { return call(s, a); }
Status GraphBackend::head_norm_backward(Stream& s, const HeadNormBackwardArgs& a) {
  return call(s, a);
}
Status GraphBackend::rope(Stream& s, const RopeArgs& a) { return call(s, a); }
Status GraphBackend::swa(Stream& s, const SwaArgs& a) { return call(s, a); }
Status GraphBackend::swa_backward(Stream& s, const SwaBackwardArgs& a) { return call(s, a); }
Status GraphBackend::mlstm_gates(Stream& s, const MlstmGatesArgs& a) { return call(s, a); }
Status GraphBackend::mlstm_gates_backward(Stream& s, const MlstmGatesBackwardArgs& a) {
  return call(s, a);
}
Status GraphBackend::rms_norm_gates(Stream& s, const RmsNormGatesArgs& a) { return call(s, a); }
Status GraphBackend::rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) {
  return call(s, a);
}
Status GraphBackend::mlstm(Stream& s, const MlstmArgs& a) { return call(s, a); }
Status GraphBackend::mlstm_backward(Stream& s, const MlstmBackwardArgs& a) { return call(s, a); }
Status GraphBackend::swiglu(Stream& s, const SwigluArgs& a) { return call(s, a); }
Status GraphBackend::swiglu_backward(Stream& s, const SwigluBackwardArgs& a) { return call(s, a); }
Status GraphBackend::cross_entropy(Stream& s, const CrossEntropyArgs& a) { return call(s, a); }

// No calls of layers: some read host memory.
Status GraphBackend::digest(Stream& s, const DigestArgs& a) {
  SWAX_TRY(flush());
  return inner().digest(s, a);
}
Status GraphBackend::swa_decode(Stream& s, const SwaDecodeArgs& a) {
  SWAX_TRY(flush());
  return inner().swa_decode(s, a);
}
Status GraphBackend::mlstm_step(Stream& s, const MlstmStepArgs& a) {
  SWAX_TRY(flush());
  return inner().mlstm_step(s, a);
}
Status GraphBackend::row_sumsq(Stream& s, const RowSumsqArgs& a) {
  SWAX_TRY(flush());
  return inner().row_sumsq(s, a);
}
Status GraphBackend::norm_tree(Stream& s, const NormTreeArgs& a) {
  SWAX_TRY(flush());
  return inner().norm_tree(s, a);
}
Status GraphBackend::adamw(Stream& s, const AdamWArgs& a) {
  SWAX_TRY(flush());
  return inner().adamw(s, a);
}

}  // namespace swax
