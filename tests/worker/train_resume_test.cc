// Goal: whatever happens to a run, its state is that of an undisturbed run or the run says why not:
// damaged checkpoints, another spec, non-finite numbers, stop requests, a failing rank, a disk that
// takes nothing.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cmath>

#include "kernels/backend_wrapper.h"
#include "proto/base/files.h"
#include "tests/worker/train_support.h"

namespace swax::test {
namespace {

const TrainData& data() {
  static const TrainData built(200, 200);
  return built;
}

class Resume : public testing::Test {
 protected:
  GroupOptions options(int ranks, uint64_t epoch) const {
    GroupOptions o;
    o.ranks = ranks;
    o.ckpt_root = root();
    o.epoch = epoch;
    return o;
  }
  std::string root() const { return folder_.file("ckpt"); }
  std::string undisturbed(const pb::JobSpec& spec) const {
    GroupOptions o;
    const GroupRun run = run_group(spec, data(), o);
    EXPECT_TRUE(run.agreed());
    return run.first().outcome.digest;
  }
  // Runs to `step` and leaves there with a checkpoint.
  void run_until(const pb::JobSpec& spec, int64_t step, int ranks, uint64_t epoch) const {
    const GroupRun run = run_group(spec, data(), stop_after(options(ranks, epoch), step));
    ASSERT_TRUE(run.agreed());
    ASSERT_EQ(run.first().outcome.kind, RunOutcome::Kind::kStopped);
    ASSERT_EQ(run.first().outcome.step, step);
  }

 private:
  TempFolder folder_;
};

// ---- checkpoints -------------------------------------------------------------------------------

// Changes one byte in the middle of the largest file under `folder`.
void damage_largest_file(const std::string& folder) {
  std::string largest;
  int64_t bytes = -1;
  const auto visit = [&](const auto& self, const std::string& at) -> void {
    const auto names = list_dir(at);
    ASSERT_TRUE(names.ok());
    for (const std::string& name : *names) {
      const std::string path = join_path(at, name);
      if (is_directory(path)) {
        self(self, path);
      } else if (const auto size = file_bytes(path); size.ok() && *size > bytes) {
        bytes = *size;
        largest = path;
      }
    }
  };
  visit(visit, folder);
  const Fd fd(::open(largest.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(fd.valid()) << largest;
  char byte = 0;
  ASSERT_EQ(::pread(fd.get(), &byte, 1, bytes / 2), 1);
  byte = static_cast<char>(byte ^ 4);
  ASSERT_EQ(::pwrite(fd.get(), &byte, 1, bytes / 2), 1);
}

TEST_F(Resume, ADamagedCheckpointIsMarkedAndTheOneBeforeTaken) {
  const pb::JobSpec spec = micro_spec(data());
  run_until(spec, 2, 2, 1);
  run_until(spec, 5, 2, 2);
  const CheckpointName newest = newest_checkpoint(root());
  ASSERT_EQ(newest.step, 5U);
  damage_largest_file(join_path(root(), newest.folder()));

  const GroupRun run = run_group(spec, data(), options(3, 3));
  ASSERT_TRUE(run.agreed());
  EXPECT_EQ(run.first().start_step, 2);
  EXPECT_EQ(run.first().outcome.digest, undisturbed(spec));
  const std::vector<KeptEvent> bad = run.first().events_of("checkpoint_bad");
  ASSERT_EQ(bad.size(), 1U);
  EXPECT_EQ(bad[0].step, 5);
  EXPECT_NE(bad[0].text.find(newest.folder()), std::string::npos) << bad[0].text;
  EXPECT_GT(bad[0].text.size(), newest.folder().size() + 10) << bad[0].text;
  for (const std::string& name : good_checkpoints_of(root())) EXPECT_NE(name, newest.folder());
}

TEST_F(Resume, ACommittedThatCannotBeReadIsSaidOnceAndTheOneBeforeTaken) {
  const pb::JobSpec spec = micro_spec(data());
  run_until(spec, 2, 2, 1);
  run_until(spec, 5, 2, 2);
  const CheckpointName newest = newest_checkpoint(root());
  ASSERT_EQ(newest.step, 5U);
  ASSERT_TRUE(write_atomic(join_path(root(), newest.folder() + "/COMMITTED"), "no manifest").ok());

  const GroupRun run = run_group(spec, data(), stop_after(options(2, 3), 3));
  ASSERT_TRUE(run.agreed());
  EXPECT_EQ(run.first().start_step, 2);
  ASSERT_EQ(run.first().events_of("checkpoint_bad").size(), 1U);
  EXPECT_NE(run.first().events_of("checkpoint_bad")[0].text.find(newest.folder()),
            std::string::npos);
  const GroupRun again = run_group(spec, data(), options(2, 4));
  EXPECT_EQ(again.first().start_step, 3);
  EXPECT_TRUE(again.first().events_of("checkpoint_bad").empty());
}

TEST_F(Resume, WithoutFurtherSavesItStillGoesOnFromTheNewest) {
  pb::JobSpec spec = micro_spec(data());
  run_until(spec, 3, 2, 1);
  spec.mutable_checkpoint()->set_enable(false);
  const GroupRun run = run_group(spec, data(), options(2, 2));
  ASSERT_TRUE(run.agreed());
  EXPECT_EQ(run.first().start_step, 3);
  EXPECT_EQ(newest_checkpoint(root()).step, 3U) << "nothing is saved";
  EXPECT_EQ(run.first().outcome.digest, undisturbed(spec));
}

TEST_F(Resume, WithAllCheckpointsDamagedItBeginsAnew) {
  const pb::JobSpec spec = micro_spec(data());
  run_until(spec, 3, 1, 1);
  damage_largest_file(join_path(root(), newest_checkpoint(root()).folder()));
  const GroupRun run = run_group(spec, data(), options(2, 2));
  ASSERT_TRUE(run.agreed());
  EXPECT_EQ(run.first().start_step, 0);
  EXPECT_EQ(run.first().outcome.digest, undisturbed(spec));
}

TEST_F(Resume, AFinishedRunSaysItsDigestAgain) {
  const pb::JobSpec spec = micro_spec(data());
  const GroupRun first = run_group(spec, data(), options(2, 1));
  const GroupRun again = run_group(spec, data(), options(3, 2));
  ASSERT_TRUE(first.agreed() && again.agreed());
  EXPECT_EQ(again.first().start_step, 8);
  EXPECT_TRUE(again.first().steps.empty());
  EXPECT_EQ(again.first().outcome.digest, first.first().outcome.digest);
  EXPECT_EQ(again.first().outcome.kind, RunOutcome::Kind::kDone);
}

TEST_F(Resume, AnotherNumericIdIsRefused) {
  run_until(micro_spec(data()), 2, 2, 1);
  const std::vector<std::string> before = good_checkpoints_of(root());
  for (const Changes& changes :
       {Changes{{"job.seed", "2"}}, Changes{{"training.reduction_lanes", "4"}}}) {
    const GroupRun run = run_group(micro_spec(data(), changes), data(), options(2, 2));
    for (const RankRun& rank : run.ranks) {
      EXPECT_EQ(rank.status.code(), Code::kFailedPrecondition) << rank.status.to_string();
      EXPECT_NE(rank.status.message().find("numeric_id"), std::string::npos);
      EXPECT_TRUE(rank.steps.empty());
    }
  }
  EXPECT_EQ(good_checkpoints_of(root()), before);
}

TEST_F(Resume, AnotherFingerprintIsSaidAndGoesOn) {
  const pb::JobSpec spec = micro_spec(data());
  run_until(spec, 2, 1, 1);
  GroupOptions other = options(2, 2);
  other.fingerprint = "other cpu";
  const GroupRun run = run_group(spec, data(), other);
  ASSERT_TRUE(run.agreed());
  const std::vector<KeptEvent> said = run.first().events_of("fingerprint_changed");
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].text, "test -> other cpu");
}

TEST_F(Resume, RequestedCheckpointsAreCommittedAndOldOnesRetired) {
  GroupOptions o = options(2, 1);
  const pb::JobSpec spec =
      micro_spec(data(), {{"training.steps", "80"}, {"checkpoint.keep_latest_k", "2"}});
  // The request of one rank holds for all; the second one comes when the first is on disk.
  int64_t first_seen = 0, second = 0;
  o.stepped = [&](int rank, Trainer& trainer, const StepReport& report) {
    if (rank != 1 || second > 0) return;
    if (report.step == 3) trainer.request_checkpoint();
    ::usleep(report.step < 20 ? 10'000 : 100'000);  // a disk that is busy gets more time
    if (first_seen == 0 && !good_checkpoints_of(root()).empty()) first_seen = report.step;
    if (first_seen == 0 || report.step < first_seen + 3) return;
    second = report.step;
    trainer.request_checkpoint();
  };
  const GroupRun run = run_group(spec, data(), o);
  ASSERT_TRUE(run.agreed());
  std::vector<int64_t> committed;
  for (const KeptEvent& event : run.first().events_of("checkpoint_committed"))
    committed.push_back(event.step);
  EXPECT_EQ(committed, (std::vector<int64_t>{3, second, 80}));
  ASSERT_EQ(run.first().events_of("checkpoint_retired").size(), 1U);
  EXPECT_EQ(run.first().events_of("checkpoint_retired")[0].step, 3);
  EXPECT_EQ(run.first().events_of("checkpoint_committed").back().text, run.first().outcome.digest);
  EXPECT_EQ(good_checkpoints_of(root()).size(), 2U);
  EXPECT_TRUE(verify_checkpoint(root(), newest_checkpoint(root()), {}).ok());
}

// A coordinator commits what ranks report.
TEST_F(Resume, ReportedShardsAreEnoughToCommit) {
  const pb::JobSpec spec = micro_spec(data());
  std::mutex mutex;
  std::map<uint32_t, pb::RankDurable> reports;
  GroupOptions o = stop_after(options(3, 1), 4);
  o.report_durable = [&](const pb::RankDurable& report) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(reports.emplace(report.shard().rank(), report).second);
  };
  const GroupRun run = run_group(spec, data(), o);
  ASSERT_TRUE(run.agreed());
  ASSERT_EQ(reports.size(), 3U);
  EXPECT_TRUE(good_checkpoints_of(root()).empty());

  pb::CheckpointManifest manifest = reports[0].base();
  for (auto& [rank, report] : reports) {
    EXPECT_EQ(report.step(), 4U);
    *manifest.add_ranks() = report.shard();
    ASSERT_EQ(report.digest_sums_size(), 2 * manifest.tensors_size());
    for (int t = 0; t < manifest.tensors_size(); ++t) {
      pb::CheckpointTensor& tensor = *manifest.mutable_tensors(t);
      tensor.set_digest0(tensor.digest0() + report.digest_sums(2 * t));
      tensor.set_digest1(tensor.digest1() + report.digest_sums(2 * t + 1));
    }
  }
  manifest.set_run_digest(run.first().outcome.digest);
  const Status committed = commit_checkpoint(root(), manifest);
  ASSERT_TRUE(committed.ok()) << committed.to_string();
  const GroupRun rest = run_group(spec, data(), options(2, 2));
  ASSERT_TRUE(rest.agreed());
  EXPECT_EQ(rest.first().start_step, 4);
  EXPECT_EQ(rest.first().outcome.digest, undisturbed(spec));
}

// ---- non-finite numbers ------------------------------------------------------------------------

// Writes a NaN into the embedding's gradient at one call.
class NanBackend final : public BackendWrapper {
 public:
  NanBackend(Backend& inner, int64_t call) : BackendWrapper(inner), left_(call) {}
  Status embedding_backward(Stream& s, const EmbeddingBackwardArgs& a) override {
    SWAX_TRY(BackendWrapper::embedding_backward(s, a));
    if (left_-- == 0) a.dweight_VD.f32()[7] = std::nanf("");
    return ok();
  }

 private:
  int64_t left_;
};

TEST_F(Resume, ANonFiniteGradientEndsTheRunBeforeItTouchesTheState) {
  const pb::JobSpec spec =
      micro_spec(data(), {{"debug.hash_every", "1"}, {"checkpoint.interval", "4"}});
  GroupOptions o = options(2, 1);
  // 4 slots a step for each of 2 ranks: the third slot of step 6 of rank 1.
  o.wrap = [](int rank, Backend& inner) {
    return std::make_unique<NanBackend>(inner, rank == 1 ? 5 * 4 + 2 : -1);
  };
  const GroupRun run = run_group(spec, data(), o);
  for (const RankRun& rank : run.ranks) {
    ASSERT_TRUE(rank.status.ok()) << rank.status.to_string();
    EXPECT_EQ(rank.outcome.kind, RunOutcome::Kind::kNonFinite);
    EXPECT_NE(rank.outcome.reason.find("step 6"), std::string::npos) << rank.outcome.reason;
    ASSERT_EQ(rank.steps.size(), 6U);
    EXPECT_TRUE(std::isfinite(rank.steps[4].report.grad_norm));
    EXPECT_FALSE(std::isfinite(rank.steps[5].report.grad_norm));
    EXPECT_NE(rank.steps[4].digests, rank.steps[3].digests);
    EXPECT_EQ(rank.steps[5].digests, rank.steps[4].digests);
  }
  EXPECT_EQ(newest_checkpoint(root()).step, 4U);
  // Without the fault the same run goes on to the undisturbed end.
  const GroupRun rest = run_group(spec, data(), options(1, 2));
  ASSERT_TRUE(rest.agreed());
  EXPECT_EQ(rest.first().outcome.digest, undisturbed(spec));
}

// ---- failing ranks and disks -------------------------------------------------------------------

TEST_F(Resume, AFailingRankEndsAllOfThem) {
  const pb::JobSpec spec = micro_spec(data(), {{"checkpoint.interval", "2"}});
  // At the first call, while loading, within a step, at the end of one.
  for (const int64_t call : {0, 3, 17, 60, 61, 62, 63, 64, 65, 200}) {
    GroupOptions o = options(3, static_cast<uint64_t>(call) + 1);
    o.faults.before = [=](int rank, int64_t index) { return rank != 2 || index != call; };
    const GroupRun run = run_group(spec, data(), o);
    for (const RankRun& rank : run.ranks)
      EXPECT_EQ(rank.status.code(), Code::kUnavailable) << call << rank.status.to_string();
  }
  const GroupRun rest = run_group(spec, data(), options(2, 1000));
  ASSERT_TRUE(rest.agreed());
  EXPECT_EQ(rest.first().outcome.digest, undisturbed(spec));
}

TEST_F(Resume, SlowRanksChangeNothing) {
  const pb::JobSpec spec = micro_spec(data(), {{"training.steps", "4"}});
  GroupOptions o = options(3, 1);
  o.faults.before = [](int rank, int64_t index) {
    if ((index + rank) % 11 == 0) ::usleep(2000);
    return true;
  };
  const GroupRun run = run_group(spec, data(), o);
  ASSERT_TRUE(run.agreed());
  EXPECT_EQ(run.first().outcome.digest, undisturbed(spec));
}

// A file stands where the checkpoints should go, from step 1 to step `until`; until then each save
// of `interval` fails before the next one is due, also where its thread comes late.
GroupOptions block_saves(GroupOptions o, int64_t until, int64_t interval = 1000) {
  const std::string root = o.ckpt_root;
  const auto failed = std::make_shared<std::atomic<int64_t>>(0);
  o.on_event = [failed](const KeptEvent& event) {
    if (event.kind == "checkpoint_failed") ++*failed;
  };
  o.stepped = [=](int rank, Trainer&, const StepReport& report) {
    if (rank == 0 && report.step == 1) {
      EXPECT_TRUE(remove_tree(root).ok());
      EXPECT_TRUE(write_atomic(root, "not a folder").ok());
    }
    if (rank == 0 && report.step == until) {
      EXPECT_EQ(::unlink(root.c_str()), 0);
      EXPECT_TRUE(make_dirs(root).ok());
    }
    const bool late = report.step < until && *failed < (report.step - 1) / interval;
    ::usleep(late ? 400'000 : 3'000);  // the writer's time
  };
  return o;
}

TEST_F(Resume, ThreeFailedSavesInARowEndTheRun) {
  const pb::JobSpec spec =
      micro_spec(data(), {{"training.steps", "1000"}, {"checkpoint.interval", "2"}});
  const GroupRun run = run_group(spec, data(), block_saves(options(2, 1), 0));
  for (const RankRun& rank : run.ranks) {
    EXPECT_EQ(rank.status.code(), Code::kResourceExhausted) << rank.status.to_string();
    EXPECT_NE(rank.status.message().find("in a row"), std::string::npos);
  }
  EXPECT_EQ(run.first().events_of("checkpoint_failed").size(), size_t{kSaveFailuresMax});
  EXPECT_LT(run.first().steps.size(), 1000U);
  ASSERT_EQ(::unlink(root().c_str()), 0);
}

TEST_F(Resume, AFailedSaveIsSaidAndTheNextOneCounts) {
  const pb::JobSpec spec =
      micro_spec(data(), {{"training.steps", "40"}, {"checkpoint.interval", "10"}});
  const GroupRun run = run_group(spec, data(), block_saves(options(2, 1), 29, 10));
  ASSERT_TRUE(run.agreed());
  EXPECT_EQ(run.first().events_of("checkpoint_failed").size(), 2U);
  EXPECT_EQ(newest_checkpoint(root()).step, 40U);
  EXPECT_EQ(run.first().outcome.digest, undisturbed(spec));
}

// The last checkpoint is what the run was for: without it the run has not ended well.
TEST_F(Resume, TheLastSaveIsTriedAgainAndItsFailureIsAnError) {
  const pb::JobSpec spec = micro_spec(data());
  const GroupRun run = run_group(spec, data(), block_saves(options(2, 1), 0));
  for (const RankRun& rank : run.ranks)
    EXPECT_EQ(rank.status.code(), Code::kResourceExhausted) << rank.status.to_string();
  const std::vector<KeptEvent> failed = run.first().events_of("checkpoint_failed");
  ASSERT_EQ(failed.size(), size_t{kSaveFailuresMax});
  for (const KeptEvent& event : failed) EXPECT_EQ(event.step, 8);
  ASSERT_EQ(::unlink(root().c_str()), 0);
}

TEST_F(Resume, TheLastSaveSucceedsOnceTheDiskTakesIt) {
  const pb::JobSpec spec = micro_spec(data());
  GroupOptions o = options(2, 1);
  o.stepped = [&](int rank, Trainer&, const StepReport& report) {
    if (rank != 0 || report.step != 8) return;
    EXPECT_TRUE(remove_tree(root()).ok());
    EXPECT_TRUE(write_atomic(root(), "not a folder").ok());
  };
  o.on_event = [&](const KeptEvent& event) {
    if (event.kind != "checkpoint_failed") return;
    EXPECT_EQ(::unlink(root().c_str()), 0);
    EXPECT_TRUE(make_dirs(root()).ok());
  };
  const GroupRun run = run_group(spec, data(), o);
  ASSERT_TRUE(run.agreed());
  EXPECT_EQ(run.first().events_of("checkpoint_failed").size(), 1U);
  EXPECT_EQ(newest_checkpoint(root()).step, 8U);
  EXPECT_TRUE(verify_checkpoint(root(), newest_checkpoint(root()), {}).ok());
}

TEST_F(Resume, PhasesComeInOrder) {
  const pb::JobSpec spec = micro_spec(data(), {{"training.steps", "3"}, {"validation.freq", "2"}});
  const GroupRun run = run_group(spec, data(), options(2, 1));
  ASSERT_TRUE(run.agreed());
  const std::vector<std::string> wanted = {"load",     "warmup", "train", "validate", "train",
                                           "validate", "train",  "save",  "leaving"};
  for (const RankRun& rank : run.ranks) EXPECT_EQ(rank.phases, wanted);
}

}  // namespace
}  // namespace swax::test
