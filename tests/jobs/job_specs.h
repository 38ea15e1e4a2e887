// Specs for tests: the presets and loading.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "jobs/spec.h"
#include "proto/base/files.h"
#include "tests/jobs/spec_texts.h"

namespace swax::test {

inline const std::vector<std::string>& preset_names() {
  static const std::vector<std::string> names = {"quickstart", "micro",     "nano",
                                                 "125m",       "swax-1.4b", "swax-7b"};
  return names;
}

inline std::string preset_text(const std::string& name) {
  auto text = read_file(std::string(SWAX_SOURCE_DIR) + "/jobs/" + name + ".toml", kSpecBytesMax);
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  return text.ok() ? *text : "";
}

inline std::string problems_text(const SpecResult& result) {
  std::string text;
  for (const SpecProblem& problem : result.problems) text += problem.text() + "\n";
  return text;
}

inline SpecResult load(const std::string& text, const std::vector<SpecOverride>& overrides = {}) {
  return load_spec(text, "job.toml", overrides);
}

inline pb::JobSpec preset(const std::string& name,
                          const std::vector<SpecOverride>& overrides = {}) {
  SpecResult result = load_spec(preset_text(name), name + ".toml", overrides);
  EXPECT_TRUE(result.ok()) << problems_text(result);
  return result.spec;
}

}  // namespace swax::test
