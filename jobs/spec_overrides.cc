#include "jobs/spec_overrides.h"

#include <algorithm>
#include <charconv>

#include "jobs/spec_fields.h"
#include "proto/base/text.h"

namespace swax {
namespace {

struct PathPart {
  std::string name;
  int index = -1;  // of a list element
};

bool is_key_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

// "sources[0]" -> {sources, 0}. False when it is no key.
bool read_part(std::string_view text, PathPart* part) {
  const size_t bracket = text.find('[');
  part->name = text.substr(0, bracket);
  if (part->name.empty() || !std::all_of(part->name.begin(), part->name.end(), is_key_char))
    return false;
  if (bracket == std::string_view::npos) return true;
  if (!text.ends_with(']')) return false;
  const std::string_view digits = text.substr(bracket + 1, text.size() - bracket - 2);
  const char* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, part->index);
  return read.ec == std::errc{} && read.ptr == end && part->index >= 0;
}

std::string read_path(std::string_view path, std::vector<PathPart>* parts) {
  const auto pieces = split(path, '.');
  if (pieces.size() > kSpecKeyPartsMax || path.size() > kSpecLineBytesMax)
    return "has more than " + to_text(kSpecKeyPartsMax) + " dotted parts";
  for (const std::string_view piece : pieces) {
    if (!read_part(piece, &parts->emplace_back())) return "is not a field: write section.key=value";
  }
  return "";
}

// The field a path names; null when a part is unknown.
const FieldDescriptor* find_field(const std::vector<PathPart>& parts) {
  const google::protobuf::Descriptor* message = pb::JobSpec::descriptor();
  const FieldDescriptor* field = nullptr;
  for (const PathPart& part : parts) {
    if (message == nullptr) return nullptr;
    field = message->FindFieldByName(part.name);
    if (field == nullptr || rule_of(field).resolved()) return nullptr;
    if (part.index >= 0 && !field->is_repeated()) return nullptr;
    message = is_section(field) ? field->message_type() : nullptr;
  }
  return field;
}

void set_place(TomlNode* node, int override_index) {
  node->place = {.line = 0, .column = 0, .override_index = override_index};
  for (TomlNode& item : node->items) set_place(&item, override_index);
  for (auto& [key, value] : node->entries) set_place(&value, override_index);
}

// A string field takes a bare word as it stands, so that `--set job.name=a` needs no quotes.
std::string read_value(const std::string& text, bool string_field, TomlNode* value) {
  if (static_cast<int64_t>(text.size()) > kSpecLineBytesMax)
    return "value has " + to_text(static_cast<int64_t>(text.size())) + " bytes, the most is " +
           to_text(kSpecLineBytesMax);
  const bool literal = text.starts_with('"') || text.starts_with('\'');
  if (string_field && !literal) {
    value->kind = TomlNode::Kind::kString;
    value->text = text;
    return "";
  }
  if (text.find('\n') == std::string::npos) {
    TomlParse parse = parse_toml("v = " + text);
    if (parse.root && parse.root->entries.size() == 1 && parse.root->entries[0].first == "v") {
      *value = std::move(parse.root->entries[0].second);
      return "";
    }
  }
  return "\"" + printable(text) + "\" is not a TOML value";
}

TomlNode* find_or_add(TomlNode* table, const std::string& key) {
  if (TomlNode* found = table->find(key)) return found;
  return &table->entries.emplace_back(key, TomlNode{}).second;
}

// The node to write to; null with a problem when the text has something else on the way.
TomlNode* walk(const std::vector<PathPart>& parts, int override_index, TomlNode* root,
               std::string* problem) {
  TomlNode* node = root;
  for (const PathPart& part : parts) {
    if (node->kind != TomlNode::Kind::kTable) {
      *problem = part.name + " has no table around it";
      return nullptr;
    }
    const bool fresh = node->find(part.name) == nullptr;
    node = find_or_add(node, part.name);
    if (fresh) set_place(node, override_index);
    if (part.index < 0) continue;
    const int64_t count = static_cast<int64_t>(node->items.size());
    if (node->kind != TomlNode::Kind::kArray || part.index >= count) {
      *problem = part.name + " has " + to_text(count) + " elements, the first is [0]";
      return nullptr;
    }
    node = &node->items[static_cast<size_t>(part.index)];
  }
  return node;
}

// steps and tokens say the same thing: the one on the command line replaces the one in the file.
void drop_other_length(std::string_view path, TomlNode* root) {
  const std::string_view other = path == "training.steps"    ? "tokens"
                                 : path == "training.tokens" ? "steps"
                                                             : "";
  TomlNode* training = root->find("training");
  if (other.empty() || training == nullptr) return;
  std::erase_if(training->entries, [&](const auto& entry) {
    return entry.first == other && entry.second.place.override_index < 0;
  });
}

std::string apply(const SpecOverride& override, int index, TomlNode* root) {
  std::vector<PathPart> parts;
  if (std::string problem = read_path(override.path, &parts); !problem.empty()) return problem;
  const FieldDescriptor* field = find_field(parts);
  if (field == nullptr)
    return "unknown key; nearest known key is \"" + nearest_key(override.path) + "\"";
  const bool scalar = !field->is_repeated() || parts.back().index >= 0;
  const bool string_field = scalar && field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  TomlNode value;
  if (std::string problem = read_value(override.value, string_field, &value); !problem.empty())
    return problem;
  std::string problem;
  TomlNode* node = walk(parts, index, root, &problem);
  if (node == nullptr) return problem;
  *node = std::move(value);
  set_place(node, index);
  drop_other_length(override.path, root);
  return "";
}

}  // namespace

std::vector<SpecProblem> apply_overrides(const std::vector<SpecOverride>& overrides,
                                         TomlNode* root) {
  std::vector<SpecProblem> problems;
  for (size_t i = 0; i < overrides.size(); ++i) {
    std::string message = apply(overrides[i], static_cast<int>(i), root);
    if (message.empty()) continue;
    const std::string path = printable(overrides[i].path);
    problems.push_back({.where = "--set " + path, .field = path, .message = std::move(message)});
  }
  return problems;
}

}  // namespace swax
