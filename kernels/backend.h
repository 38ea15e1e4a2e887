// Backend: one virtual per operation and direction, one argument struct each (kernels/spec). The
// list is closed: a new op needs its spec, a float64 reference and a CPU form first. Every call
// only enqueues on the stream and returns; errors are argument errors (kInvalidArgument, checked by
// validate()) or a device that is lost (kInternal, sticky: the process must end). Nothing is
// allocated by an op. Same input, same bits, for every number of compute threads. Threads: one
// Backend belongs to one rank; its ops are called from one thread. No globals, no thread_local
// state: several ranks may live in one process and on one GPU.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/device.h"
#include "kernels/spec/basic.h"
#include "kernels/spec/cross_entropy.h"
#include "kernels/spec/embedding.h"
#include "kernels/spec/gemm.h"
#include "kernels/spec/mlstm.h"
#include "kernels/spec/norm.h"
#include "kernels/spec/norm_gates.h"
#include "kernels/spec/optim.h"
#include "kernels/spec/rope.h"
#include "kernels/spec/swa.h"
#include "kernels/spec/swiglu.h"
#include "proto/base/status.h"

namespace swax {

// Calls of one stream that a device runs as one; made by Backend::end_capture.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual BackendKind kind() const = 0;

  // Memory and order.
  virtual Result<Buffer> allocate(
      int64_t bytes, MemoryKind kind) = 0;  // kResourceExhausted names bytes and what is free
  virtual Result<std::unique_ptr<Stream>> make_stream() = 0;
  virtual Event record(Stream& s) = 0;
  virtual void wait(Stream& s, Event e) = 0;
  // Blocks the caller, which may be any thread, until all that was enqueued so far is done. The
  // only call that blocks.
  virtual Status sync(Stream& s) = 0;
  virtual Status copy(Stream& s, Tensor to,
                      Tensor from) = 0;  // same dtype and elements; any of device and pinned memory

  // Element-wise and digest.
  virtual Status fill(Stream& s, const FillArgs& a) = 0;
  virtual Status add(Stream& s, const AddArgs& a) = 0;
  virtual Status cast(Stream& s, const CastArgs& a) = 0;
  virtual Status digest(Stream& s, const DigestArgs& a) = 0;

  // Model.
  virtual Status gemm(Stream& s, const GemmArgs& a) = 0;
  virtual Status embedding(Stream& s, const EmbeddingArgs& a) = 0;
  virtual Status embedding_backward(Stream& s, const EmbeddingBackwardArgs& a) = 0;
  virtual Status rms_norm(Stream& s, const RmsNormArgs& a) = 0;
  virtual Status rms_norm_apply(Stream& s, const RmsNormApplyArgs& a) = 0;
  virtual Status rms_norm_backward(Stream& s, const RmsNormBackwardArgs& a) = 0;
  virtual Status head_norm(Stream& s, const HeadNormArgs& a) = 0;
  virtual Status head_norm_backward(Stream& s, const HeadNormBackwardArgs& a) = 0;
  virtual Status rope(Stream& s, const RopeArgs& a) = 0;
  virtual Status swa(Stream& s, const SwaArgs& a) = 0;
  virtual Status swa_backward(Stream& s, const SwaBackwardArgs& a) = 0;
  virtual Status swa_decode(Stream& s, const SwaDecodeArgs& a) = 0;
  virtual Status mlstm_gates(Stream& s, const MlstmGatesArgs& a) = 0;
  virtual Status mlstm_gates_backward(Stream& s, const MlstmGatesBackwardArgs& a) = 0;
  virtual Status rms_norm_gates(Stream& s, const RmsNormGatesArgs& a) = 0;
  virtual Status rms_norm_gates_backward(Stream& s, const RmsNormGatesBackwardArgs& a) = 0;
  virtual Status mlstm(Stream& s, const MlstmArgs& a) = 0;
  virtual Status mlstm_backward(Stream& s, const MlstmBackwardArgs& a) = 0;
  virtual Status mlstm_step(Stream& s, const MlstmStepArgs& a) = 0;
  virtual Status swiglu(Stream& s, const SwigluArgs& a) = 0;
  virtual Status swiglu_backward(Stream& s, const SwigluBackwardArgs& a) = 0;
  virtual Status cross_entropy(Stream& s, const CrossEntropyArgs& a) = 0;

  // Optimizer.
  virtual Status row_sumsq(Stream& s, const RowSumsqArgs& a) = 0;
  virtual Status norm_tree(Stream& s, const NormTreeArgs& a) = 0;
  virtual Status adamw(Stream& s, const AdamWArgs& a) = 0;

  // What decides the bits besides the spec: "cpu glibc=2.36 openblas=0.3.21/SkylakeX
  // flags=avx2,..." (design: arithmetic fingerprint).
  virtual std::string fingerprint() const = 0;

  // Products may have several forms that give the same bits on probe data and differ in speed.
  // Which one is taken must not depend on the rank or the day, so a run chooses once and replays
  // that.
  virtual bool has_choices() const { return false; }
  // A form for each product, as text: a line a shape, in a fixed order. What has none yet (of an
  // earlier call, or adopted) is chosen by time; device memory is taken for that and given back.
  // Of the tensors only shapes and addresses count. Blocks.
  virtual Result<std::string> choose(Stream&, std::span<const GemmArgs>) { return std::string(); }
  // Takes the forms of a text of choose(), of whatever process. kFailedPrecondition: a line that is
  // none, or whose form this device or library does not have.
  virtual Status adopt(std::string_view choices) {
    return choices.empty() ? ok() : failed_precondition("this backend has no choices");
  }
  // How often device memory was taken so far, also by ops on the first use of a shape. It stands
  // still once every shape has been used.
  virtual int64_t allocations() const { return 0; }

  // The calls that follow on this stream belong together until end_region: a backend may put them
  // off until then, with their errors, and run them as one (GraphBackend). Their tensors lie in
  // device memory. Regions do not nest; an error between the two leaves the region open, and the
  // run is over.
  virtual void begin_region(Stream&) {}
  virtual Status end_region(Stream&) { return ok(); }
  // Calls between begin_capture and end_capture are kept, not run; launch_graph runs them all with
  // the arguments they had, on the stream that they were captured on (kInvalidArgument on another).
  // Only where can_capture(). Every product must have its form (see choose).
  virtual bool can_capture() const { return false; }
  virtual Status begin_capture(Stream&) {
    return failed_precondition("this backend has no graphs");
  }
  virtual Result<std::unique_ptr<DeviceGraph>> end_capture(Stream&) {
    return failed_precondition("this backend has no graphs");
  }
  virtual Status launch_graph(Stream&, DeviceGraph&) {
    return failed_precondition("this backend has no graphs");
  }
};

// Forwards every call to another backend; tests and wrappers override what they distort or count.
class BackendWrapper;  // kernels/backend_wrapper.h

struct BackendOptions {
  BackendKind kind = BackendKind::kCpu;
  int ordinal = 0;
  int compute_threads = 1;
  bool plain_gemm =
      false;  // CPU: plain loops instead of BLAS; bits then depend on IEEE arithmetic alone
};
// kFailedPrecondition when the kind is not in this build.
Result<std::unique_ptr<Backend>> open_backend(const BackendOptions& options);

}  // namespace swax
