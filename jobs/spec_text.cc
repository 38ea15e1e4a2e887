// load_spec: TOML and overrides -> message, with a place for every problem.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "jobs/spec.h"
#include "jobs/spec_check.h"
#include "jobs/spec_fields.h"
#include "jobs/spec_overrides.h"
#include "jobs/spec_place.h"
#include "jobs/toml.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kSuggestionsMax =
    200;  // unknown keys that get a nearest key; the rest is not shown anyway

std::string type_name(const FieldDescriptor* field) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return "an integer";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number";
    default:
      return "a string";
  }
}

struct Converted {
  FieldValue value;
  std::string problem;
};

Converted wrong_type(const TomlNode& node, const FieldDescriptor* field) {
  return {{}, "must be " + type_name(field) + ", not " + toml_kind_name(node.kind)};
}

Converted to_integer(const TomlNode& node, const FieldDescriptor* field) {
  if (node.kind == TomlNode::Kind::kInteger) {
    const std::string problem = integer_problem(rule_of(field), node.integer);
    if (!problem.empty()) return {{}, problem};
    return {static_cast<uint64_t>(node.integer), ""};
  }
  if (node.kind != TomlNode::Kind::kFloat) return wrong_type(node, field);
  const std::string text = value_text(node.real);
  if (std::floor(node.real) == node.real && std::fabs(node.real) < 0x1p62)
    return {{},
            text + " is a float: must be an integer, write " +
                to_text(static_cast<int64_t>(node.real))};
  return {{}, text + " is a float: must be an integer"};
}

// The value of a node as the type of the field, checked against its rule before it is narrowed.
Converted convert(const TomlNode& node, const FieldDescriptor* field) {
  using Kind = TomlNode::Kind;
  Converted out;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (node.kind != Kind::kBool) return wrong_type(node, field);
      return {node.boolean, ""};
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return to_integer(node, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (node.kind != Kind::kFloat && node.kind != Kind::kInteger) return wrong_type(node, field);
      out.value = node.kind == Kind::kFloat ? node.real : static_cast<double>(node.integer);
      break;
    default:
      if (node.kind != Kind::kString) return wrong_type(node, field);
      out.value = node.text;
      break;
  }
  out.problem = value_problem(rule_of(field), out.value);
  return out;
}

// Fills a message from a table; remembers where each key stands.
class Filler {
 public:
  explicit Filler(SpecFindings* findings) : findings_(findings) {}

  void fill(const TomlNode& table, Message* message, const std::string& path) {
    for (const auto& [key, node] : table.entries) {
      const std::string field_path = join_field(path, printable(key));
      places_[field_path] = node.place;
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(key);
      if (field == nullptr || rule_of(field).resolved()) {
        unknown(field_path);
        continue;
      }
      given_.insert(field_path);
      if (field->is_repeated()) {
        fill_list(node, message, field, field_path);
      } else if (is_section(field)) {
        fill_section(node, message, field, field_path);
      } else {
        put(node, message, field, field_path);
      }
    }
  }

  const std::set<std::string, std::less<>>& given() const { return given_; }

  // Place of the field, or of the nearest section around it that stands in the text.
  TomlPlace place(std::string path) const {
    for (;;) {
      if (const auto at = places_.find(path); at != places_.end()) return at->second;
      const size_t cut = path.find_last_of(".[");
      if (cut == std::string::npos) return {};
      path.resize(cut);
    }
  }

 private:
  void unknown(const std::string& path) {
    if (findings_->problems.size() > kSuggestionsMax) return findings_->error(path, "unknown key");
    findings_->error(path, "unknown key; nearest known key is \"" + nearest_key(path) + "\"");
  }

  void put(const TomlNode& node, Message* message, const FieldDescriptor* field,
           const std::string& path) {
    const Converted converted = convert(node, field);
    if (!converted.problem.empty()) return findings_->error(path, converted.problem);
    put_field(message, field, converted.value);
  }

  void fill_section(const TomlNode& node, Message* message, const FieldDescriptor* field,
                    const std::string& path) {
    if (node.kind != TomlNode::Kind::kTable)
      return findings_->error(
          path, "must be a section, [" + path + "], not " + toml_kind_name(node.kind));
    fill(node, message->GetReflection()->MutableMessage(message, field), path);
  }

  void fill_list(const TomlNode& node, Message* message, const FieldDescriptor* field,
                 const std::string& path) {
    if (node.kind != TomlNode::Kind::kArray)
      return findings_->error(path, "must be a list, " +
                                        (is_section(field) ? "[[" + path + "]]" : "[1, 2]") +
                                        ", not " + toml_kind_name(node.kind));
    const int64_t count = static_cast<int64_t>(node.items.size());
    if (count > list_count_max(field))
      return findings_->error(path, "has " + to_text(count) + " elements, the most is " +
                                        to_text(list_count_max(field)));
    for (size_t i = 0; i < node.items.size(); ++i) {
      const TomlNode& item = node.items[i];
      const std::string path_of_item = item_path(path, static_cast<int>(i));
      places_[path_of_item] = item.place;
      if (!is_section(field)) {
        put(item, message, field, path_of_item);
      } else if (item.kind == TomlNode::Kind::kTable) {
        fill(item, message->GetReflection()->AddMessage(message, field), path_of_item);
      } else {
        findings_->error(path_of_item,
                         std::string("must be a table, not ") + toml_kind_name(item.kind));
      }
      if (!findings_->good({path_of_item})) findings_->bad.insert(path);
    }
  }

  SpecFindings* findings_;
  std::map<std::string, TomlPlace> places_;
  std::set<std::string, std::less<>> given_;
};

void require(const Message& message, const std::string& path, const Filler& filler,
             SpecFindings* findings) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::string field_path = join_field(path, field->name());
    if (is_section(field) && !field->is_repeated()) {
      if (findings->good({field_path}))
        require(reflection->GetMessage(message, field), field_path, filler, findings);
      continue;
    }
    const bool empty_list = field->is_repeated() && findings->good({field_path}) &&
                            reflection->FieldSize(message, field) == 0;
    if (rule_of(field).required() && (!filler.given().contains(field_path) || empty_list))
      findings->error(field_path, "required key is missing (" + rule_of(field).doc() + ")");
    if (!is_section(field)) continue;
    for (int k = 0; k < reflection->FieldSize(message, field); ++k)
      require(reflection->GetRepeatedMessage(message, field, k), item_path(field_path, k), filler,
              findings);
  }
}

std::string where_text(std::string_view origin, const TomlPlace& place,
                       const std::vector<SpecOverride>& overrides) {
  if (place.override_index >= 0)
    return "--set " + printable(overrides[static_cast<size_t>(place.override_index)].path);
  std::string where = printable(origin, 200);
  if (place.line > 0) where += ":" + to_text(place.line);
  return where;
}

// Problems in the order of the text, overrides last; what is more than kSpecProblemsShown is
// counted.
std::vector<SpecProblem> placed(std::vector<SpecProblem> problems, const Filler& filler,
                                std::string_view origin,
                                const std::vector<SpecOverride>& overrides) {
  std::vector<std::pair<TomlPlace, SpecProblem>> list;
  for (SpecProblem& problem : problems) {
    const TomlPlace place = filler.place(problem.field);
    problem.where = where_text(origin, place, overrides);
    list.emplace_back(place, std::move(problem));
  }
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first.override_index, a.first.line, a.first.column) <
           std::tie(b.first.override_index, b.first.line, b.first.column);
  });
  std::vector<SpecProblem> out;
  SpecProblem more{.where = printable(origin, 200), .field = "", .message = "", .warning = true};
  for (auto& [place, problem] : list) {
    if (out.size() < kSpecProblemsShown) {
      out.push_back(std::move(problem));
    } else {
      more.warning &= problem.warning;
    }
  }
  if (list.size() > kSpecProblemsShown) {
    more.message =
        to_text(static_cast<int64_t>(list.size()) - kSpecProblemsShown) + " more problems";
    out.push_back(std::move(more));
  }
  return out;
}

SpecProblem syntax_problem(std::string_view origin, const TomlError& error) {
  SpecProblem problem{.where = printable(origin, 200), .field = "", .message = error.message};
  if (error.line > 0) problem.where += ":" + to_text(error.line);
  if (error.line > 0 && error.column > 0) problem.where += ":" + to_text(error.column);
  return problem;
}

bool only_warnings(const std::vector<SpecProblem>& problems) {
  return std::all_of(problems.begin(), problems.end(),
                     [](const SpecProblem& problem) { return problem.warning; });
}

}  // namespace

std::string spec_place(std::string_view text, std::string_view origin,
                       const std::vector<SpecOverride>& overrides, const std::string& field) {
  TomlParse parse = parse_toml(text);
  if (!parse.root) return printable(origin, 200);
  apply_overrides(overrides, &*parse.root);
  pb::JobSpec spec;
  SpecFindings findings;
  Filler filler(&findings);
  filler.fill(*parse.root, &spec, "");
  return where_text(origin, filler.place(field), overrides);
}

std::string SpecProblem::text() const {
  std::string line;
  if (!where.empty()) line += where + ": ";
  if (warning) line += "warning: ";
  if (!field.empty() && where != "--set " + field) line += field + ": ";
  return line + message;
}

bool SpecResult::ok() const { return only_warnings(problems); }

SpecResult load_spec(std::string_view text, std::string_view origin,
                     const std::vector<SpecOverride>& overrides) {
  SpecResult result;
  TomlParse parse = parse_toml(text);
  if (!parse.root) {
    result.problems.push_back(syntax_problem(origin, parse.error));
    return result;
  }
  std::vector<SpecProblem> unapplied = apply_overrides(overrides, &*parse.root);
  SpecFindings findings;
  Filler filler(&findings);
  filler.fill(*parse.root, &result.spec, "");
  require(result.spec, "", filler, &findings);
  fill_defaults(&result.spec, filler.given());
  resolve_ranks_and_heads(&result.spec, &findings);
  check_relations(result.spec, &findings);
  result.problems = placed(std::move(findings.problems), filler, origin, overrides);
  for (SpecProblem& problem : unapplied) {
    if (result.problems.size() <= kSpecProblemsShown) result.problems.push_back(std::move(problem));
  }
  if (result.ok()) resolve_steps(&result.spec);
  return result;
}

}  // namespace swax
