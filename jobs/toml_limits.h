// Limits on TOML text that hold before any parser sees it: a parser that recurses per key part or
// per bracket must never get text that makes it recurse deeply. Understands comments and the four
// kinds of strings, nothing else. Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace swax {

constexpr int kTomlDepthMax = 16;  // open brackets and braces at one place

struct TomlError {
  int line = 0;    // from 1; 0: the text as a whole
  int column = 0;  // from 1; 0: unknown
  std::string message;
};

// The first thing that is too large, not UTF-8 or too deep; nothing when the text may be parsed.
std::optional<TomlError> toml_limits_problem(std::string_view text);

}  // namespace swax
