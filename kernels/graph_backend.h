// Regions of a backend as graphs. The calls of a region are put off to its end. A region whose
// calls all had the same arguments before (stream, every address, shape and number, under a 128-bit
// hash) runs as the device graph that was made of them; a new one runs call by call, and becomes a graph
// when it comes a second time. So a graph never runs in the place of other calls, whatever changes
// between steps: windows, slots, places of gradients. Same bits as the inner backend; errors of
// put-off calls show at the end of the region. Calls outside regions, and whatever is not an op of
// a layer, go straight on, behind the calls that were put off; the stream of a region is not synced
// inside it. Threads: as the inner backend, which must outlive the wrapper.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "kernels/backend_wrapper.h"
#include "kernels/call.h"
#include "proto/base/hash.h"

namespace swax {

class GraphBackend final : public BackendWrapper {
 public:
  // Of the graph of a layer, in device memory (measured on an H200, CUDA 13.0).
  static constexpr int64_t kGraphBytes = 112 << 10;
  // Regions remembered at most; others run call by call.
  static constexpr int kGraphsMax = 1024;

  explicit GraphBackend(Backend& inner, int graphs_max = kGraphsMax)
      : BackendWrapper(inner), graphs_max_(graphs_max) {}
  ~GraphBackend() override;

  void begin_region(Stream& s) override;
  Status end_region(Stream& s) override;

  struct Counts {
    int64_t direct = 0;    // regions that ran call by call
    int64_t captured = 0;  // graphs made
    int64_t launched = 0;  // regions that ran as a graph
  };
  Counts counts() const { return counts_; }

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
  // The graph of a region, or nothing yet.
  using Graphs = std::map<Hash128, std::unique_ptr<DeviceGraph>>;

  template <typename Args>
  Status call(Stream& s, const Args& a);
  Status make_all(Stream& s);
  Status flush();  // makes the calls put off so far
  Status capture(Stream& s, std::unique_ptr<DeviceGraph>& graph);

  int graphs_max_;
  std::atomic<Stream*> region_{nullptr};  // of the open region; sync() of any thread looks at it
  Status failed_;  // of calls that had to be made where nothing can be returned
  std::vector<Call> calls_;
  std::vector<uint64_t> words_;
  Graphs graphs_;
  Counts counts_;
};

}  // namespace swax
