// Fields of the job spec by reflection: their rules, values and texts. For the spec_*.cc and
// canonical.cc only. Threads: pure functions.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "proto/job.pb.h"

namespace swax {

using FieldDescriptor = google::protobuf::FieldDescriptor;
using Message = google::protobuf::Message;

// Every scalar type of the spec widened: bool, uint32 and uint64, double, string.
using FieldValue = std::variant<bool, uint64_t, double, std::string>;

const pb::FieldRule& rule_of(const FieldDescriptor* field);
std::string join_field(std::string_view path,
                       std::string_view name);            // "training.steps"; no dot after ""
std::string item_path(std::string_view path, int index);  // "data.sources[0]"
int list_count_max(const FieldDescriptor* field);
inline bool is_section(const FieldDescriptor* field) {
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

// index -1: a field that is no list.
FieldValue field_value(const Message& message, const FieldDescriptor* field, int index);
void put_field(Message* message, const FieldDescriptor* field,
               const FieldValue& value);                  // sets, or adds to a list
FieldValue fallback_value(const FieldDescriptor* field);  // of a field with a fallback
bool is_zero(const FieldValue& value);
std::string value_text(const FieldValue& value);  // as TOML: 3, 0.5, true, "x"
std::string quoted(std::string_view text);        // TOML basic string

// Calls visit(path, message, field) for every field that is no section; lists are given as one
// field. Order of the .proto file; sections that are not set are visited with their zero values.
using FieldVisitor = std::function<void(const std::string& path, const Message& message,
                                        const FieldDescriptor* field)>;
void for_each_field(const Message& message, const std::string& path, const FieldVisitor& visit);

// Dotted paths of all keys, without list indices: "training.steps", "data.sources.weight",
// "training".
const std::vector<std::string>& known_keys();
// The known key nearest to `path` by edit distance, keys of the same section and of the same name
// first.
std::string nearest_key(std::string_view path);
std::string nearest_choice(std::string_view one_of, std::string_view value);  // of "a|b|c"

// Range, choice, pattern. Empty when the value is allowed; else the message, with the nearest valid
// value if there is one.
std::string integer_problem(const pb::FieldRule& rule, int64_t value);
std::string value_problem(const pb::FieldRule& rule, const FieldValue& value);

}  // namespace swax
