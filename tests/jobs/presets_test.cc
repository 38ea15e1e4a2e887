// Goal: the presets mean the same for ever: canonical text and ids are stored in tests/data/jobs.
// SWAX_WRITE_GOLDEN=1 writes the files anew (after a deliberate change of a preset or of the
// format).
#include <gtest/gtest.h>

#include <cstdlib>

#include "jobs/schedule.h"
#include "tests/jobs/job_specs.h"

namespace swax {
namespace {

std::string golden_path(const std::string& file) {
  return std::string(SWAX_SOURCE_DIR) + "/tests/data/jobs/" + file;
}

void expect_golden(const std::string& file, const std::string& text) {
  if (std::getenv("SWAX_WRITE_GOLDEN") != nullptr) {
    ASSERT_TRUE(write_atomic(golden_path(file), text).ok());
  }
  const auto stored = read_file(golden_path(file), 1 << 20);
  ASSERT_TRUE(stored.ok()) << stored.status().to_string();
  EXPECT_EQ(text, *stored) << file;
}

TEST(Presets, CanonicalTextAndIds) {
  std::string ids;
  for (const std::string& name : test::preset_names()) {
    const pb::JobSpec spec = test::preset(name);
    expect_golden(name + ".canonical.txt", canonical_text(spec, true));
    ids += name + "\t" + numeric_id(spec).hex() + "\t" + spec_hash(spec).hex() + "\n";
  }
  expect_golden("ids.tsv", ids);
}

TEST(Presets, LoadWithoutAnyProblem) {
  for (const std::string& name : test::preset_names()) {
    const SpecResult result = load_spec(test::preset_text(name), name + ".toml", {});
    EXPECT_TRUE(result.problems.empty()) << test::problems_text(result);
    EXPECT_EQ(result.spec.job().name(), name);
    EXPECT_TRUE(check_spec(result.spec).empty());
  }
}

TEST(Presets, PublishedRunsSeeTheirTokens) {
  for (const char* name : {"swax-1.4b", "swax-7b"}) {
    const pb::JobSpec spec = test::preset(name);
    const double tokens = static_cast<double>(total_steps(spec)) * spec.training().seq_len() *
                          spec.training().global_batch_size();
    EXPECT_GE(tokens, 150e9) << name;
    EXPECT_LT(tokens, 150.01e9) << name;
    EXPECT_EQ(spec.training().seq_len(), 16384U);
    EXPECT_EQ(spec.window().short_(), 128U);
    EXPECT_EQ(spec.window().long_(), 2048U);
  }
}

}  // namespace
}  // namespace swax
