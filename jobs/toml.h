// TOML text as a plain tree with places. toml.cc is the only file that sees toml++.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jobs/toml_limits.h"

namespace swax {

struct TomlPlace {
  int line = 0;
  int column = 0;
  int override_index = -1;  // >= 0: from this --set, not from the file
};

struct TomlNode {
  enum class Kind { kBool, kInteger, kFloat, kString, kArray, kTable, kTime };
  Kind kind = Kind::kTable;
  TomlPlace place;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0.0;
  std::string text;             // kString
  std::vector<TomlNode> items;  // kArray
  std::vector<std::pair<std::string, TomlNode>>
      entries;  // kTable; the place of an entry is its key's

  TomlNode* find(std::string_view key);
  const TomlNode* find(std::string_view key) const;
};
const char* toml_kind_name(TomlNode::Kind kind);  // "an integer"

struct TomlParse {
  std::optional<TomlNode> root;  // a table; empty on an error
  TomlError error;
};
// Checks toml_limits_problem first.
TomlParse parse_toml(std::string_view text);

}  // namespace swax
