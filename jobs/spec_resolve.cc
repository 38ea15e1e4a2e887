// Defaults, derived fields, and the checks of a spec that comes as a message.
#include <algorithm>
#include <functional>

#include "jobs/schedule.h"
#include "jobs/spec_check.h"
#include "jobs/spec_fields.h"
#include "proto/base/text.h"

namespace swax {
namespace {

using FieldSet = std::set<std::string, std::less<>>;
using FieldTest =
    std::function<bool(const Message&, const FieldDescriptor*, const std::string& path)>;

// Gives their defaults to the fields that are `absent`.
void fill_message(Message* message, const std::string& path, const FieldTest& absent) {
  const google::protobuf::Reflection* reflection = message->GetReflection();
  const google::protobuf::Descriptor* descriptor = message->GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const std::string field_path = join_field(path, field->name());
    if (is_section(field) && !field->is_repeated()) {
      fill_message(reflection->MutableMessage(message, field), field_path, absent);
    } else if (is_section(field)) {
      for (int k = 0; k < reflection->FieldSize(*message, field); ++k)
        fill_message(reflection->MutableRepeatedMessage(message, field, k),
                     item_path(field_path, k), absent);
    } else if (!rule_of(field).fallback().empty() && absent(*message, field, field_path)) {
      put_field(message, field, fallback_value(field));
    }
  }
}

// A number of 0 counts as "not given" where the field is neither required nor has a default.
bool may_be_absent(const pb::FieldRule& rule) {
  return !rule.required() && rule.fallback().empty();
}

void check_list(const std::string& path, const Message& message, const FieldDescriptor* field,
                SpecFindings* findings) {
  const int count = message.GetReflection()->FieldSize(message, field);
  if (const int count_max = list_count_max(field); count > count_max)
    return findings->error(
        path, "has " + to_text(count) + " elements, the most is " + to_text(count_max));
  for (int k = 0; k < count; ++k) {
    const std::string problem = value_problem(rule_of(field), field_value(message, field, k));
    if (problem.empty()) continue;
    findings->error(item_path(path, k), problem);
    findings->bad.insert(path);
  }
}

}  // namespace

void fill_defaults(pb::JobSpec* spec, const FieldSet& given) {
  fill_message(spec, "", [&given](const Message&, const FieldDescriptor*, const std::string& path) {
    return !given.contains(path);
  });
}

void fill_absent(pb::JobSpec* spec) {
  fill_message(spec, "",
               [](const Message& message, const FieldDescriptor* field, const std::string&) {
                 if (field->is_repeated()) return false;
                 if (field->has_presence())
                   return !message.GetReflection()->HasField(message, field);
                 const FieldValue value = field_value(message, field, -1);
                 return is_zero(value) && !value_problem(rule_of(field), value).empty();
               });
}

void check_values(const pb::JobSpec& spec, SpecFindings* findings) {
  for_each_field(
      spec, "", [&](const std::string& path, const Message& message, const FieldDescriptor* field) {
        const pb::FieldRule& rule = rule_of(field);
        if (rule.resolved()) return;
        if (field->is_repeated()) return check_list(path, message, field, findings);
        const FieldValue value = field_value(message, field, -1);
        if (is_zero(value) && may_be_absent(rule)) return;
        if (const std::string problem = value_problem(rule, value); !problem.empty())
          findings->error(path, problem);
      });
  if (spec.data().sources().empty())
    findings->error("data.sources", "required key is missing: a job needs a data source");
  const int sources_max = list_count_max(pb::Data::descriptor()->FindFieldByName("sources"));
  if (spec.data().sources_size() > sources_max)
    findings->error("data.sources", "has " + to_text(spec.data().sources_size()) +
                                        " elements, the most is " + to_text(sources_max));
}

void resolve_ranks_and_heads(pb::JobSpec* spec, SpecFindings* findings) {
  if (spec->model().kv_heads() == 0 && findings->good({"model.kv_heads", "model.heads"}))
    spec->mutable_model()->set_kv_heads(spec->model().heads());
  if (!findings->good({"parallelism.ranks", "parallelism.allowed_ranks"})) return;
  auto* allowed = spec->mutable_parallelism()->mutable_allowed_ranks();
  if (allowed->empty()) allowed->Add(spec->parallelism().ranks());
  std::sort(allowed->begin(), allowed->end());
  if (const auto twice = std::adjacent_find(allowed->begin(), allowed->end());
      twice != allowed->end())
    return findings->error("parallelism.allowed_ranks",
                           to_text(uint64_t{*twice}) + " stands twice");
  const uint32_t batch = spec->training().global_batch_size();
  if (!findings->good({"training.global_batch_size"}) || spec->parallelism().ranks() > batch)
    return;
  const auto first_unused = std::upper_bound(allowed->begin(), allowed->end(), batch);
  if (first_unused == allowed->end()) return;
  findings->warning("parallelism.allowed_ranks",
                    "values above training.global_batch_size=" + to_text(uint64_t{batch}) +
                        " are left out: a rank without a sequence has no work");
  allowed->erase(first_unused, allowed->end());
}

void resolve_steps(pb::JobSpec* spec) {
  spec->mutable_training()->set_steps(static_cast<uint64_t>(total_steps(*spec)));
  spec->mutable_training()->clear_tokens();
}

std::vector<SpecProblem> check_spec(const pb::JobSpec& spec) {
  SpecFindings findings;
  check_values(spec, &findings);
  check_relations(spec, &findings);
  return findings.problems;
}

}  // namespace swax
