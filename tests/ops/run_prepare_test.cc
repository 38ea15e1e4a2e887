// Goal: a job that does not fit is refused with numbers; data sets are found, built once and
// written into the spec. Method: the quickstart spec with small and large limits, and texts on
// disk.
#include <gtest/gtest.h>

#include "jobs/spec.h"
#include "ops/cli/run_prepare.h"
#include "proto/base/ids.h"
#include "tests/proto/scratch_dir.h"

namespace swax {
namespace {

pb::JobSpec micro_spec(std::vector<SpecOverride> overrides = {}) {
  const auto text = read_file(std::string(SWAX_SOURCE_DIR) + "/jobs/micro.toml", 1 << 20);
  SWAX_CHECK(text.ok());
  SpecResult result = load_spec(*text, "micro.toml", overrides);
  for (const SpecProblem& problem : result.problems) ADD_FAILURE() << problem.text();
  return result.spec;
}

TEST(RunMemory, FitsIntoEnoughAndNotIntoLess) {
  const pb::JobSpec spec = micro_spec();
  EXPECT_TRUE(check_memory(spec, 64 * kGiB).ok());
  const Status refused = check_memory(spec, 1 * kMiB);
  ASSERT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.message().find("1.00 MiB are available"), std::string::npos)
      << refused.message();
  EXPECT_NE(refused.message().find("no allowed setting fits"), std::string::npos);
}

TEST(RunMemory, NamesTheNearestSettingThatFits) {
  const pb::JobSpec spec = micro_spec({{.path = "parallelism.ranks", .value = "8"}});
  pb::JobSpec one = spec;
  one.mutable_parallelism()->set_ranks(1);
  int64_t enough_for_one = kMiB;
  while (!check_memory(one, enough_for_one).ok()) enough_for_one += kMiB;
  const Status refused = check_memory(spec, enough_for_one);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.message().find("--ranks 1 "), std::string::npos) << refused.message();
}

TEST(RunMemory, KnowsWhatIsAvailable) {
  const auto available = available_memory();
  ASSERT_TRUE(available.ok()) << available.status().to_string();
  EXPECT_GT(*available, 0);
}

TEST(RunData, BuildsATextOnce) {
  const ScratchDir dir;
  ASSERT_TRUE(write_atomic(dir / "text.txt", "In the beginning.\n\nAnd the earth.\n\n").ok());
  pb::JobSpec spec = micro_spec({{.path = "training.seq_len", .value = "16"}});
  pb::DataSource& source = *spec.mutable_data()->mutable_sources(0);
  source.set_text("file:" + (dir / "text.txt"));
  const StateDir state(dir / "state");
  int64_t calls = 0;
  const auto count = [&calls](const std::string&, int64_t) { ++calls; };
  const Status first = prepare_data(state, nullptr, &spec, count);
  ASSERT_TRUE(first.ok()) << first.to_string();
  EXPECT_EQ(source.digest().size(), 32U);
  EXPECT_TRUE(is_directory(state.data_folder() + "/" + source.digest()));

  // The recorded digest stands for the text: it is not read again, even if it is gone.
  ASSERT_TRUE(remove_tree(dir / "text.txt").ok());
  const pb::JobSpec recorded = spec;
  pb::JobSpec typed = spec;
  typed.mutable_data()->mutable_sources(0)->clear_digest();
  calls = 0;
  const Status again = prepare_data(state, &recorded, &typed, count);
  ASSERT_TRUE(again.ok()) << again.to_string();
  EXPECT_EQ(typed.data().sources(0).digest(), recorded.data().sources(0).digest());
  EXPECT_EQ(calls, 0);
}

TEST(RunData, NamesTheSourceThatIsMissing) {
  const ScratchDir dir;
  pb::JobSpec spec = micro_spec();
  pb::DataSource& source = *spec.mutable_data()->mutable_sources(0);
  source.clear_text();
  source.set_path(dir / "nothing");
  const auto ignore = [](const std::string&, int64_t) {};
  const Status data = prepare_data(StateDir(dir.path()), nullptr, &spec, ignore);
  ASSERT_FALSE(data.ok());
  EXPECT_NE(data.message().find("data.sources[0].path: "), std::string::npos) << data.message();
  source.clear_path();
  source.set_text("file:" + (dir / "nothing"));
  const Status text = prepare_data(StateDir(dir / "state"), nullptr, &spec, ignore);
  EXPECT_EQ(text.code(), Code::kNotFound);
  EXPECT_NE(text.message().find("data.sources[0].text: "), std::string::npos) << text.message();
  EXPECT_FALSE(path_exists(dir / "state"));
}

// A text of some documents; which are held out is a function of them.
pb::JobSpec text_spec(const ScratchDir& dir, int documents) {
  std::string text;
  for (int i = 0; i < documents; ++i) text += "document " + std::to_string(i) + "\n\n";
  EXPECT_TRUE(write_atomic(dir / "text.txt", text).ok());
  pb::JobSpec spec = micro_spec();
  spec.mutable_data()->mutable_sources(0)->set_text("file:" + (dir / "text.txt"));
  return spec;
}

std::string said_by_prepare(const ScratchDir& dir, pb::JobSpec spec, Status* status) {
  testing::internal::CaptureStderr();
  const auto ignore = [](const std::string&, int64_t) {};
  *status = prepare_data(StateDir(dir / "state"), nullptr, &spec, ignore);
  return testing::internal::GetCapturedStderr();
}

TEST(RunData, RefusesATextThatIsShorterThanAWindow) {
  const ScratchDir dir;
  pb::JobSpec spec = text_spec(dir, 3);  // of 10 bytes and EOD; one is held out
  Status status;
  for (const uint32_t seq_len : {256U, 22U}) {
    spec.mutable_training()->set_seq_len(seq_len);
    said_by_prepare(dir, spec, &status);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "training.seq_len: " + std::to_string(seq_len) +
                  " is too long for data.sources[0].text, which has 22 training tokens: it must "
                  "have seq_len + 1; nearest valid value is 21");
  }
  spec.mutable_training()->set_seq_len(21);
  said_by_prepare(dir, spec, &status);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(RunData, WarnsWhereThereIsNothingToValidate) {
  const ScratchDir dir;
  pb::JobSpec spec = text_spec(dir, 200);
  Status status;
  spec.mutable_training()->set_seq_len(1000);
  const std::string warning = said_by_prepare(dir, spec, &status);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_NE(warning.find("warning: training.seq_len: the held-out text has "), std::string::npos)
      << warning;
  spec.mutable_training()->set_seq_len(8);
  EXPECT_EQ(said_by_prepare(dir, spec, &status), "");
  EXPECT_TRUE(status.ok()) << status.to_string();
}

}  // namespace
}  // namespace swax
