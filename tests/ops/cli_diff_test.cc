// Goal: `swax diff` names the first step, tensor and element in which two runs differ, and says
// nothing where nothing differs. Method: pairs of synthetic state folders with one planted bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "ops/cli/state_diff.h"
#include "ops/cli/state_dir.h"
#include "tests/ops/cli_process.h"
#include "tests/ops/cli_state_fixture.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

using test::PlantedBit;
using test::StateOptions;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr PlantedBit kBit{.step = 17, .tensor = 1, .element = 13};  // model/layers.0.attn.wq[1, 5]

class Diff : public ::testing::Test {
 protected:
  // The two folders of a pair: A as `a` says, B as `b` says.
  Result<RunDiff> diff(const StateOptions& a, const StateOptions& b) {
    SWAX_TRY(test::make_state(dir_ / "a", a));
    SWAX_TRY(test::make_state(dir_ / "b", b));
    return diff_runs(dir_ / "a", dir_ / "b");
  }
  const ScratchDir dir_;
};

TEST_F(Diff, EqualRunsAreEqual) {
  const Result<RunDiff> diff = this->diff({}, {});
  ASSERT_TRUE(diff.ok()) << diff.status().to_string();
  EXPECT_TRUE(diff->equal);
  EXPECT_EQ(diff->steps_compared, 40);
  EXPECT_EQ(diff->digests_compared, 40);
  EXPECT_EQ(diff->checkpoints_compared, 2);
  EXPECT_FALSE(diff->step.has_value() || diff->tensor.has_value() || diff->element.has_value());
  const test::Finished finished = test::run_swax(dir_.path(), {"diff", "a", "b"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
}

TEST_F(Diff, APlantedBitIsNamedByStepTensorAndElement) {
  const StateOptions planted{.planted = kBit};
  const Result<RunDiff> diff = this->diff({}, planted);
  ASSERT_TRUE(diff.ok()) << diff.status().to_string();
  EXPECT_FALSE(diff->equal);
  ASSERT_TRUE(diff->step.has_value());
  EXPECT_EQ(diff->step->step, 17);
  EXPECT_THAT(diff->step->fields, ElementsAre("norm", "tensors"));
  EXPECT_EQ(diff->step->loss_bits[0], diff->step->loss_bits[1]);
  EXPECT_NE(diff->step->norm_bits[0], diff->step->norm_bits[1]);
  ASSERT_TRUE(diff->tensor.has_value());
  EXPECT_EQ(diff->tensor->step, 17);
  EXPECT_EQ(diff->tensor->tensor, "model/layers.0.attn.wq");
  EXPECT_EQ(diff->tensor->differing, 1);
  EXPECT_EQ(diff->tensor->compared, 5);
  ASSERT_TRUE(diff->element.has_value());
  EXPECT_EQ(diff->element->step, 20);  // the first checkpoint after it
  EXPECT_EQ(diff->element->element, 13);
  EXPECT_THAT(diff->element->index, ElementsAre(1, 5));
  EXPECT_EQ(std::bit_cast<uint32_t>(diff->element->value[0]),
            std::bit_cast<uint32_t>(test::state_value({}, 1, 13, 20)));
  EXPECT_EQ(std::bit_cast<uint32_t>(diff->element->value[1]),
            std::bit_cast<uint32_t>(test::state_value(planted, 1, 13, 20)));
}

TEST_F(Diff, TheProgramSaysItWithExitCode4) {
  ASSERT_TRUE(diff({}, {.planted = kBit}).ok());
  const test::Finished text = test::run_swax(dir_.path(), {"diff", "a", "b"});
  EXPECT_EQ(text.exit_code, 4) << text.err;
  EXPECT_THAT(text.out, HasSubstr("first step that differs: 17 (norm, tensors)"));
  EXPECT_THAT(text.out, HasSubstr("first tensor that differs: model/layers.0.attn.wq at step 17"));
  EXPECT_THAT(text.out, HasSubstr("model/layers.0.attn.wq[1, 5], element 13"));
  EXPECT_LE(test::longest_line(text.out), 100U);  // names of tensors are as long as they are
  const test::Finished json = test::run_swax(dir_.path(), {"diff", "a", "b", "-o", "json"});
  EXPECT_EQ(json.exit_code, 4);
  EXPECT_THAT(json.out, HasSubstr("\"equal\": false"));
  EXPECT_THAT(json.out, HasSubstr("\"element\": 13"));
}

TEST_F(Diff, WithoutDigestsTheCheckpointNamesTheTensor) {
  const Result<RunDiff> diff =
      this->diff({.digests_every = 0}, {.digests_every = 0, .planted = kBit});
  ASSERT_TRUE(diff.ok()) << diff.status().to_string();
  ASSERT_TRUE(diff->step && diff->tensor && diff->element);
  EXPECT_EQ(diff->step->step, 17);
  EXPECT_THAT(diff->step->fields, ElementsAre("norm"));
  EXPECT_EQ(diff->tensor->step, 20);
  EXPECT_EQ(diff->tensor->tensor, "model/layers.0.attn.wq");
  EXPECT_EQ(diff->element->element, 13);
  EXPECT_EQ(diff->digests_compared, 0);
}

TEST_F(Diff, SparseDigestsNameTheTensorAtTheNextRecordedStep) {
  const Result<RunDiff> diff = this->diff({.digests_every = 5, .checkpoints = {}},
                                          {.digests_every = 5, .checkpoints = {}, .planted = kBit});
  ASSERT_TRUE(diff.ok()) << diff.status().to_string();
  ASSERT_TRUE(diff->step && diff->tensor);
  EXPECT_EQ(diff->step->step, 17);
  EXPECT_EQ(diff->tensor->step, 20);
  EXPECT_FALSE(diff->element.has_value());
  EXPECT_THAT(diff->notes, Contains(HasSubstr("no checkpoint of step 17 or later")));
}

TEST_F(Diff, CheckpointsAloneCanDiffer) {
  const Result<RunDiff> diff = this->diff(
      {.digests_every = 0}, {.digests_every = 0, .planted = kBit, .planted_in_records = false});
  ASSERT_TRUE(diff.ok()) << diff.status().to_string();
  EXPECT_FALSE(diff->equal);
  EXPECT_FALSE(diff->step.has_value());
  ASSERT_TRUE(diff->element.has_value());
  EXPECT_EQ(diff->element->step, 20);
  EXPECT_EQ(diff->element->element, 13);
}

TEST_F(Diff, AShorterRunIsEqualAsFarAsItGoes) {
  const Result<RunDiff> diff = this->diff({}, {.steps = 25, .checkpoints = {20}});
  ASSERT_TRUE(diff.ok()) << diff.status().to_string();
  EXPECT_TRUE(diff->equal);
  EXPECT_EQ(diff->steps_compared, 25);
  EXPECT_EQ(diff->checkpoints_compared, 1);
}

TEST_F(Diff, FieldsOfTheSpecsThatDifferAreNoted) {
  const Result<RunDiff> diff = this->diff({}, {.lr = 4e-3});
  ASSERT_TRUE(diff.ok()) << diff.status().to_string();
  EXPECT_THAT(diff->notes, Contains(HasSubstr("optimizer.lr is 0.003 in A, 0.004 in B")));
  ASSERT_TRUE(diff->step.has_value());
  EXPECT_EQ(diff->step->step, 1);
  EXPECT_THAT(diff->step->fields, ElementsAre("lr"));
}

TEST_F(Diff, NothingInCommonIsAnError) {
  const Result<RunDiff> diff =
      this->diff({.steps = 0, .checkpoints = {20}}, {.steps = 0, .checkpoints = {40}});
  ASSERT_FALSE(diff.ok());
  EXPECT_EQ(diff.status().code(), Code::kFailedPrecondition);
  const test::Finished missing = test::run_swax(dir_.path(), {"diff", "a", "nowhere"});
  EXPECT_EQ(missing.exit_code, 3);
}

}  // namespace
}  // namespace swax
