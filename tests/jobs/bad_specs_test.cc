// Goal: a wrong spec is refused with few, short lines that name the place; nothing crashes and
// nothing takes long.
#include "tests/jobs/bad_specs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "proto/base/rng.h"
#include "proto/base/text.h"
#include "tests/jobs/job_specs.h"

namespace swax {
namespace {

constexpr size_t kLinesMax = 40;
constexpr size_t kLineBytesMax = 700;
constexpr double kSecondsMax = 5.0;  // generous: sanitizers on a shared machine; a few ms are usual

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(BadSpecs, AreRefusedWithThePlace) {
  for (const test::BadSpec& bad : test::bad_specs()) {
    SCOPED_TRACE(bad.name);
    const std::string text = bad.text();
    const auto begin = std::chrono::steady_clock::now();
    const SpecResult result = load_spec(text, "job.toml", bad.sets);
    EXPECT_LT(seconds_since(begin), kSecondsMax);
    EXPECT_FALSE(result.ok());
    EXPECT_LE(result.problems.size(), kLinesMax);
    const std::string problems = test::problems_text(result);
    EXPECT_NE(problems.find(bad.expect), std::string::npos) << problems;
    for (const SpecProblem& problem : result.problems) {
      const std::string line = problem.text();
      EXPECT_TRUE(line.starts_with("job.toml") || line.starts_with("--set ")) << line;
      EXPECT_LE(line.size(), kLineBytesMax) << line;
      EXPECT_EQ(line.find('\n'), std::string::npos) << line;
      EXPECT_TRUE(valid_utf8(line));
    }
  }
}

TEST(BadSpecs, HaveUniqueNames) {
  std::set<std::string> names;
  for (const test::BadSpec& bad : test::bad_specs())
    EXPECT_TRUE(names.insert(bad.name).second) << bad.name;
  EXPECT_GE(names.size(), 60U);
}

// One mistake gives one message, also where relations read the field.
TEST(BadSpecs, OneMistakeGivesOneMessage) {
  for (const auto& [line, by] : std::vector<std::pair<const char*, const char*>>{
           {"steps = 10", "steps = \"10\""},
           {"dim = 16", "dim = 0"},
           {"heads = 2", "heads = 2000"},
           {"head_dim = 8", "head_dim = 7"},
           {"seq_len = 32", "seq_len = 0"},
           {"global_batch_size = 4", "global_batch_size = -1"},
           {"short = 4", "short = 0"},
           {"steps = 10\n", ""},
           {"layers = 2\n", ""},
           {"vocab_size = 260", "vocab_size = 1"},
           {"name = \"s\"", "name = \"S\""},
           {"text = \"debian:kjv\"", "text = \"x\""},
           {"seed = 7\n", ""},
           {"lr = 0.001", "lr = 1e9"}}) {
    const SpecResult result = test::load(test::minimal_with(line, by));
    EXPECT_EQ(result.problems.size(), 1U) << by << "\n" << test::problems_text(result);
  }
}

TEST(BadSpecs, AllProblemsAtOnceInTheOrderOfLines) {
  std::string text = test::minimal_text();
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"name = \"a\"", "name = \"A\""},
                                                        {"dim = 16", "dim = 1"},
                                                        {"short = 4", "shart = 4"},
                                                        {"steps = 10", "steps = 1.0"},
                                                        {"lr = 0.001", "lr = true"}})
    text.replace(text.find(from), from.size(), to);
  const SpecResult result = test::load(text, {{"debug.hash_every", "-1"}});
  const std::string wanted =
      "job.toml:3: job.name: \"A\" is not a name: must match [a-z0-9][a-z0-9._-]{0,62}\n"
      "job.toml:7: model.dim: 1 is out of range 2..65536; nearest valid value is 2\n"
      "job.toml:15: window.short: required key is missing (short attention window in keys, self "
      "included)\n"
      "job.toml:16: window.shart: unknown key; nearest known key is \"window.short\"\n"
      "job.toml:19: training.steps: 1.0 is a float: must be an integer, write 1\n"
      "job.toml:23: optimizer.lr: must be a number, not a boolean\n"
      "--set debug.hash_every: -1 is out of range 0..1000000000; nearest valid "
      "value is 0\n";
  EXPECT_EQ(test::problems_text(result), wanted);
}

TEST(BadSpecs, ManyProblemsAreCounted) {
  std::string text = test::minimal_text() + "[debug]\n";
  for (int i = 0; i < 100; ++i) text += "k" + std::to_string(i) + " = 1\n";
  const SpecResult result = test::load(text);
  ASSERT_EQ(result.problems.size(), static_cast<size_t>(kSpecProblemsShown) + 1);
  EXPECT_EQ(result.problems.back().text(), "job.toml: 70 more problems");
  EXPECT_FALSE(result.ok());
}

// Limits are exact: what is just inside reaches the parser.
TEST(BadSpecs, LimitsAreNotTooStrict) {
  std::string full = test::minimal_text();
  while (static_cast<int64_t>(full.size()) + 2 <= kSpecBytesMax) full += "#\n";
  EXPECT_TRUE(test::load(full).ok());
  EXPECT_TRUE(test::load(test::minimal_text() + "#" + std::string(4095, 'x')).ok());
  const auto only_unknown = [](const std::string& line) {
    const std::string problems =
        test::problems_text(test::load(line + "\n" + test::minimal_text()));
    return problems.find("unknown key") != std::string::npos &&
           problems.find("nested") == std::string::npos &&
           problems.find("dotted") == std::string::npos;
  };
  EXPECT_TRUE(only_unknown("a.b.c.d.e.f.g.h = 1"));
  EXPECT_TRUE(only_unknown("a = [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]"));
  EXPECT_TRUE(only_unknown("a = \"[[[[[[[[[[[[[[[[[[[[ a.b.c.d.e.f.g.h.i.j\""));
  EXPECT_TRUE(only_unknown("a = '''\n[[[[[[[[[[[[[[[[[[[[ a.b.c.d.e.f.g.h.i.j '' '''"));
  EXPECT_TRUE(
      only_unknown("a = \"\"\"[[[[[[[[[[ \\\"\"\" [[[[[[[[[[\n a.b.c.d.e.f.g.h.i\"\"\"\"\""));
  EXPECT_TRUE(only_unknown("a = 1 # [[[[[[[[[[[[[[[[[[[[[ a.b.c.d.e.f.g.h.i.j"));
}

// Any bytes: a spec with one random change either loads or names a problem.
TEST(BadSpecs, RandomChangesNeverCrash) {
  const std::string base = test::minimal_text();
  constexpr std::string_view kPieces[] = {"[",   "]",    "{",   "}",  "=",      ".",  "\"",
                                          "'''", "\n",   "#",   ",",  "\"\"\"", "\\", "e9",
                                          "-",   "\xC3", "nan", "0x", "[["};
  for (uint64_t i = 0; i < 3000; ++i) {
    const PhiloxBlock draw = random_block(5, Purpose::kTest, i);
    std::string text = base;
    const size_t at = draw[0] % text.size();
    if (draw[1] % 3 == 0) {
      text.erase(at, 1 + draw[2] % 20);
    } else {
      const std::string_view piece = kPieces[draw[2] % std::size(kPieces)];
      for (uint32_t k = 0; k <= draw[3] % 20; ++k) text.insert(at, piece);
    }
    const SpecResult result = test::load(text);
    EXPECT_TRUE(result.ok() || !result.problems.empty());
    if (result.ok()) {
      EXPECT_TRUE(check_spec(result.spec).empty() || result.ok());
    }
  }
}

}  // namespace
}  // namespace swax
