#include "worker/data/batch_source.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "jobs/data_order.h"
#include "proto/base/text.h"
#include "storage/shard_catalog.h"
#include "worker/data/window_filler.h"

namespace swax {
namespace {

constexpr int64_t kNoStep = -1;

using Readers = std::vector<std::unique_ptr<DatasetReader>>;

Status check_manifest(const pb::DatasetManifest& m, const pb::JobSpec& spec,
                      const std::string& folder) {
  if (m.tokenizer() != "bytes") {
    return invalid_argument("data set " + folder + ": tokenizer " + printable(m.tokenizer()) +
                            ": must be bytes");
  }
  if (m.vocab_size() > spec.model().vocab_size()) {
    return invalid_argument("model.vocab_size=" + to_text(uint64_t{spec.model().vocab_size()}) +
                            ": data set " + folder + " needs " + to_text(uint64_t{m.vocab_size()}));
  }
  return ok();
}

Result<Readers> open_readers(const BatchSourceOptions& options, std::string_view split) {
  const auto& sources = options.spec->data().sources();
  Readers readers;
  for (int s = 0; s < sources.size(); ++s) {
    const std::string& folder = options.folders[static_cast<size_t>(s)];
    SWAX_ASSIGN(auto reader, DatasetReader::open(folder, split, sources[s].digest()));
    SWAX_TRY(check_manifest(reader->manifest(), *options.spec, folder));
    readers.push_back(std::move(reader));
  }
  return readers;
}

// What a step needs to be loaded: used by the loader's thread alone after it has started.
struct StepLoader {
  DataOrder order;
  SlotPlan plan;
  int rank;
  Readers readers;  // training splits
  WindowFiller filler;

  Status load(int64_t step, std::vector<SlotBatch>* batches) {
    for (size_t j = 0; j < batches->size(); ++j) {
      SlotBatch& batch = (*batches)[j];
      batch.slot = slot_of(plan, static_cast<int64_t>(j), rank);
      batch.targets = 0;
      batch.text_bytes = 0;
      if (batch.slot == kNoSlot) continue;
      const SampleRef ref = order.at(static_cast<uint64_t>(step * plan.slots + batch.slot));
      DatasetReader& reader = *readers[static_cast<size_t>(ref.source)];
      SWAX_TRY(filler.fill(reader, ref.window, &batch));
    }
    return ok();
  }
};

// Loads one step at a time on its own thread. The owner may touch `loaded_` only while nothing is
// being loaded.
class Prefetcher {
 public:
  Prefetcher(StepLoader loader, std::vector<SlotBatch> batches)
      : loader_(std::move(loader)), loaded_(std::move(batches)), thread_([this] { run(); }) {}
  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Swaps the slots of `step` into `batches` and starts with the next step.
  Status take(int64_t step, std::vector<SlotBatch>* batches) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !loading_; });
    if (step_ != step) {
      begin(step);
      changed_.wait(lock, [&] { return !loading_; });
    }
    if (!status_.ok()) {
      step_ = kNoStep;  // asked again, it is read again
      return status_;
    }
    batches->swap(loaded_);
    begin(step + 1);
    return ok();
  }

 private:
  void begin(int64_t step) {
    step_ = step;
    loading_ = true;
    changed_.notify_all();
  }

  void run() {
    // Signals are for the threads that wait for them.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return loading_ || stop_; });
      if (stop_) return;
      const int64_t step = step_;
      lock.unlock();
      Status status = loader_.load(step, &loaded_);
      lock.lock();
      status_ = std::move(status);
      loading_ = false;
      changed_.notify_all();
    }
  }

  StepLoader loader_;
  std::vector<SlotBatch> loaded_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t step_ = kNoStep;  // loaded, or being loaded
  bool loading_ = false;
  bool stop_ = false;
  Status status_;
  std::thread thread_;  // last: starts when everything else stands
};

class PrefetchingBatchSource final : public BatchSource {
 public:
  PrefetchingBatchSource(const pb::JobSpec& spec, StepLoader loader, Readers validation)
      : steps_max_((int64_t{1} << 62) / loader.plan.slots),
        filler_(loader.filler),
        held_out_(std::move(validation)),
        front_(static_cast<size_t>(micro_steps(loader.plan))) {
    for (SlotBatch& batch : front_) filler_.prepare(&batch);
    const auto seq_len = static_cast<uint64_t>(spec.training().seq_len());
    int64_t end = 0;
    for (const auto& reader : held_out_) {
      const uint64_t tokens = reader->tokens();
      end += static_cast<int64_t>(tokens == 0 ? 0 : (tokens - 1) / seq_len);
      window_ends_.push_back(end);
    }
    prefetcher_ = std::make_unique<Prefetcher>(std::move(loader), front_);
  }

  Result<const std::vector<SlotBatch>*> step(int64_t step) override {
    if (step < 0 || step >= steps_max_) {
      return invalid_argument("step=" + to_text(step) + ": must be in [0, " + to_text(steps_max_) +
                              ")");
    }
    SWAX_TRY(prefetcher_->take(step, &front_));
    return &front_;
  }

  int64_t validation_windows() const override { return window_ends_.back(); }

  Status validation(int64_t window, SlotBatch* out) override {
    if (window < 0 || window >= validation_windows()) {
      return invalid_argument("validation window " + to_text(window) + ": must be in [0, " +
                              to_text(validation_windows()) + ")");
    }
    const auto end = std::upper_bound(window_ends_.begin(), window_ends_.end(), window);
    const auto source = static_cast<size_t>(end - window_ends_.begin());
    const int64_t first = source == 0 ? 0 : window_ends_[source - 1];
    filler_.prepare(out);
    out->slot = window;
    return filler_.fill(*held_out_[source], window - first, out);
  }

 private:
  int64_t steps_max_;
  WindowFiller filler_;  // of the owner's thread
  Readers held_out_;     // validation splits
  std::vector<int64_t> window_ends_;
  std::vector<SlotBatch> front_;
  std::unique_ptr<Prefetcher> prefetcher_;
};

Status check_options(const BatchSourceOptions& options) {
  SWAX_CHECK(options.spec != nullptr);
  const pb::JobSpec& spec = *options.spec;
  const auto sources = static_cast<size_t>(spec.data().sources_size());
  if (sources == 0 || options.folders.size() != sources) {
    return invalid_argument("data.sources: " + to_text(uint64_t{sources}) + " sources and " +
                            to_text(uint64_t{options.folders.size()}) + " folders");
  }
  if (spec.training().seq_len() < 1 || spec.training().global_batch_size() < 1) {
    return invalid_argument("training.seq_len and global_batch_size must be from 1");
  }
  if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks) {
    return invalid_argument("rank=" + to_text(options.rank) + ": must be in [0, " +
                            to_text(options.ranks) + ")");
  }
  return ok();
}

}  // namespace

Result<std::unique_ptr<BatchSource>> BatchSource::open(const BatchSourceOptions& options) {
  SWAX_TRY(check_options(options));
  const pb::JobSpec& spec = *options.spec;
  SWAX_ASSIGN(Readers train, open_readers(options, "train"));
  SWAX_ASSIGN(Readers validation, open_readers(options, "validation"));
  std::vector<int64_t> train_tokens;
  for (const auto& reader : train) train_tokens.push_back(static_cast<int64_t>(reader->tokens()));
  SWAX_ASSIGN(DataOrder order, make_data_order(spec, train_tokens));
  SlotPlan plan;
  plan.slots = spec.training().global_batch_size();
  plan.ranks = options.ranks;
  const bool doc_reset = !spec.model().has_doc_reset() || spec.model().doc_reset();
  StepLoader loader{.order = std::move(order),
                    .plan = plan,
                    .rank = options.rank,
                    .readers = std::move(train),
                    .filler = WindowFiller(spec.training().seq_len(), doc_reset)};
  return std::unique_ptr<BatchSource>(
      std::make_unique<PrefetchingBatchSource>(spec, std::move(loader), std::move(validation)));
}

}  // namespace swax
