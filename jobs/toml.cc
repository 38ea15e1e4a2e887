#include "jobs/toml.h"

#include <toml++/toml.h>

#include <exception>

#include "proto/base/text.h"

namespace swax {
namespace {

TomlPlace place_of(const toml::source_region& region) {
  return {static_cast<int>(region.begin.line), static_cast<int>(region.begin.column), -1};
}

// Depth is bounded by toml_limits_problem.
TomlNode to_node(const toml::node& source) {
  TomlNode node;
  node.place = place_of(source.source());
  switch (source.type()) {
    case toml::node_type::boolean:
      node.kind = TomlNode::Kind::kBool;
      node.boolean = source.as_boolean()->get();
      break;
    case toml::node_type::integer:
      node.kind = TomlNode::Kind::kInteger;
      node.integer = source.as_integer()->get();
      break;
    case toml::node_type::floating_point:
      node.kind = TomlNode::Kind::kFloat;
      node.real = source.as_floating_point()->get();
      break;
    case toml::node_type::string:
      node.kind = TomlNode::Kind::kString;
      node.text = source.as_string()->get();
      break;
    case toml::node_type::array:
      node.kind = TomlNode::Kind::kArray;
      for (const toml::node& item : *source.as_array()) node.items.push_back(to_node(item));
      break;
    case toml::node_type::table:
      node.kind = TomlNode::Kind::kTable;
      for (const auto& [key, value] : *source.as_table()) {
        node.entries.emplace_back(std::string(key.str()), to_node(value));
        node.entries.back().second.place = place_of(key.source());
      }
      break;
    default:
      node.kind = TomlNode::Kind::kTime;
      break;
  }
  return node;
}

}  // namespace

TomlNode* TomlNode::find(std::string_view key) {
  for (auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

const TomlNode* TomlNode::find(std::string_view key) const {
  return const_cast<TomlNode*>(this)->find(key);
}

const char* toml_kind_name(TomlNode::Kind kind) {
  switch (kind) {
    case TomlNode::Kind::kBool:
      return "a boolean";
    case TomlNode::Kind::kInteger:
      return "an integer";
    case TomlNode::Kind::kFloat:
      return "a float";
    case TomlNode::Kind::kString:
      return "a string";
    case TomlNode::Kind::kArray:
      return "a list";
    case TomlNode::Kind::kTable:
      return "a table";
    case TomlNode::Kind::kTime:
      break;
  }
  return "a date or time";
}

TomlParse parse_toml(std::string_view text) {
  TomlParse parse;
  if (auto problem = toml_limits_problem(text)) {
    parse.error = *problem;
    return parse;
  }
  try {
    parse.root = to_node(toml::parse(text));
  } catch (const toml::parse_error& error) {
    const TomlPlace place = place_of(error.source());
    parse.error = {place.line, place.column, printable(error.description(), 200)};
  } catch (const std::exception& error) {
    parse.error = {0, 0, printable(error.what(), 200)};
  }
  return parse;
}

}  // namespace swax
