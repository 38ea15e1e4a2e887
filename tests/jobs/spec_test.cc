// Goal: a valid spec becomes the message it says, with every default, and goes through text and ids
// unchanged.
#include "jobs/spec.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "jobs/model_shape.h"
#include "jobs/schedule.h"
#include "jobs/spec_fields.h"
#include "jobs/spec_place.h"
#include "proto/base/rng.h"
#include "proto/base/text.h"
#include "tests/jobs/job_specs.h"

namespace swax {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::ElementsAre;
using testing::HasSubstr;

pb::JobSpec minimal(const std::vector<SpecOverride>& overrides = {}) {
  const SpecResult result = test::load(test::minimal_text(), overrides);
  EXPECT_TRUE(result.ok()) << test::problems_text(result);
  EXPECT_TRUE(result.problems.empty()) << test::problems_text(result);
  return result.spec;
}

TEST(Spec, DefaultsAreFilled) {
  const pb::JobSpec spec = minimal();
  EXPECT_EQ(spec.job().start(), "fresh");
  EXPECT_EQ(spec.model().pattern(), "SM");
  EXPECT_EQ(spec.model().kv_heads(), 2U);
  EXPECT_EQ(spec.model().rope_base(), 10000.0);
  EXPECT_EQ(spec.model().norm_eps(), 1e-6);
  EXPECT_TRUE(spec.model().doc_reset());
  EXPECT_EQ(spec.model().mlstm_chunk(), 32U);
  EXPECT_EQ(spec.training().reduction_lanes(), 8U);
  EXPECT_EQ(spec.training().backend(), "cpu");
  EXPECT_EQ(spec.parallelism().ranks(), 1U);
  EXPECT_THAT(spec.parallelism().allowed_ranks(), ElementsAre(1U));
  EXPECT_EQ(spec.optimizer().beta2(), 0.95);
  EXPECT_EQ(spec.data().sources(0).weight(), 1.0);
  EXPECT_TRUE(spec.checkpoint().enable());
  EXPECT_EQ(spec.checkpoint().interval(), 100U);
  EXPECT_EQ(spec.fault_tolerance().max_restarts(), 20U);
}

TEST(Spec, PlacesOfFields) {
  const std::string text = test::minimal_text();
  const auto place = [&](const std::string& field) {
    return spec_place(text, "job.toml", {{"data.sources[0].name", "t"}}, field);
  };
  EXPECT_EQ(place("job.name"), "job.toml:3");
  EXPECT_EQ(place("data.sources[0].text"), "job.toml:26");
  EXPECT_EQ(place("data.sources[0].name"), "--set data.sources[0].name");
  EXPECT_EQ(place("data.sources[0].path"), "job.toml:24");  // not given: its section
  EXPECT_EQ(place("debug.hash_every"), "job.toml");
}

TEST(Spec, GivenZeroIsNotReplacedByTheDefault) {
  const pb::JobSpec spec = minimal({{"window.p", "0"},
                                    {"model.gate_cap", "0.0"},
                                    {"model.doc_reset", "false"},
                                    {"checkpoint.enable", "false"},
                                    {"validation.sequences", "0"}});
  EXPECT_EQ(spec.window().p(), 0.0);
  EXPECT_EQ(spec.model().gate_cap(), 0.0);
  EXPECT_FALSE(spec.model().doc_reset());
  EXPECT_FALSE(spec.checkpoint().enable());
  EXPECT_EQ(spec.validation().sequences(), 0U);
}

TEST(Spec, OverridesReplaceAddAndIndex) {
  const pb::JobSpec spec = minimal({{"training.steps", "5"},
                                    {"training.steps", "6"},
                                    {"optimizer.lr", "1"},
                                    {"job.name", "other-1"},
                                    {"job.description", "two words"},
                                    {"parallelism.allowed_ranks", "[1,2]"},
                                    {"parallelism.allowed_ranks[0]", "4"},
                                    {"parallelism.ranks", "2"},
                                    {"data.sources[0].weight", "2"},
                                    {"data.sources[0].name", "\"quoted\""}});
  EXPECT_EQ(spec.training().steps(), 6U);
  EXPECT_EQ(spec.optimizer().lr(), 1.0);
  EXPECT_EQ(spec.job().name(), "other-1");
  EXPECT_EQ(spec.job().description(), "two words");
  EXPECT_THAT(spec.parallelism().allowed_ranks(), ElementsAre(2U, 4U));
  EXPECT_EQ(spec.data().sources(0).weight(), 2.0);
  EXPECT_EQ(spec.data().sources(0).name(), "quoted");
}

TEST(Spec, OverrideOfWholeSources) {
  const pb::JobSpec spec =
      minimal({{"data.sources", "[{name='x', path='/d'}, {name='y', text='file:/t', weight=3}]"}});
  ASSERT_EQ(spec.data().sources_size(), 2);
  EXPECT_EQ(spec.data().sources(0).path(), "/d");
  EXPECT_EQ(spec.data().sources(1).weight(), 3.0);
}

TEST(Spec, TokensBecomeSteps) {
  const pb::JobSpec spec = minimal({{"training.tokens", "1000"}});  // 128 tokens a step
  EXPECT_EQ(spec.training().steps(), 8U);
  EXPECT_EQ(spec.training().tokens(), 0U);
  EXPECT_EQ(numeric_id(spec), numeric_id(minimal({{"training.steps", "8"}})));
}

TEST(Spec, RanksAboveTheBatchAreLeftOut) {
  const SpecResult result =
      test::load(test::minimal_text(), {{"parallelism.allowed_ranks", "[8, 1, 4, 5]"}});
  EXPECT_TRUE(result.ok());
  ASSERT_EQ(result.problems.size(), 1U);
  EXPECT_TRUE(result.problems[0].warning);
  EXPECT_THAT(allowed_ranks(result.spec), ElementsAre(1, 4));
}

TEST(Spec, WarmupLongerThanTheRunIsAWarning) {
  const SpecResult result = test::load(test::minimal_text(), {{"lr_scheduler.warmup_steps", "11"}});
  EXPECT_TRUE(result.ok());
  ASSERT_EQ(result.problems.size(), 1U);
  EXPECT_THAT(result.problems[0].text(),
              HasSubstr("lr_scheduler.warmup_steps: warning: 11 is longer than the run"));
}

TEST(Spec, QuickstartIsValidForEveryLength) {
  for (const char* steps : {"1", "2", "3", "19", "20", "21", "1000000000"}) {
    const SpecResult result =
        load_spec(test::preset_text("quickstart"), "q", {{"training.steps", steps}});
    EXPECT_TRUE(result.ok()) << test::problems_text(result);
  }
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const SpecResult result = load_spec(test::preset_text("quickstart"), "q",
                                        {{"parallelism.ranks", std::to_string(ranks)}});
    EXPECT_TRUE(result.ok()) << test::problems_text(result);
  }
  EXPECT_FALSE(load_spec(test::preset_text("quickstart"), "q", {{"parallelism.ranks", "9"}}).ok());
}

// People edit these lines by hand and with sed.
TEST(Spec, QuickstartSpellsOutItsMainKeys) {
  const std::string text = test::preset_text("quickstart");
  for (const char* line : {"\nseed = ", "\nsteps = ", "\nseq_len = ", "\nglobal_batch_size = ",
                           "\nlr = ", "\nstart = \"fresh\"\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
}

void expect_round_trip(const pb::JobSpec& spec) {
  const std::string text = spec_toml(spec);
  const SpecResult again = load_spec(text, "again.toml", {});
  ASSERT_TRUE(again.ok()) << test::problems_text(again) << text;
  EXPECT_TRUE(MessageDifferencer::Equals(spec, again.spec)) << text;
  EXPECT_EQ(spec_hash(spec), spec_hash(again.spec));
  EXPECT_EQ(spec_toml(again.spec), text);
  for (const SpecProblem& problem : check_spec(spec))
    EXPECT_TRUE(problem.warning) << problem.text();
}

TEST(Spec, TomlRoundTrip) {
  for (const std::string& name : test::preset_names()) expect_round_trip(test::preset(name));
  expect_round_trip(minimal());
  expect_round_trip(minimal({{"job.description", "\"a \\\"quote\\\"\\n\\ttab \\\\ \\u00e9 #\""},
                             {"optimizer.lr", "3e-7"},
                             {"model.rope_base", "123456789012"},
                             {"optimizer.eps", "1e-300"},
                             {"job.seed", "9007199254740991"},
                             {"model.doc_reset", "false"},
                             {"data.sources[0].text", "file:/a b/\\\"c"},
                             {"window.p", "0.30000000000000004"}}));
}

// The longest strings the rules allow still give lines below the limit of the reader.
TEST(Spec, LongestStringsRoundTrip) {
  pb::JobSpec spec = minimal();
  spec.mutable_job()->set_description(std::string(1024, '"'));
  spec.mutable_data()->mutable_sources(0)->set_text("file:" + std::string(1019, '\\'));
  expect_round_trip(spec);
}

TEST(Spec, FreeFieldsDoNotEnterTheNumericId) {
  const pb::JobSpec base = minimal();
  for (const auto& [path, value] :
       std::vector<std::pair<const char*, const char*>>{{"job.name", "b"},
                                                        {"job.description", "x"},
                                                        {"parallelism.ranks", "2"},
                                                        {"checkpoint.interval", "7"},
                                                        {"activation_checkpoint.mode", "block"},
                                                        {"activation_checkpoint.layers", "1"},
                                                        {"validation.freq", "3"},
                                                        {"debug.hash_every", "1"},
                                                        {"job.start", "resume"},
                                                        {"parallelism.prefetch", "0"},
                                                        {"data.sources[0].name", "t"}}) {
    const pb::JobSpec changed = minimal({{path, value}});
    EXPECT_EQ(numeric_id(changed), numeric_id(base)) << path;
    EXPECT_NE(spec_hash(changed), spec_hash(base)) << path;
  }
  for (const auto& [path, value] :
       std::vector<std::pair<const char*, const char*>>{{"job.seed", "8"},
                                                        {"model.dim", "32"},
                                                        {"model.mlstm_chunk", "16"},
                                                        {"training.reduction_lanes", "4"},
                                                        {"optimizer.lr", "0.002"},
                                                        {"training.steps", "11"},
                                                        {"model.doc_reset", "false"},
                                                        {"window.p", "0.25"},
                                                        {"data.shuffle", "none"},
                                                        {"data.sources[0].weight", "2"}}) {
    const pb::JobSpec changed = minimal({{path, value}});
    EXPECT_NE(numeric_id(changed), numeric_id(base)) << path;
    EXPECT_NE(spec_hash(changed), spec_hash(base)) << path;
  }
  pb::JobSpec with_data = base;
  with_data.mutable_data()->mutable_sources(0)->set_digest("0123456789abcdef0123456789abcdef");
  EXPECT_NE(numeric_id(with_data), numeric_id(base));
}

TEST(Spec, ChangesNamePathValuesAndClass) {
  const pb::JobSpec before = minimal();
  EXPECT_TRUE(spec_changes(before, before).empty());
  pb::JobSpec after = minimal({{"optimizer.lr", "0.002"}, {"job.name", "b"}, {"job.seed", "8"}});
  after.mutable_data()->add_sources()->set_name("new");
  const auto changes = spec_changes(before, after);
  std::vector<std::string> lines;
  for (const FieldChange& c : changes)
    lines.push_back(c.path + ": " + c.before + " -> " + c.after + " " +
                    pb::FieldClass_Name(c.field_class));
  EXPECT_THAT(lines, testing::IsSupersetOf(
                         {"optimizer.lr: 0.001 -> 0.002 EVENT", "job.name: \"a\" -> \"b\" FREE",
                          "job.seed: 7 -> 8 FROZEN", "data.sources[1].name:  -> \"new\" FREE"}));
  EXPECT_EQ(spec_changes(after, before).size(), changes.size());
}

TEST(Spec, CheckOfAMessageFindsTheSameProblems) {
  const auto problems = [](auto change) {
    pb::JobSpec spec = minimal();
    change(spec);
    std::string text;
    for (const SpecProblem& problem : check_spec(spec)) text += problem.text() + "\n";
    return text;
  };
  EXPECT_EQ(problems([](pb::JobSpec&) {}), "");
  EXPECT_THAT(problems([](pb::JobSpec& s) { s.mutable_training()->set_steps(0); }),
              HasSubstr("training.steps"));
  EXPECT_THAT(problems([](pb::JobSpec& s) { s.mutable_training()->set_seq_len(0); }),
              HasSubstr("training.seq_len: 0 is out of range"));
  EXPECT_THAT(problems([](pb::JobSpec& s) { s.mutable_job()->set_name("../x"); }),
              HasSubstr("job.name"));
  EXPECT_THAT(problems([](pb::JobSpec& s) { s.mutable_job()->set_name("\xFF"); }),
              HasSubstr("UTF-8"));
  EXPECT_THAT(problems([](pb::JobSpec& s) {
                s.mutable_job()->set_seed(std::numeric_limits<uint64_t>::max());
              }),
              HasSubstr("18446744073709551615 is out of range"));
  EXPECT_THAT(problems([](pb::JobSpec& s) {
                s.mutable_optimizer()->set_lr(std::numeric_limits<double>::quiet_NaN());
              }),
              HasSubstr("optimizer.lr"));
  EXPECT_THAT(problems([](pb::JobSpec& s) { s.mutable_data()->clear_sources(); }),
              HasSubstr("data.sources"));
  EXPECT_THAT(problems([](pb::JobSpec& s) { s.mutable_parallelism()->add_allowed_ranks(0); }),
              HasSubstr("parallelism.allowed_ranks[1]"));
  EXPECT_NE(problems([](pb::JobSpec& s) { s.Clear(); }), "");
}

// Whatever a message holds, the checks come back: extreme values in one to three fields at a time.
TEST(Spec, CheckOfAnyMessageComesBack) {
  const pb::JobSpec base = minimal();
  std::vector<std::pair<std::string, const FieldDescriptor*>> fields;
  for_each_field(base, "", [&](const std::string& path, const Message&, const FieldDescriptor* f) {
    if (path.find('[') == std::string::npos && path.find('.') != std::string::npos)
      fields.emplace_back(path, f);
  });
  for (uint64_t i = 0; i < 5000; ++i) {
    pb::JobSpec spec = base;
    for (uint32_t k = 0; k <= i % 3; ++k) {
      const PhiloxBlock draw = random_block(i, Purpose::kTest, k);
      const auto& [path, field] = fields[draw[0] % fields.size()];
      const auto* section = spec.GetDescriptor()->FindFieldByName(path.substr(0, path.find('.')));
      Message* message = spec.GetReflection()->MutableMessage(&spec, section);
      const bool wide = field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
      const uint64_t integers[] = {0, 1, 3, 65'537, 4'294'967'295, wide ? ~uint64_t{0} : 7};
      const double reals[] = {0.0,   -1.0,
                              1e300, std::numeric_limits<double>::infinity(),
                              0.5,   std::numeric_limits<double>::quiet_NaN()};
      const char* texts[] = {"", "M", "\xFF", "../x", "SSSSSM", "none"};
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_BOOL:
          put_field(message, field, draw[1] % 2 == 0);
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE:
          put_field(message, field, reals[draw[1] % 6]);
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          put_field(message, field, std::string(texts[draw[1] % 6]));
          break;
        default:
          put_field(message, field, integers[draw[1] % 6]);
      }
    }
    bool refused = false;
    for (const SpecProblem& problem : check_spec(spec)) {
      EXPECT_TRUE(valid_utf8(problem.text()));
      refused |= !problem.warning;
    }
    if (!refused) {
      EXPECT_TRUE(model_shape(spec.model()).ok()) << spec.DebugString();
      EXPECT_TRUE(std::isfinite(learning_rate(spec, 0)));
    }
  }
}

// Every key carries what the checks need: a range that fits the type, and a line of documentation.
TEST(Spec, EveryFieldHasItsRule) {
  const std::function<void(const google::protobuf::Descriptor*)> walk =
      [&](const google::protobuf::Descriptor* message) {
        for (int i = 0; i < message->field_count(); ++i) {
          const FieldDescriptor* field = message->field(i);
          const pb::FieldRule& rule = rule_of(field);
          if (is_section(field)) {
            walk(field->message_type());
            continue;
          }
          EXPECT_FALSE(rule.doc().empty()) << field->full_name();
          const bool integer = field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32 ||
                               field->cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
          if (integer || field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
            EXPECT_TRUE(rule.has_min() && rule.has_max()) << field->full_name();
            EXPECT_GE(rule.min(), 0.0) << field->full_name();
          }
          if (integer) {
            const double most =
                field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32 ? 4294967295.0 : 0x1p62;
            EXPECT_LE(rule.max(), most) << field->full_name();
          }
          if (!rule.fallback().empty()) {
            EXPECT_EQ(value_problem(rule, fallback_value(field)), "") << field->full_name();
            EXPECT_FALSE(field->is_repeated()) << field->full_name();
          }
        }
      };
  walk(pb::JobSpec::descriptor());
}

}  // namespace
}  // namespace swax
