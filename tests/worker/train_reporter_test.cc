// Goal: what a rank reports is in the record log, in order and to the bit, and the compute thread
// is never held for good.
#include <bit>
#include <thread>

#include "proto/record.pb.h"
#include "storage/record_log.h"
#include "tests/worker/train_support.h"
#include "worker/train/reporter.h"
#include "worker/train/step_queue.h"

namespace swax::test {
namespace {

StepReport step_report(int64_t step) {
  StepReport r;
  r.step = step;
  r.window = 32;
  r.loss = 5.0 / static_cast<double>(step);
  r.grad_norm = 0.1 * static_cast<double>(step);
  r.targets = 500 + step;
  r.tokens = 512;
  r.step_ns = 1000 * step;
  r.lr = 0.25F;
  return r;
}

std::vector<pb::RankReport> read_log(const std::string& path) {
  std::vector<pb::RankReport> reports;
  auto reader = RecordLogReader::open(path);
  EXPECT_TRUE(reader.ok());
  std::string payload;
  while (reader.ok()) {
    const auto more = reader->next(&payload);
    EXPECT_TRUE(more.ok());
    if (!more.ok() || !*more) break;
    pb::RankReport report;
    EXPECT_TRUE(report.ParseFromString(payload));
    reports.push_back(report);
  }
  return reports;
}

TEST(Reporter, RoundTrip) {
  const TempFolder folder;
  const std::string path = folder.file("a1.log");
  const std::vector<DigestSums> sums = {{1, 2}, {3, 0xffffffffffffffffULL}};
  {
    auto reporter = RecordReporter::create(path, 7, 3, {"model/a", "adam_m/a"});
    ASSERT_TRUE(reporter.ok());
    StepReport report = step_report(1);
    report.digests = sums;
    (*reporter)->step(report);
    (*reporter)->step(step_report(2));
    (*reporter)->validation({.step = 2,
                             .loss = 1.5,
                             .bits_per_byte = 2.25,
                             .targets = 9,
                             .text_bytes = 8,
                             .final = true});
    (*reporter)->event("checkpoint_committed", 2, "abc");
    pb::RankReport done;
    done.mutable_done()->set_outcome("done");
    (*reporter)->write(done);
    (*reporter)->step(step_report(3));
  }  // what is queued is written
  const std::vector<pb::RankReport> log = read_log(path);
  ASSERT_EQ(log.size(), 6U);
  const pb::StepRecord& first = log[0].step();
  EXPECT_EQ(first.step(), 1U);
  EXPECT_EQ(first.epoch(), 7U);
  EXPECT_EQ(first.world_size(), 3U);
  EXPECT_EQ(first.window(), 32U);
  EXPECT_EQ(std::bit_cast<double>(uint64_t{first.loss_bits()}), 5.0);
  EXPECT_EQ(std::bit_cast<double>(uint64_t{first.norm_bits()}), 0.1);
  EXPECT_EQ(first.targets(), 501U);
  EXPECT_EQ(first.tokens(), 512U);
  EXPECT_EQ(first.step_ns(), 1000);
  EXPECT_EQ(first.lr(), 0.25F);
  ASSERT_EQ(first.digests_size(), 2);
  EXPECT_EQ(first.digests(1).name(), "adam_m/a");
  EXPECT_EQ(first.digests(1).digest1(), 0xffffffffffffffffULL);
  EXPECT_EQ(log[1].step().step(), 2U);
  EXPECT_EQ(log[1].step().digests_size(), 0);
  EXPECT_EQ(std::bit_cast<double>(uint64_t{log[2].validation().bpb_bits()}), 2.25);
  EXPECT_TRUE(log[2].validation().final());
  EXPECT_EQ(log[3].event().kind(), "checkpoint_committed");
  EXPECT_EQ(log[3].event().epoch(), 7U);
  EXPECT_EQ(log[4].done().outcome(), "done");
  EXPECT_EQ(log[5].step().step(), 3U);
}

TEST(Reporter, AnotherAttemptsLogIsNeverOverwritten) {
  const TempFolder folder;
  ASSERT_TRUE(RecordReporter::create(folder.file("a1.log"), 1, 1, {}).ok());
  EXPECT_EQ(RecordReporter::create(folder.file("a1.log"), 1, 1, {}).status().code(),
            Code::kAlreadyExists);
}

// Far more steps than the queue holds, as fast as they come, with events of other threads between:
// all arrive, steps in order.
TEST(Reporter, AFullQueueWaitsAndLosesNothing) {
  const TempFolder folder;
  const std::string path = folder.file("a1.log");
  constexpr int64_t kSteps = 20 * int64_t{StepQueue::kItems}, kEvents = 50;
  {
    auto reporter = RecordReporter::create(path, 1, 1, {"t"});
    ASSERT_TRUE(reporter.ok());
    std::thread events([&] {
      for (int64_t i = 0; i < kEvents; ++i) (*reporter)->event("note", i, "text");
    });
    const std::vector<DigestSums> sums(1);
    for (int64_t step = 1; step <= kSteps; ++step) {
      StepReport report = step_report(step);
      report.digests = sums;
      (*reporter)->step(report);
      if (step % 1000 == 0) (*reporter)->validation({.step = step});
    }
    events.join();
  }
  int64_t steps = 0, notes = 0, validations = 0;
  for (const pb::RankReport& report : read_log(path)) {
    if (report.has_step()) {
      EXPECT_EQ(report.step().step(), static_cast<uint64_t>(++steps));
    }
    if (report.has_event()) {
      EXPECT_EQ(report.event().step(), static_cast<uint64_t>(notes++));
    }
    if (report.has_validation()) {
      ++validations;
      EXPECT_EQ(report.validation().step(), static_cast<uint64_t>(steps));
    }
  }
  EXPECT_EQ(steps, kSteps);
  EXPECT_EQ(notes, kEvents);
  EXPECT_EQ(validations, kSteps / 1000);
}

TEST(StepQueue, IsFirstInFirstOutAndCountsWhatItDrops) {
  StepQueue queue;
  queue.size_digests(2);
  StepQueue::Item item;
  EXPECT_FALSE(queue.pop(&item));
  const std::vector<DigestSums> sums = {{1, 2}, {3, 4}};
  const int64_t room = int64_t{StepQueue::kItems};
  for (int64_t step = 1; step <= room + 3; ++step) {
    EXPECT_EQ(queue.full(), step > room);
    StepReport report = step_report(step);
    if (step % 2 == 0) report.digests = sums;
    queue.push(report, 100 + step);
  }
  EXPECT_EQ(queue.dropped(), 3);
  for (int64_t step = 4; step <= room + 3; ++step) {
    ASSERT_TRUE(queue.pop(&item));
    EXPECT_EQ(item.report.step, step);
    EXPECT_EQ(item.wall_ms, 100 + step);
    EXPECT_EQ(item.digests, step % 2 == 0 ? sums : std::vector<DigestSums>());
  }
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.pop(&item));
}

// The reporter as a run uses it.
TEST(Reporter, ARunIsInItsLog) {
  const TrainData data(60, 200);
  const TempFolder folder;
  const pb::JobSpec spec = micro_spec(data, {{"debug.hash_every", "1"}});
  auto shape = model_shape(spec.model());
  ASSERT_TRUE(shape.ok());
  std::vector<std::string> names;
  for (int kind = 0; kind < kStateKinds; ++kind)
    for (size_t t = 0; t < shape->tensors.size(); ++t)
      names.push_back(state_tensor_name(*shape, kind, static_cast<int>(t)));
  const GroupRun run = run_group(spec, data, {});
  ASSERT_TRUE(run.agreed());
  {
    auto reporter = RecordReporter::create(folder.file("log"), 1, 1, names);
    ASSERT_TRUE(reporter.ok());
    for (const KeptStep& kept : run.first().steps) {
      StepReport report = kept.report;
      report.digests = kept.digests;
      (*reporter)->step(report);
    }
  }
  const std::vector<pb::RankReport> log = read_log(folder.file("log"));
  ASSERT_EQ(log.size(), run.first().steps.size());
  for (size_t i = 0; i < log.size(); ++i) {
    const KeptStep& kept = run.first().steps[i];
    EXPECT_EQ(log[i].step().loss_bits(), std::bit_cast<uint64_t>(kept.report.loss));
    ASSERT_EQ(log[i].step().digests_size(), static_cast<int>(names.size()));
    for (size_t t = 0; t < names.size(); ++t) {
      const pb::TensorDigest& digest = log[i].step().digests(static_cast<int>(t));
      EXPECT_EQ(digest.name(), names[t]);
      EXPECT_EQ(digest.digest0(), kept.digests[t].sum0);
    }
  }
}

// A value of nothing would look like a perfect one.
TEST(Report, WithoutAHeldOutWindowNothingIsValidated) {
  const TrainData little(3, 200);  // none of so few documents is held out
  const pb::JobSpec spec = micro_spec(little, {{"training.steps", "3"}, {"validation.freq", "2"}});
  GroupOptions options;
  options.ranks = 2;
  const GroupRun run = run_group(spec, little, options);
  ASSERT_TRUE(run.agreed());
  const std::vector<std::string> wanted = {"load", "warmup", "train", "save", "leaving"};
  for (const RankRun& rank : run.ranks) {
    EXPECT_EQ(rank.phases, wanted);
    EXPECT_TRUE(rank.validations.empty());
    EXPECT_EQ(rank.outcome.validation_bpb, 0.0);  // stands for "never reported"
  }
}

}  // namespace
}  // namespace swax::test
