// Goal: the presets mean the same for ever: canonical text and ids are stored in tests/data/jobs.
// SWAX_WRITE_GOLDEN=1 writes the files anew (after a deliberate change of a preset or of the
// format).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "jobs/schedule.h"
#include "jobs/spec_fields.h"
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

// A spec that an older build stored, before there was this key.
TEST(Presets, AKeyThatIsNotThereYetGetsItsDefault) {
  for (const std::string& name : test::preset_names()) {
    const pb::JobSpec whole = test::preset(name);
    pb::JobSpec same = whole;
    fill_absent(&same);
    EXPECT_EQ(canonical_text(same, true), canonical_text(whole, true)) << name;
    int cleared = 0;
    for (int s = 0; s < pb::JobSpec::descriptor()->field_count(); ++s) {
      const FieldDescriptor* section = pb::JobSpec::descriptor()->field(s);
      if (!is_section(section) || section->is_repeated()) continue;
      for (int f = 0; f < section->message_type()->field_count(); ++f) {
        const FieldDescriptor* field = section->message_type()->field(f);
        if (field->is_repeated() || is_section(field) || rule_of(field).fallback().empty())
          continue;
        pb::JobSpec old = whole;
        Message* message = old.GetReflection()->MutableMessage(&old, section);
        message->GetReflection()->ClearField(message, field);
        const FieldValue zero = field_value(*message, field, -1);
        const bool zero_is_a_value =
            !field->has_presence() && value_problem(rule_of(field), zero).empty();
        fill_absent(&old);
        EXPECT_EQ(field_value(*message, field, -1), zero_is_a_value ? zero : fallback_value(field))
            << name << " " << section->name() << "." << field->name();
        ++cleared;
      }
    }
    EXPECT_GT(cleared, 20);
  }
  pb::JobSpec old = test::preset("micro");
  old.clear_resources();
  EXPECT_THAT(check_spec(old), testing::Not(testing::IsEmpty()));
  fill_absent(&old);
  EXPECT_THAT(check_spec(old), testing::IsEmpty());
  EXPECT_EQ(old.resources().launcher(), "mpirun");
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
