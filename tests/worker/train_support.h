// Training runs for tests: a small data set, specs made of jobs/micro.toml with changes, and groups
// of N ranks as threads of this process (LocalCollectives, a backend each, of the kind the spec
// names; on a GPU all on device 0) that keep all they report. Threads: run_group starts and joins
// the rank threads; its hooks are called from them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jobs/spec.h"
#include "tests/worker/data_fixture.h"
#include "worker/comm/local_collectives.h"
#include "worker/train/trainer.h"

namespace swax::test {

// A data set of `documents` documents of about `bytes` bytes each, words of a small vocabulary, one
// in twenty held out. The same arguments give the same digest.
class TrainData {
 public:
  explicit TrainData(int documents = 400, size_t bytes = 500);
  const std::string& folder() const { return built_.folder; }
  const std::string& digest() const { return built_.digest; }

 private:
  TempFolder temp_;
  BuiltDataset built_;
};

// Short sequences and few steps: seq_len 64, windows 8 and 32, 8 steps, checkpoints only at the
// end, 4 held-out sequences every 4 steps. `changes` come last ("training.steps", "9").
using Changes = std::vector<std::pair<std::string, std::string>>;
pb::JobSpec micro_spec(const TrainData& data, const Changes& changes = {});

// Everything one rank reported, in order.
struct KeptStep {
  StepReport report;  // digests empty
  std::vector<DigestSums> digests;
};
struct KeptEvent {
  std::string kind;
  int64_t step = 0;
  std::string text;
};
class VectorSink final : public ReportSink {
 public:
  VectorSink();  // makes room for hundreds of steps: keeping one allocates nothing
  void phase(std::string_view name) override;
  void step(const StepReport& report) override;
  void validation(const ValidationReport& report) override;
  void event(std::string_view kind, int64_t step, std::string_view text) override;
  // Called inside step(), after the report was kept.
  std::function<void(const StepReport&)> on_step;
  std::function<void(const KeptEvent&)> on_event;
  bool keep_digests = true;
  std::vector<std::string> phases;
  std::vector<KeptStep> steps;
  std::vector<ValidationReport> validations;
  std::vector<KeptEvent> events() const;

 private:
  mutable std::mutex mutex_;
  std::vector<KeptEvent> events_;
};

struct GroupOptions {
  int ranks = 1;
  std::string ckpt_root;     // empty: no checkpoints
  std::string choices_file;  // empty: none
  uint64_t epoch = 1;
  std::string fingerprint = "test";
  bool plain_gemm = false;
  bool graphs = false;
  bool keep_digests = true;
  GradientFlip flip;
  LocalFaults faults;
  std::function<void(const pb::RankDurable&)> report_durable;
  // May put a wrapper of its own around the rank's backend.
  std::function<std::unique_ptr<Backend>(int rank, Backend& inner)> wrap;
  // In the rank's thread: after create, after each step, after run.
  std::function<void(int rank, Trainer&)> created;
  std::function<void(int rank, Trainer&, const StepReport&)> stepped;
  std::function<void(const KeptEvent&)> on_event;  // of rank 0, from any of its threads
  std::function<void(int rank, Trainer&)> ended;
};
struct RankRun {
  Status status;  // of create, start or run
  RunOutcome outcome;
  int64_t start_step = 0;
  std::vector<std::string> phases;
  std::vector<KeptStep> steps;
  std::vector<ValidationReport> validations;
  std::vector<KeptEvent> events;
  std::vector<KeptEvent> events_of(std::string_view kind) const;
};
struct GroupRun {
  std::vector<RankRun> ranks;
  const RankRun& first() const { return ranks.front(); }
  // Every rank ended without an error and says the same digest, losses and norms.
  testing::AssertionResult agreed() const;
};
GroupRun run_group(const pb::JobSpec& spec, const TrainData& data, const GroupOptions& options);
// A stop request of every rank but one after `step` steps: what a signal to part of a job does.
GroupOptions stop_after(GroupOptions options, int64_t step);

// What must be equal between two runs, bit by bit: digest, losses, norms, target counts by step,
// validation values by step.
struct Trace {
  std::string digest;
  std::map<int64_t, std::string> steps;
  std::map<int64_t, std::string> validations;
  void add(const RankRun& run);  // the newest digest; a step that stands here must be equal
  // "" or the first difference.
  std::string difference(const Trace& other) const;
  bool conflict = false;  // a step was repeated with other bits
};

// The newest committed checkpoint, or nothing (fails the test).
CheckpointName newest_checkpoint(const std::string& ckpt_root);
// Names of committed checkpoints that are not bad, newest first.
std::vector<std::string> good_checkpoints_of(const std::string& ckpt_root);

}  // namespace swax::test
