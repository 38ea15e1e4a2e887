// One rank's training run. A step = data, window, forward and backward of this rank's slots, slot
// sums, norm, update, report, agreement. The run is a pure function of the spec: nothing here
// depends on the number of ranks, on time or on earlier attempts. The host waits for the device
// once a step. Nothing is allocated on the device after create() (checked), and nothing on the
// compute thread after the third step. Threads: one compute thread per Trainer;
// request_stop() and request_checkpoint() may be called from anywhere, also signal handlers.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "jobs/layout.h"
#include "jobs/slot_plan.h"
#include "kernels/graph_backend.h"
#include "proto/job.pb.h"
#include "worker/data/batch_source.h"
#include "worker/model/model.h"
#include "worker/train/checkpointer.h"
#include "worker/train/kernel_choices.h"
#include "worker/train/optimizer.h"

namespace swax {

// Test hook: flips one bit of the summed gradient before the update of one step (1-based). tensor
// empty: off.
struct GradientFlip {
  int64_t step = 0;
  std::string tensor;
  int64_t element = 0;
  int bit = 0;
};
Result<GradientFlip> parse_gradient_flip(const std::string& text);  // "step:tensor:element:bit"

struct TrainerOptions {
  pb::JobSpec spec;                       // resolved
  std::vector<std::string> data_folders;  // one per source
  std::string ckpt_root;                  // empty: no checkpoints
  std::string choices_file;               // of the run (kernel_choices.h); empty: kept nowhere
  uint64_t epoch = 1;
  std::string build_id;
  std::string fingerprint;     // arithmetic fingerprint of this rank
  ReportSink* sink = nullptr;  // may be null; every rank reports steps and phases, rank 0 the rest
  std::function<void(const pb::RankDurable&)> report_durable;  // see CheckpointerOptions
  GradientFlip flip;
  bool graphs = false;  // layers as graphs (GraphBackend) where the backend has them; same bits
};

struct RunOutcome {
  enum class Kind { kDone, kStopped, kNonFinite };
  Kind kind = Kind::kDone;
  int64_t step = 0;
  std::string digest;
  double loss = 0.0;
  double validation_bpb = 0.0;
  double tokens_per_s = 0.0;
  std::string reason;
};

class Trainer {
 public:
  // Allocates everything, checks that what was allocated is what was planned. CONFIG errors:
  // kInvalidArgument; out of memory: kResourceExhausted.
  static Result<std::unique_ptr<Trainer>> create(Backend& backend, Collectives& shard,
                                                 Collectives& replica, TrainerOptions options);
  ~Trainer();

  // Loads the newest checkpoint or makes the initial state. Returns the steps already done.
  Result<int64_t> start();
  // Trains to the end, to a stop request or to a non-finite loss; then commits the last checkpoint.
  Result<RunOutcome> run();
  void request_stop() { stop_.store(1, std::memory_order_relaxed); }
  void request_checkpoint() { save_.store(1, std::memory_order_relaxed); }
  const MemoryPlan& memory_plan() const { return plan_; }
  int64_t arena_peak() const { return arena_->peak(); }
  GraphBackend::Counts graph_counts() const {
    return graphs_ ? graphs_->counts() : GraphBackend::Counts{};
  }
  // That of the options, and a hash of the forms of the products where there are any.
  const std::string& fingerprint() const { return options_.fingerprint; }
  // Digest of the current state. Collective.
  Result<std::string> digest();

 private:
  // What one validation window contributes.
  struct WindowScore {
    double loss = 0.0;
    int64_t targets = 0;
    int64_t text_bytes = 0;
  };
  Trainer(Backend& backend, std::unique_ptr<GraphBackend> graphs, TrainerOptions options)
      : graphs_(std::move(graphs)),
        backend_(graphs_ ? *graphs_ : backend),
        options_(std::move(options)) {}
  Status allocate(Collectives& shard, Collectives& replica);
  Status allocate_inputs();
  Status allocate_slots();
  Status settle_products();
  Status allocate_checkpointer();
  void poison_device(void* data, int64_t bytes);
  Status check_plan() const;
  Status init_state();
  Status train_step();
  Status run_slots(const std::vector<SlotBatch>& slots);
  Status load_slot(const SlotBatch& batch, int64_t micro_step);
  StepCtx step_ctx(Backend& backend, int64_t window);
  Status write_scalars(int64_t targets);
  Status read_back();
  Result<int64_t> count_targets(const std::vector<SlotBatch>& slots);
  Result<double> total_loss(int64_t targets);
  Status flip_gradient();
  Status digest_sums();
  Status validate_state(bool final);
  void phase(const char* name);
  bool speaks() const { return options_.sink != nullptr && rank_->shard.rank() == 0; }
  // Without saves a run still goes on from what is there.
  bool saves() const { return checkpointer_ && options_.spec.checkpoint().enable(); }
  Status agree(bool may_save);
  Status drain_saves();
  void wait_for_room(int64_t* pause_ms);
  Status end_of_warmup();
  Result<RunOutcome> finish(RunOutcome::Kind kind, std::string reason);

  std::unique_ptr<GraphBackend> graphs_;  // around the backend, where it has graphs
  Backend& backend_;
  TrainerOptions options_;
  ModelShape shape_;
  Layout layout_;
  SlotPlan slots_;
  MemoryPlan plan_;
  KernelChoices choices_;
  std::unique_ptr<Stream> compute_, comm_;
  Block arena_block_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<RankContext> rank_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Fsdp> fsdp_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<StateTable> table_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::unique_ptr<BatchSource> source_;

  Block tokens_, targets_, doc_start_, reset_, rope_cos_, rope_sin_, scalars_, losses_, digest_;
  Block host_scalars_, host_losses_, host_digest_;  // pinned
  // Pinned, slots of all micro-steps; empty on the CPU.
  Block host_tokens_, host_targets_, host_doc_start_, host_reset_;
  std::vector<double> gathered_losses_, slot_losses_;
  std::vector<int64_t> my_counts_, gathered_counts_;
  std::vector<DigestSums> digest_sums_, gathered_digests_;
  SlotBatch validation_batch_;
  std::vector<WindowScore> round_;  // of all ranks

  int64_t total_steps_ = 0;
  int64_t step_ = 0;  // steps done
  double loss_ = 0.0;
  double grad_norm_ = 0.0;
  double validation_bpb_ = 0.0;
  int64_t allocations_ = 0;  // of the backend, when all was allocated and chosen
  bool nonfinite_ = false;
  bool stop_agreed_ = false;
  int64_t trained_tokens_ = 0;
  int64_t trained_ns_ = 0;
  std::atomic<int> stop_{0}, save_{0};
};

}  // namespace swax
