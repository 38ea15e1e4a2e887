// Goal: planned = used, to the byte, for every recompute mode and number of ranks; and a rank's
// compute thread allocates nothing once it is warm.
#include <atomic>
#include <set>

#include "kernels/backend_wrapper.h"
#include "kernels/measuring_backend.h"
#include "tests/worker/data_allocations.h"
#include "tests/worker/train_support.h"

namespace swax::test {
namespace {

const TrainData& data() {
  static const TrainData built(200, 200);
  return built;
}

// Sums what is allocated; nothing may be once training runs.
class CountingBackend final : public BackendWrapper {
 public:
  CountingBackend(Backend& inner, std::atomic<int64_t>& bytes)
      : BackendWrapper(inner), bytes_(bytes) {}
  Result<Buffer> allocate(int64_t bytes, MemoryKind kind) override {
    bytes_ += bytes;
    return BackendWrapper::allocate(bytes, kind);
  }

 private:
  std::atomic<int64_t>& bytes_;
};

struct Case {
  std::string name;
  Changes changes;
};

TEST(Memory, PlannedIsUsed) {
  const std::vector<Case> cases = {
      {"keep", {}},
      {"light", {{"activation_checkpoint.mode", "light"}}},
      {"block", {{"activation_checkpoint.mode", "block"}}},
      {"block and light",
       {{"activation_checkpoint.mode", "block"}, {"activation_checkpoint.layers", "1"}}},
      {"reshard",
       {{"parallelism.fsdp_reshard_after_forward", "always"}, {"parallelism.prefetch", "0"}}},
      {"reshard, prefetch", {{"parallelism.fsdp_reshard_after_forward", "always"}}},
      {"lanes 2", {{"training.reduction_lanes", "2"}}},
      {"batch 3", {{"training.global_batch_size", "3"}}},
      {"grouped heads, 3 layers",
       {{"model.kv_heads", "1"}, {"model.layers", "3"}, {"model.ff_dim", "200"}}},
  };
  std::map<std::string, int64_t> arena;
  for (const Case& c : cases) {
    Changes changes = {{"training.steps", "2"}};
    changes.insert(changes.end(), c.changes.begin(), c.changes.end());
    const pb::JobSpec spec = micro_spec(data(), changes);
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(c.name + ", ranks " + std::to_string(ranks));
      const TempFolder folder;
      std::vector<std::atomic<int64_t>> allocated(static_cast<size_t>(ranks));
      std::vector<int64_t> before_start(static_cast<size_t>(ranks));
      GroupOptions options;
      options.ranks = ranks;
      options.ckpt_root = folder.file("ckpt");
      options.wrap = [&](int rank, Backend& inner) {
        return std::make_unique<CountingBackend>(inner, allocated[static_cast<size_t>(rank)]);
      };
      options.created = [&](int rank, Trainer&) {
        before_start[static_cast<size_t>(rank)] = allocated[static_cast<size_t>(rank)];
      };
      options.ended = [&](int rank, Trainer& trainer) {
        const MemoryPlan& plan = trainer.memory_plan();
        EXPECT_EQ(trainer.arena_peak(), plan.arena_bytes);
        EXPECT_EQ(allocated[static_cast<size_t>(rank)], plan.total());
        EXPECT_EQ(allocated[static_cast<size_t>(rank)], before_start[static_cast<size_t>(rank)]);
        if (rank == 0) arena[c.name] = plan.arena_bytes;
      };
      EXPECT_TRUE(run_group(spec, data(), options).agreed());
    }
  }
  // What recompute is for.
  EXPECT_LT(arena["light"], arena["keep"]);
  EXPECT_LT(arena["block"], arena["light"]);
}

// Without a GPU: the trainer of a GPU job made on a backend that only counts. (Streams hold their
// workspace for themselves.)
TEST(Memory, PlannedIsAllocatedForAGpu) {
  for (const char* reshard : {"never", "always"}) {
    for (const char* mode : {"none", "light", "block"}) {
      const pb::JobSpec spec =
          micro_spec(data(), {{"training.backend", "cuda"},
                              {"activation_checkpoint.mode", mode},
                              {"parallelism.fsdp_reshard_after_forward", reshard}});
      const TempFolder folder;
      MeasuringBackend backend(BackendKind::kCuda);
      const auto shard = make_local_collectives(1), replica = make_local_collectives(1);
      TrainerOptions options;
      options.spec = spec;
      options.data_folders = {data().folder()};
      options.ckpt_root = folder.file("ckpt");
      const auto trainer = Trainer::create(backend, *shard[0], *replica[0], std::move(options));
      ASSERT_TRUE(trainer.ok()) << trainer.status().to_string();
      const MemoryPlan& plan = (*trainer)->memory_plan();
      EXPECT_EQ(backend.counts().device_bytes, plan.device_bytes() - plan.workspace_bytes);
      EXPECT_EQ(backend.counts().pinned_bytes, plan.host_bytes());
    }
  }
}

TEST(Memory, ABackendOfAnotherKindIsRefused) {
  const pb::JobSpec spec = micro_spec(data());
  MeasuringBackend backend(BackendKind::kCuda);
  const auto shard = make_local_collectives(1), replica = make_local_collectives(1);
  TrainerOptions options;
  options.spec = spec;
  options.data_folders = {data().folder()};
  const auto trainer = Trainer::create(backend, *shard[0], *replica[0], std::move(options));
  EXPECT_EQ(trainer.status().code(), Code::kInvalidArgument);
}

// One count per step, taken in the compute thread. Validations and checkpoints lie between.
void expect_no_allocations(const Changes& changes, int ranks) {
  if (!counts_allocations()) GTEST_SKIP() << "this build has an operator new of its own";
  Changes all = {{"training.steps", "14"}};
  all.insert(all.end(), changes.begin(), changes.end());
  const pb::JobSpec spec = micro_spec(data(), all);
  const TempFolder folder;
  std::vector<std::vector<int64_t>> counts(static_cast<size_t>(ranks), std::vector<int64_t>(15));
  GroupOptions options;
  options.ranks = ranks;
  options.ckpt_root = folder.file("ckpt");
  options.keep_digests = false;
  options.stepped = [&](int rank, Trainer&, const StepReport& report) {
    counts[static_cast<size_t>(rank)][static_cast<size_t>(report.step)] = thread_allocations();
  };
  const GroupRun run = run_group(spec, data(), options);
  ASSERT_TRUE(run.agreed());
  // A checkpoint that is skipped is said in the log, and that allocates.
  std::set<size_t> after_skip;
  for (const KeptEvent& event : run.first().events_of("checkpoint_skipped"))
    after_skip.insert(static_cast<size_t>(event.step) + 1);
  for (int rank = 0; rank < ranks; ++rank) {
    for (size_t step = 4; step <= 14; ++step) {
      if (after_skip.contains(step)) continue;
      const auto& mine = counts[static_cast<size_t>(rank)];
      EXPECT_EQ(mine[step] - mine[step - 1], 0) << "rank " << rank << ", step " << step;
    }
  }
}

TEST(Memory, NothingIsAllocatedAfterTheThirdStep) {
  expect_no_allocations({{"validation.freq", "0"}}, 1);
  expect_no_allocations({{"validation.freq", "0"}, {"parallelism.compute_threads", "2"}}, 3);
}
TEST(Memory, NorWithRecomputeAndResharding) {
  expect_no_allocations({{"validation.freq", "0"},
                         {"activation_checkpoint.mode", "block"},
                         {"parallelism.fsdp_reshard_after_forward", "always"}},
                        2);
  expect_no_allocations({{"validation.freq", "0"}, {"activation_checkpoint.mode", "light"}}, 1);
}
TEST(Memory, NorByValidation) { expect_no_allocations({{"validation.freq", "2"}}, 2); }
TEST(Memory, NorByDigests) { expect_no_allocations({{"debug.hash_every", "1"}}, 2); }
TEST(Memory, NorByCheckpoints) {
  expect_no_allocations({{"checkpoint.interval", "3"}, {"validation.freq", "0"}}, 2);
}

}  // namespace
}  // namespace swax::test
