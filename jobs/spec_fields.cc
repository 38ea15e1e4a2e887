#include "jobs/spec_fields.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>

#include "proto/base/check.h"
#include "proto/base/text.h"

namespace swax {
namespace {

double number_of(std::string_view text) {
  double value = 0.0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  SWAX_CHECK(end.ec == std::errc{});
  return value;
}

void collect_keys(const google::protobuf::Descriptor* message, const std::string& path,
                  std::vector<std::string>* keys) {
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* field = message->field(i);
    if (rule_of(field).resolved()) continue;
    const std::string key = join_field(path, field->name());
    keys->push_back(key);
    if (is_section(field)) collect_keys(field->message_type(), key, keys);
  }
}

std::string_view leaf_of(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

std::string without_indices(std::string_view path) {
  std::string out;
  bool inside = false;
  for (const char c : path) {
    if (c == '[') inside = true;
    if (!inside) out += c;
    if (c == ']') inside = false;
  }
  return out;
}

}  // namespace

const pb::FieldRule& rule_of(const FieldDescriptor* field) {
  return field->options().GetExtension(pb::rule);
}

int list_count_max(const FieldDescriptor* field) {
  constexpr uint32_t kListCountMax = 1024;
  const uint32_t count = rule_of(field).max_count();
  return static_cast<int>(count == 0 ? kListCountMax : count);
}

std::string join_field(std::string_view path, std::string_view name) {
  std::string out(path);
  if (!out.empty()) out += '.';
  return out.append(name);
}

std::string item_path(std::string_view path, int index) {
  return std::string(path) + "[" + to_text(index) + "]";
}

FieldValue field_value(const Message& message, const FieldDescriptor* field, int index) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  const bool list = index >= 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return list ? reflection->GetRepeatedBool(message, field, index)
                  : reflection->GetBool(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return static_cast<uint64_t>(list ? reflection->GetRepeatedUInt32(message, field, index)
                                        : reflection->GetUInt32(message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<uint64_t>(list ? reflection->GetRepeatedUInt64(message, field, index)
                                        : reflection->GetUInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return list ? reflection->GetRepeatedDouble(message, field, index)
                  : reflection->GetDouble(message, field);
    default:
      SWAX_CHECK(field->cpp_type() == FieldDescriptor::CPPTYPE_STRING);
      return list ? reflection->GetRepeatedString(message, field, index)
                  : reflection->GetString(message, field);
  }
}

void put_field(Message* message, const FieldDescriptor* field, const FieldValue& value) {
  const google::protobuf::Reflection* reflection = message->GetReflection();
  const bool list = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      SWAX_CHECK(!list);
      return reflection->SetBool(message, field, std::get<bool>(value));
    case FieldDescriptor::CPPTYPE_UINT32: {
      const uint64_t wide = std::get<uint64_t>(value);
      SWAX_CHECK(wide <= std::numeric_limits<uint32_t>::max());
      const uint32_t narrow = static_cast<uint32_t>(wide);
      return list ? reflection->AddUInt32(message, field, narrow)
                  : reflection->SetUInt32(message, field, narrow);
    }
    case FieldDescriptor::CPPTYPE_UINT64:
      SWAX_CHECK(!list);
      return reflection->SetUInt64(message, field, std::get<uint64_t>(value));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      SWAX_CHECK(!list);
      return reflection->SetDouble(message, field, std::get<double>(value));
    default:
      SWAX_CHECK(field->cpp_type() == FieldDescriptor::CPPTYPE_STRING && !list);
      return reflection->SetString(message, field, std::get<std::string>(value));
  }
}

FieldValue fallback_value(const FieldDescriptor* field) {
  const std::string& text = rule_of(field).fallback();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return text == "true";
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<uint64_t>(number_of(text));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return number_of(text);
    default:
      return text;
  }
}

bool is_zero(const FieldValue& value) {
  if (const bool* b = std::get_if<bool>(&value)) return !*b;
  if (const uint64_t* u = std::get_if<uint64_t>(&value)) return *u == 0;
  if (const double* d = std::get_if<double>(&value)) return *d == 0.0;
  return std::get<std::string>(value).empty();
}

std::string value_text(const FieldValue& value) {
  if (const bool* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const uint64_t* u = std::get_if<uint64_t>(&value)) return to_text(*u);
  if (const double* d = std::get_if<double>(&value)) {
    const std::string text = to_text(*d);
    return text.find_first_of(".eni") == std::string::npos ? text + ".0" : text;
  }
  return quoted(std::get<std::string>(value));
}

std::string quoted(std::string_view text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\u00";
      out += {kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += c;
    }
  }
  return out += '"';
}

void for_each_field(const Message& message, const std::string& path, const FieldVisitor& visit) {
  const google::protobuf::Descriptor* descriptor = message.GetDescriptor();
  const google::protobuf::Reflection* reflection = message.GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const std::string field_path = join_field(path, field->name());
    if (!is_section(field)) {
      visit(field_path, message, field);
    } else if (!field->is_repeated()) {
      for_each_field(reflection->GetMessage(message, field), field_path, visit);
    } else {
      for (int k = 0; k < reflection->FieldSize(message, field); ++k)
        for_each_field(reflection->GetRepeatedMessage(message, field, k), item_path(field_path, k),
                       visit);
    }
  }
}

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> all;
    collect_keys(pb::JobSpec::descriptor(), "", &all);
    return all;
  }();
  return keys;
}

std::string nearest_key(std::string_view path) {
  constexpr size_t kComparedBytesMax = 64;  // keeps the work small whatever the file holds
  const std::string wanted = without_indices(path).substr(0, kComparedBytesMax);
  std::string best;
  int best_score = std::numeric_limits<int>::max();
  for (const std::string& key : known_keys()) {
    const int whole = 2 * edit_distance(wanted, key);
    const int moved =
        2 * edit_distance(leaf_of(wanted), leaf_of(key)) + 1;  // right name, wrong section
    if (const int score = std::min(whole, moved); score < best_score) {
      best_score = score;
      best = key;
    }
  }
  return best;
}

std::string nearest_choice(std::string_view one_of, std::string_view value) {
  std::string best;
  int best_distance = std::numeric_limits<int>::max();
  for (const std::string_view choice : split(one_of, '|')) {
    const int distance = edit_distance(value.substr(0, 64), choice);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = choice;
  }
  return best;
}

}  // namespace swax
