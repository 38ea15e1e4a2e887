#include "kernels/measuring_backend.h"

#include <algorithm>

#include "proto/base/text.h"

namespace swax {
namespace {

class NoStream final : public Stream {};

void uncount(void* context, void*, int64_t bytes) {
  static_cast<std::atomic<int64_t>*>(context)->fetch_sub(bytes);
}

}  // namespace

MeasuringBackend::MeasuringBackend() = default;
MeasuringBackend::MeasuringBackend(BackendKind kind) : kind_(kind) {}
MeasuringBackend::~MeasuringBackend() = default;

MeasuringBackend::Counts MeasuringBackend::counts() const {
  Counts c;
  c.flops = flops_;
  c.calls = calls_;
  c.device_bytes = device_.bytes.load();
  c.device_bytes_max = device_.bytes_max;
  c.pinned_bytes = pinned_.bytes.load();
  c.pinned_bytes_max = pinned_.bytes_max;
  return c;
}

void MeasuringBackend::reset_work() {
  flops_ = 0.0;
  calls_ = 0;
}

Result<Buffer> MeasuringBackend::allocate(int64_t bytes, MemoryKind kind) {
  if (bytes < 0) return invalid_argument("allocate: bytes=" + to_text(bytes) + ": must be >= 0");
  Pool& pool = kind == MemoryKind::kDevice ? device_ : pinned_;
  const int64_t held = pool.bytes.fetch_add(bytes) + bytes;
  pool.bytes_max = std::max(pool.bytes_max, held);
  return Buffer(nullptr, bytes, &uncount, &pool.bytes);
}

Result<std::unique_ptr<Stream>> MeasuringBackend::make_stream() {
  return std::unique_ptr<Stream>(std::make_unique<NoStream>());
}

Status MeasuringBackend::counted(const Status& valid, double flops) {
  if (!valid.ok()) return valid;
  flops_ += flops;
  ++calls_;
  return ok();
}

Status MeasuringBackend::copy(Stream&, Tensor to, Tensor from) {
  if (to.dtype != from.dtype || to.elements() != from.elements()) {
    return invalid_argument("copy: to and from must have one dtype and one size");
  }
  return ok();
}

Status MeasuringBackend::fill(Stream&, const FillArgs& a) { return counted(validate(a), 0.0); }
Status MeasuringBackend::add(Stream&, const AddArgs& a) { return counted(validate(a), 0.0); }
Status MeasuringBackend::cast(Stream&, const CastArgs& a) { return counted(validate(a), 0.0); }
Status MeasuringBackend::digest(Stream&, const DigestArgs& a) { return counted(validate(a), 0.0); }
Status MeasuringBackend::gemm(Stream&, const GemmArgs& a) { return counted(validate(a), cost(a)); }
Status MeasuringBackend::embedding(Stream&, const EmbeddingArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::embedding_backward(Stream&, const EmbeddingBackwardArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::rms_norm(Stream&, const RmsNormArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::rms_norm_apply(Stream&, const RmsNormApplyArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::rms_norm_backward(Stream&, const RmsNormBackwardArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::head_norm(Stream&, const HeadNormArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::head_norm_backward(Stream&, const HeadNormBackwardArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::rope(Stream&, const RopeArgs& a) { return counted(validate(a), 0.0); }
Status MeasuringBackend::swa(Stream&, const SwaArgs& a) { return counted(validate(a), cost(a)); }
Status MeasuringBackend::swa_backward(Stream&, const SwaBackwardArgs& a) {
  return counted(validate(a), cost(a));
}
Status MeasuringBackend::swa_decode(Stream&, const SwaDecodeArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::mlstm_gates(Stream&, const MlstmGatesArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::mlstm_gates_backward(Stream&, const MlstmGatesBackwardArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::rms_norm_gates(Stream&, const RmsNormGatesArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::rms_norm_gates_backward(Stream&, const RmsNormGatesBackwardArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::mlstm(Stream&, const MlstmArgs& a) {
  return counted(validate(a), cost(a));
}
Status MeasuringBackend::mlstm_backward(Stream&, const MlstmBackwardArgs& a) {
  return counted(validate(a), cost(a));
}
Status MeasuringBackend::mlstm_step(Stream&, const MlstmStepArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::swiglu(Stream&, const SwigluArgs& a) { return counted(validate(a), 0.0); }
Status MeasuringBackend::swiglu_backward(Stream&, const SwigluBackwardArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::cross_entropy(Stream&, const CrossEntropyArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::row_sumsq(Stream&, const RowSumsqArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::norm_tree(Stream&, const NormTreeArgs& a) {
  return counted(validate(a), 0.0);
}
Status MeasuringBackend::adamw(Stream&, const AdamWArgs& a) { return counted(validate(a), 0.0); }

}  // namespace swax
