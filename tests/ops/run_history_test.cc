// Goal: a step that two attempts made is compared bit by bit, and a damaged record log never stops
// a run. Method: record logs written by hand, with a torn tail and with a flipped byte.
#include <gtest/gtest.h>

#include <unistd.h>

#include <bit>
#include <cmath>

#include "ops/cli/run_history.h"
#include "storage/record_log.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

pb::StepRecord step_record(uint64_t step, uint64_t epoch, double loss, double norm = 1.0) {
  pb::StepRecord record;
  record.set_step(step);
  record.set_epoch(epoch);
  record.set_loss_bits(std::bit_cast<uint64_t>(loss));
  record.set_norm_bits(std::bit_cast<uint64_t>(norm));
  return record;
}

void write_log(const StateDir& state, uint64_t epoch, int steps) {
  ASSERT_TRUE(make_dirs(state.records_folder()).ok());
  auto writer = RecordLogWriter::create(state.records_path(epoch));
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  for (int s = 1; s <= steps; ++s) {
    pb::RankReport report;
    *report.mutable_step() = step_record(static_cast<uint64_t>(s), epoch, s);
    ASSERT_TRUE(writer->append(report.SerializeAsString()).ok());
  }
}

TEST(StepBits, AcceptsEqualBitsOfALaterAttempt) {
  StepBits bits(100);
  EXPECT_FALSE(bits.add(step_record(7, 1, 2.5)));
  EXPECT_FALSE(bits.add(step_record(7, 2, 2.5)));
  EXPECT_FALSE(bits.add(step_record(8, 2, 2.5)));
}

TEST(StepBits, NamesBothAttemptsAndValuesOfADifference) {
  StepBits bits(100);
  EXPECT_FALSE(bits.add(step_record(7, 1, 2.5)));
  const auto difference = bits.add(step_record(7, 3, std::nextafter(2.5, 3.0)));
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, 7U);
  EXPECT_EQ(difference->earlier_epoch, 1U);
  EXPECT_EQ(difference->later_epoch, 3U);
  EXPECT_NE(difference->text.find("4004000000000000"), std::string::npos) << difference->text;
  EXPECT_NE(difference->text.find("4004000000000001"), std::string::npos) << difference->text;
}

TEST(StepBits, ComparesTheNormAndTheDigests) {
  StepBits bits(100);
  pb::StepRecord first = step_record(7, 1, 2.5);
  pb::TensorDigest& digest = *first.add_digests();
  digest.set_name("model/embed");
  digest.set_digest0(1);
  EXPECT_FALSE(bits.add(first));
  EXPECT_TRUE(bits.add(step_record(7, 2, 2.5, 1.5)));
  first.set_epoch(2);
  EXPECT_FALSE(bits.add(first));
  first.mutable_digests(0)->set_digest1(9);
  const auto difference = bits.add(first);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->text, "tensor digests");
}

TEST(StepBits, IgnoresStepsThatTheRunCannotMake) {
  StepBits bits(10);
  EXPECT_FALSE(bits.add(step_record(1ULL << 60, 1, 1.0)));
  EXPECT_FALSE(bits.add(step_record(1ULL << 60, 2, 2.0)));
  EXPECT_FALSE(bits.add(step_record(0, 2, 2.0)));
}

TEST(StepBits, TakesOnlyEarlierAttempts) {
  const ScratchDir dir;
  const StateDir state(dir.path());
  write_log(state, 1, 5);
  write_log(state, 2, 5);
  StepBits bits(100);
  EXPECT_TRUE(bits.load_before(state, 2).empty());
  const auto difference = bits.add(step_record(5, 2, 99.0));
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->earlier_epoch, 1U);
}

TEST(StepBits, ReadsATornLogUpToTheTear) {
  const ScratchDir dir;
  const StateDir state(dir.path());
  write_log(state, 1, 5);
  const std::string path = state.records_path(1);
  const auto bytes = read_file(path, 1 << 20);
  ASSERT_TRUE(bytes.ok());
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(bytes->size() - 3)), 0);
  StepBits bits(100);
  EXPECT_TRUE(bits.load_before(state, 2).empty());
  EXPECT_TRUE(bits.add(step_record(4, 2, 99.0)));
  EXPECT_FALSE(bits.add(step_record(5, 2, 99.0)));
}

TEST(StepBits, NamesADamagedLogAndUsesWhatStandsBefore) {
  const ScratchDir dir;
  const StateDir state(dir.path());
  write_log(state, 1, 5);
  const std::string path = state.records_path(1);
  auto bytes = read_file(path, 1 << 20);
  ASSERT_TRUE(bytes.ok());
  (*bytes)[bytes->size() / 2] ^= 0x10;
  ASSERT_TRUE(write_atomic(path, *bytes).ok());
  StepBits bits(100);
  const std::vector<std::string> problems = bits.load_before(state, 2);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_NE(problems[0].find("a1.log"), std::string::npos) << problems[0];
  EXPECT_TRUE(bits.add(step_record(1, 2, 99.0)));
}

TEST(StepHistory, KeepsTheNewestRecordOfAStep) {
  const ScratchDir dir;
  const StateDir state(dir.path());
  write_log(state, 2, 3);
  write_log(state, 10, 2);
  const auto epochs = recorded_epochs(state);
  ASSERT_TRUE(epochs.ok());
  EXPECT_EQ(*epochs, (std::vector<uint64_t>{2, 10}));
  const auto history = load_step_history(state);
  ASSERT_TRUE(history.ok());
  ASSERT_EQ(history->steps.size(), 3U);
  EXPECT_EQ(history->steps[1].epoch(), 10U);
  EXPECT_EQ(history->steps[2].epoch(), 2U);
}

}  // namespace
}  // namespace swax
