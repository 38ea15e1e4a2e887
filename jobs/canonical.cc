// Texts and ids of a resolved spec: canonical lines, hashes, changes, TOML.
#include <algorithm>
#include <map>

#include "jobs/spec.h"
#include "jobs/spec_fields.h"
#include "proto/base/text.h"

namespace swax {
namespace {

struct FlatField {
  std::string text;
  pb::FieldClass field_class = pb::FROZEN;
};

FieldValue value_or_fallback(const Message& message, const FieldDescriptor* field) {
  const bool absent = field->has_presence() && !message.GetReflection()->HasField(message, field);
  return absent ? fallback_value(field) : field_value(message, field, -1);
}

// Floats in the shortest form that reads back to the same bits: 15, 1e-06.
std::string canonical_value(const FieldValue& value) {
  const double* d = std::get_if<double>(&value);
  return d != nullptr ? to_text(*d) : value_text(value);
}

std::string canonical_field(const Message& message, const FieldDescriptor* field) {
  if (!field->is_repeated()) return canonical_value(value_or_fallback(message, field));
  std::string list;
  for (int k = 0; k < message.GetReflection()->FieldSize(message, field); ++k)
    list += (list.empty() ? "" : ",") + canonical_value(field_value(message, field, k));
  return "[" + list + "]";
}

std::map<std::string, FlatField> flatten(const pb::JobSpec& spec) {
  std::map<std::string, FlatField> fields;
  for_each_field(
      spec, "", [&](const std::string& path, const Message& message, const FieldDescriptor* field) {
        fields[path] = {canonical_field(message, field), rule_of(field).class_()};
      });
  return fields;
}

// A key that would not be accepted, or would say nothing, when it is read again.
bool left_out(const pb::FieldRule& rule, const FieldValue& value) {
  if (rule.resolved()) return true;
  return is_zero(value) && !rule.required() && rule.fallback().empty() &&
         (std::holds_alternative<std::string>(value) || rule.min() > 0.0);
}

void write_key(const Message& message, const FieldDescriptor* field, std::string* out) {
  if (!field->is_repeated()) {
    const FieldValue value = value_or_fallback(message, field);
    if (!left_out(rule_of(field), value)) *out += field->name() + " = " + value_text(value) + "\n";
    return;
  }
  std::string list;
  for (int k = 0; k < message.GetReflection()->FieldSize(message, field); ++k)
    list += (list.empty() ? "" : ", ") + value_text(field_value(message, field, k));
  *out += field->name() + " = [" + list + "]\n";
}

// Keys of a section come before its sub-sections, as TOML needs it.
void write_section(const Message& message, const std::string& path, std::string* out) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  const google::protobuf::Descriptor* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    if (!is_section(descriptor->field(i))) write_key(message, descriptor->field(i), out);
  }
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (!is_section(field)) continue;
    const std::string field_path = join_field(path, field->name());
    if (!field->is_repeated()) {
      *out += "\n[" + field_path + "]\n";
      write_section(reflection->GetMessage(message, field), field_path, out);
      continue;
    }
    for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
      *out += "\n[[" + field_path + "]]\n";
      write_section(reflection->GetRepeatedMessage(message, field, k), field_path, out);
    }
  }
}

}  // namespace

std::string canonical_text(const pb::JobSpec& spec, bool free_fields) {
  std::string text;
  for (const auto& [path, field] : flatten(spec)) {
    if (free_fields || field.field_class != pb::FREE) text += path + "=" + field.text + "\n";
  }
  return text;
}

Hash128 numeric_id(const pb::JobSpec& spec) { return xxh3_128(canonical_text(spec, false)); }

Hash128 spec_hash(const pb::JobSpec& spec) { return xxh3_128(canonical_text(spec, true)); }

std::vector<FieldChange> spec_changes(const pb::JobSpec& before, const pb::JobSpec& after) {
  const std::map<std::string, FlatField> old_fields = flatten(before);
  std::map<std::string, FlatField> new_fields = flatten(after);
  std::vector<FieldChange> changes;
  const auto differs = [&](const std::string& path, const FlatField& from, const FlatField& to) {
    if (from.text != to.text) changes.push_back({path, from.text, to.text, to.field_class});
  };
  for (const auto& [path, field] : old_fields) {
    const auto now = new_fields.find(path);
    if (now == new_fields.end()) {
      differs(path, field, {"", field.field_class});
    } else {
      differs(path, field, now->second);
      new_fields.erase(now);
    }
  }
  for (const auto& [path, field] : new_fields) differs(path, {}, field);
  std::sort(changes.begin(), changes.end(),
            [](const FieldChange& a, const FieldChange& b) { return a.path < b.path; });
  return changes;
}

std::string spec_toml(const pb::JobSpec& spec) {
  std::string text;
  write_section(spec, "", &text);
  return text;
}

std::vector<int> allowed_ranks(const pb::JobSpec& spec) {
  std::vector<int> ranks{static_cast<int>(spec.parallelism().ranks())};
  for (const uint32_t r : spec.parallelism().allowed_ranks()) ranks.push_back(static_cast<int>(r));
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace swax
