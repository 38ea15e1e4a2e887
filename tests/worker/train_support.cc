#include "tests/worker/train_support.h"

#include <bit>
#include <cstdio>
#include <thread>

#include "kernels/backend.h"
#include "proto/base/files.h"
#include "proto/base/rng.h"

namespace swax::test {
namespace {

// Text with something to learn: words of a list of 64, made of letters by seed.
std::string words(uint64_t document, size_t bytes) {
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    for (const uint32_t word : random_block(7, Purpose::kTest, document << 32 | i)) {
      const uint32_t index = word % 64;
      for (uint32_t k = 0; k <= index % 5; ++k)
        text += static_cast<char>('a' + (index * 7 + k * 11) % 26);
      text += ' ';
    }
  }
  return text;
}

std::string hex(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%016llx",
                static_cast<unsigned long long>(std::bit_cast<uint64_t>(value)));
  return text;
}

std::string step_text(const StepReport& r) {
  return "loss " + hex(r.loss) + " norm " + hex(r.grad_norm) + " lr " +
         hex(static_cast<double>(r.lr)) + " window " + std::to_string(r.window) + " targets " +
         std::to_string(r.targets);
}

std::string validation_text(const ValidationReport& r) {
  return "loss " + hex(r.loss) + " bpb " + hex(r.bits_per_byte) + " targets " +
         std::to_string(r.targets) + " bytes " + std::to_string(r.text_bytes) +
         (r.final ? " final" : "");
}

// The life of one rank. Errors of one rank end the group, as a failed process ends its job.
Status run_rank(const pb::JobSpec& spec, const TrainData& data, const GroupOptions& options,
                Backend& inner, Collectives& shard, VectorSink& sink, RankRun* out) {
  const auto wrapper = options.wrap ? options.wrap(shard.rank(), inner) : nullptr;
  Backend& backend = wrapper ? *wrapper : inner;
  const auto replica = make_local_collectives(1);
  TrainerOptions trainer_options;
  trainer_options.spec = spec;
  trainer_options.data_folders = {data.folder()};
  trainer_options.ckpt_root = options.ckpt_root;
  trainer_options.choices_file = options.choices_file;
  trainer_options.epoch = options.epoch;
  trainer_options.build_id = "test";
  trainer_options.fingerprint = options.fingerprint;
  trainer_options.sink = &sink;
  trainer_options.report_durable = options.report_durable;
  trainer_options.flip = options.flip;
  trainer_options.graphs = options.graphs;
  SWAX_ASSIGN(const auto trainer,
              Trainer::create(backend, shard, *replica[0], std::move(trainer_options)));
  const int rank = shard.rank();
  if (options.created) options.created(rank, *trainer);
  if (options.stepped) {
    sink.on_step = [&](const StepReport& report) { options.stepped(rank, *trainer, report); };
  }
  SWAX_ASSIGN(out->start_step, trainer->start());
  SWAX_ASSIGN(out->outcome, trainer->run());
  if (options.ended) options.ended(rank, *trainer);
  return ok();
}

// One a rank, of the kind the spec names; the ranks of a GPU share device 0.
Result<std::vector<std::unique_ptr<Backend>>> open_backends(const pb::JobSpec& spec,
                                                            const GroupOptions& options) {
  BackendOptions backend_options;
  backend_options.kind = backend_kind(spec);
  backend_options.compute_threads = static_cast<int>(spec.parallelism().compute_threads());
  backend_options.plain_gemm = options.plain_gemm;
  std::vector<std::unique_ptr<Backend>> backends;
  for (int rank = 0; rank < options.ranks; ++rank) {
    SWAX_ASSIGN(auto backend, open_backend(backend_options));
    backends.push_back(std::move(backend));
  }
  return backends;
}

std::vector<std::unique_ptr<Collectives>> make_handles(
    const std::vector<std::unique_ptr<Backend>>& backends, const GroupOptions& options) {
  if (backends[0]->kind() == BackendKind::kCpu)
    return make_local_collectives(options.ranks, options.faults);
  std::vector<Backend*> pointers;
  for (const auto& backend : backends) pointers.push_back(backend.get());
  return make_local_collectives(pointers, options.faults);
}

}  // namespace

TrainData::TrainData(int documents, size_t bytes) {
  std::vector<std::string> texts;
  for (int i = 0; i < documents; ++i) {
    const size_t more = random_block(8, Purpose::kTest, static_cast<uint64_t>(i))[0] % bytes;
    texts.push_back(words(static_cast<uint64_t>(i), bytes / 2 + more));
  }
  built_ = build_documents(temp_, "train", texts, 0.05);
}

pb::JobSpec micro_spec(const TrainData& data, const Changes& changes) {
  std::vector<SpecOverride> overrides = {
      {"training.seq_len", "64"},    {"training.steps", "8"},           {"window.short", "8"},
      {"window.long", "32"},         {"checkpoint.interval", "1000"},   {"validation.freq", "4"},
      {"validation.sequences", "4"}, {"lr_scheduler.warmup_steps", "4"}};
  for (const auto& [path, value] : changes) overrides.push_back({path, value});
  const SpecResult loaded =
      load_spec(contents(SWAX_SOURCE_DIR "/jobs/micro.toml"), "micro.toml", overrides);
  for (const SpecProblem& problem : loaded.problems) EXPECT_TRUE(problem.warning) << problem.text();
  pb::JobSpec spec = loaded.spec;
  spec.mutable_data()->mutable_sources(0)->set_text("file:train.txt");
  spec.mutable_data()->mutable_sources(0)->set_digest(data.digest());
  return spec;
}

VectorSink::VectorSink() {
  phases.reserve(1024);
  steps.reserve(1024);
  validations.reserve(1024);
}
void VectorSink::phase(std::string_view name) { phases.emplace_back(name); }
void VectorSink::step(const StepReport& report) {
  KeptStep& kept = steps.emplace_back();
  kept.report = report;
  kept.report.digests = {};
  if (keep_digests) kept.digests.assign(report.digests.begin(), report.digests.end());
  if (on_step) on_step(report);
}
void VectorSink::validation(const ValidationReport& report) { validations.push_back(report); }
void VectorSink::event(std::string_view kind, int64_t step, std::string_view text) {
  const KeptEvent kept{std::string(kind), step, std::string(text)};
  {
    std::lock_guard lock(mutex_);
    events_.push_back(kept);
  }
  if (on_event) on_event(kept);
}
std::vector<KeptEvent> VectorSink::events() const {
  std::lock_guard lock(mutex_);
  return events_;
}

GroupRun run_group(const pb::JobSpec& spec, const TrainData& data, const GroupOptions& options) {
  if (!options.ckpt_root.empty()) {
    EXPECT_TRUE(make_dirs(options.ckpt_root).ok());
  }
  GroupRun run;
  run.ranks.resize(static_cast<size_t>(options.ranks));
  const auto backends = open_backends(spec, options);
  if (!backends.ok()) {
    for (RankRun& rank : run.ranks) rank.status = backends.status();
    return run;
  }
  auto handles = make_handles(*backends, options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto shard = std::move(handles[static_cast<size_t>(rank)]);
      RankRun& out = run.ranks[static_cast<size_t>(rank)];
      VectorSink sink;
      sink.keep_digests = options.keep_digests;
      sink.on_event = options.on_event;
      Backend& backend = *(*backends)[static_cast<size_t>(rank)];
      out.status = run_rank(spec, data, options, backend, *shard, sink, &out);
      if (!out.status.ok()) shard->abort(out.status.message());
      out.phases = sink.phases;
      out.steps = sink.steps;
      out.validations = sink.validations;
      out.events = sink.events();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return run;
}

GroupOptions stop_after(GroupOptions options, int64_t step) {
  const int ranks = options.ranks;
  options.stepped = [ranks, step](int rank, Trainer& trainer, const StepReport& report) {
    if (report.step == step && rank == ranks - 1) trainer.request_stop();
  };
  return options;
}

std::vector<KeptEvent> RankRun::events_of(std::string_view kind) const {
  std::vector<KeptEvent> some;
  for (const KeptEvent& event : events)
    if (event.kind == kind) some.push_back(event);
  return some;
}

testing::AssertionResult GroupRun::agreed() const {
  Trace trace;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].status.ok())
      return testing::AssertionFailure()
             << "rank " << rank << ": " << ranks[rank].status.to_string();
    if (ranks[rank].outcome.digest != first().outcome.digest)
      return testing::AssertionFailure() << "rank " << rank << " has another digest";
    trace.add(ranks[rank]);
  }
  if (trace.conflict) return testing::AssertionFailure() << "ranks report different steps";
  return testing::AssertionSuccess();
}

void Trace::add(const RankRun& run) {
  digest = run.outcome.digest;
  for (const KeptStep& kept : run.steps) {
    const auto [it, added] = steps.emplace(kept.report.step, step_text(kept.report));
    conflict = conflict || it->second != step_text(kept.report);
  }
  for (const ValidationReport& report : run.validations) {
    const auto [it, added] = validations.emplace(report.step, validation_text(report));
    conflict = conflict || it->second != validation_text(report);
  }
}

std::string Trace::difference(const Trace& other) const {
  for (const auto& [mine, theirs, what] :
       {std::tuple(&steps, &other.steps, "step "),
        std::tuple(&validations, &other.validations, "validation ")}) {
    for (const auto& [step, text] : *mine) {
      const auto it = theirs->find(step);
      if (it == theirs->end()) return what + std::to_string(step) + " is missing";
      if (it->second != text)
        return what + std::to_string(step) + ": " + it->second + ", not " + text;
    }
    if (mine->size() != theirs->size()) return std::string("more of ") + what;
  }
  if (digest != other.digest) return "digest " + other.digest + ", not " + digest;
  return "";
}

CheckpointName newest_checkpoint(const std::string& ckpt_root) {
  const auto entries = list_checkpoints(ckpt_root);
  EXPECT_TRUE(entries.ok()) << entries.status().to_string();
  if (entries.ok()) {
    for (const CheckpointEntry& entry : *entries)
      if (entry.committed && entry.problem.empty()) return entry.name;
  }
  ADD_FAILURE() << "no checkpoint in " << ckpt_root;
  return {};
}

std::vector<std::string> good_checkpoints_of(const std::string& ckpt_root) {
  std::vector<std::string> names;
  const auto entries = list_checkpoints(ckpt_root);
  if (!entries.ok()) return names;
  for (const CheckpointEntry& entry : *entries)
    if (entry.committed && entry.problem.empty()) names.push_back(entry.name.folder());
  return names;
}

}  // namespace swax::test
