// What one value may be: range, choice, pattern. The texts name the limit and the nearest valid
// value.
#include <algorithm>
#include <cmath>
#include <limits>

#include "jobs/spec_fields.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kStringBytesMax =
    1024;  // no rule names more: escaped, a line of spec_toml stays below its limit
constexpr size_t kPatternLayersMax = 512;

std::string limit_text(double value) {
  if (std::floor(value) == value && std::fabs(value) < 0x1p63)
    return to_text(static_cast<int64_t>(value));
  return to_text(value);
}

std::string integer_range(const pb::FieldRule& rule) {
  return limit_text(rule.min()) + ".." + limit_text(rule.max());
}

std::string double_problem(const pb::FieldRule& rule, double value) {
  if (!std::isfinite(value)) return to_text(value) + " is not allowed: must be a finite number";
  const bool low =
      rule.has_min() && (rule.min_exclusive() ? value <= rule.min() : value < rule.min());
  const bool high = rule.has_max() && value > rule.max();
  if (!low && !high) return "";
  const std::string text = to_text(value) + " is out of range: must be ";
  if (rule.min_exclusive()) {
    const std::string range =
        text + "> " + limit_text(rule.min()) + " and <= " + limit_text(rule.max());
    return high ? range + "; nearest valid value is " + limit_text(rule.max()) : range;
  }
  return text + limit_text(rule.min()) + " to " + limit_text(rule.max()) +
         "; nearest valid value is " + limit_text(low ? rule.min() : rule.max());
}

bool is_forbidden_control(char c) {
  const unsigned char byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
}

bool is_lower_alnum(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

std::string name_problem(std::string_view text) {
  constexpr size_t kNameBytesMax = 63;
  const bool good = !text.empty() && text.size() <= kNameBytesMax && is_lower_alnum(text[0]) &&
                    std::all_of(text.begin(), text.end(), [](char c) {
                      return is_lower_alnum(c) || c == '.' || c == '_' || c == '-';
                    });
  if (good) return "";
  if (text.empty()) return "must not be empty";
  return "\"" + printable(text) + "\" is not a name: must match [a-z0-9][a-z0-9._-]{0,62}";
}

std::string path_problem(std::string_view text) {
  if (text.starts_with('/')) return "";
  for (const std::string_view part : split(text, '/')) {
    if (part == "..") return "\"" + printable(text) + "\": a relative path must not contain \"..\"";
  }
  return "";
}

std::string layers_problem(std::string_view text) {
  if (text.empty()) return "must not be empty";
  if (text.size() > kPatternLayersMax)
    return "has " + to_text(static_cast<int64_t>(text.size())) + " letters, the most is " +
           to_text(static_cast<int64_t>(kPatternLayersMax));
  if (text.find_first_not_of("SM") == std::string_view::npos) return "";
  return "\"" + printable(text) +
         "\": layer kinds are S (sliding-window attention) and M (mLSTM), as in \"SM\"";
}

// "debian:kjv" or "file:PATH".
std::string text_source_problem(std::string_view text) {
  constexpr std::string_view kFile = "file:";
  if (text == "debian:kjv") return "";
  if (text.starts_with(kFile) && text.size() > kFile.size())
    return path_problem(text.substr(kFile.size()));
  return "\"" + printable(text) + "\" is not a text: must be debian:kjv or file:PATH";
}

std::string string_problem(const pb::FieldRule& rule, const std::string& text) {
  const size_t most = rule.has_max() ? static_cast<size_t>(rule.max()) : kStringBytesMax;
  if (text.size() > most)
    return "has " + to_text(static_cast<int64_t>(text.size())) + " bytes, the most is " +
           to_text(static_cast<int64_t>(most));
  if (!valid_utf8(text)) return "\"" + printable(text) + "\" is not valid UTF-8";
  if (std::any_of(text.begin(), text.end(), is_forbidden_control))
    return "\"" + printable(text) + "\" holds a control character";
  if (!rule.one_of().empty()) {
    const auto choices = split(rule.one_of(), '|');
    if (std::find(choices.begin(), choices.end(), text) != choices.end()) return "";
    std::string list;
    for (const std::string_view choice : choices)
      list.append(list.empty() ? "" : ", ").append(choice);
    const std::string must = "\"" + printable(text) + "\" is not allowed: must be ";
    if (choices.size() == 1) return must + list;
    return must + "one of " + list + "; nearest is " + nearest_choice(rule.one_of(), text);
  }
  if (rule.pattern() == "name") return name_problem(text);
  if (rule.pattern() == "path") return path_problem(text);
  if (rule.pattern() == "layers") return layers_problem(text);
  if (rule.pattern() == "text" && !text.empty()) return text_source_problem(text);
  return "";
}

}  // namespace

std::string integer_problem(const pb::FieldRule& rule, int64_t value) {
  const bool low = rule.has_min() && value < static_cast<int64_t>(rule.min());
  const bool high = rule.has_max() && value > static_cast<int64_t>(rule.max());
  if (!low && !high) return "";
  return to_text(value) + " is out of range " + integer_range(rule) + "; nearest valid value is " +
         limit_text(low ? rule.min() : rule.max());
}

std::string value_problem(const pb::FieldRule& rule, const FieldValue& value) {
  if (const uint64_t* u = std::get_if<uint64_t>(&value)) {
    if (*u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return to_text(*u) + " is out of range " + integer_range(rule);
    return integer_problem(rule, static_cast<int64_t>(*u));
  }
  if (const double* d = std::get_if<double>(&value)) return double_problem(rule, *d);
  if (const std::string* s = std::get_if<std::string>(&value)) return string_problem(rule, *s);
  return "";
}

}  // namespace swax
