#include "jobs/toml_limits.h"

#include <algorithm>

#include "jobs/spec.h"
#include "proto/base/text.h"

namespace swax {
namespace {

int line_of(std::string_view text, size_t offset) {
  return static_cast<int>(
             std::count(text.begin(), text.begin() + static_cast<int64_t>(offset), '\n')) +
         1;
}

std::optional<TomlError> encoding_problem(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF"))
    return TomlError{1, 1, "starts with a UTF-8 byte order mark (EF BB BF); save it without one"};
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))
    return TomlError{1, 1, "starts with a UTF-16 byte order mark; save it as UTF-8"};
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    return TomlError{line_of(text, nul), 0, "holds a NUL byte; this is not a text file"};
  size_t bad = 0;
  if (!valid_utf8(text, &bad))
    return TomlError{line_of(text, bad), 0,
                     "byte " + to_text(static_cast<int64_t>(bad)) + " (" +
                         printable(text.substr(bad, 1)) + ") is not valid UTF-8"};
  return std::nullopt;
}

std::optional<TomlError> line_problem(std::string_view text) {
  int line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const int64_t bytes = static_cast<int64_t>(end - begin);
    if (bytes > kSpecLineBytesMax)
      return TomlError{
          line, 0,
          "line has " + to_text(bytes) + " bytes, the most is " + to_text(kSpecLineBytesMax)};
    begin = end + 1;
  }
  return std::nullopt;
}

// Walks over the text once. Strings and comments are skipped as the TOML grammar has them, so on a
// valid text the scanner and the parser see the same brackets and dots. On an invalid one the
// parser stops at the first error and never reaches what the scanner may have misread after it.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<TomlError> problem() {
    while (at_ < text_.size()) {
      step();
      if (dots_ >= kSpecKeyPartsMax)
        return TomlError{line_, 0,
                         "key has more than " + to_text(kSpecKeyPartsMax) + " dotted parts"};
      if (depth_ > kTomlDepthMax)
        return TomlError{line_, 0,
                         "brackets are nested more than " + to_text(kTomlDepthMax) + " deep"};
    }
    return std::nullopt;
  }

 private:
  void step() {
    const char c = text_[at_++];
    switch (c) {
      case '\n':
        ++line_;
        dots_ = 0;
        break;
      case '#':
        at_ = std::min(text_.find('\n', at_), text_.size());
        break;
      case '"':
      case '\'':
        skip_string(c);
        break;
      case '.':
        ++dots_;
        break;
      case '[':
      case '{':
        ++depth_;
        dots_ = 0;
        break;
      case ']':
      case '}':
        depth_ = std::max(0, depth_ - 1);
        dots_ = 0;
        break;
      case '=':
      case ',':
        dots_ = 0;
        break;
      default:
        break;
    }
  }

  void skip_string(char quote) {
    const std::string fence(3, quote);
    if (text_.substr(at_ - 1, 3) != fence) return skip_line_string(quote);
    at_ += 2;
    while (at_ < text_.size()) {
      if (text_.substr(at_, 3) == fence) {
        at_ += 3;
        // Up to two quotes may stand directly before the closing three.
        for (int extra = 0; extra < 2 && at_ < text_.size() && text_[at_] == quote; ++extra) ++at_;
        return;
      }
      if (text_[at_] == '\n') ++line_;
      if (quote == '"' && text_[at_] == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] != '\n')
        ++at_;
      ++at_;
    }
  }

  void skip_line_string(
      char quote) {  // ends at the quote, or before the line break if there is none
    while (at_ < text_.size() && text_[at_] != '\n') {
      const char c = text_[at_++];
      if (c == quote) return;
      if (c == '\\' && quote == '"' && at_ < text_.size() && text_[at_] != '\n') ++at_;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  int depth_ = 0;
  int dots_ = 0;  // since the last delimiter
};

}  // namespace

std::optional<TomlError> toml_limits_problem(std::string_view text) {
  const int64_t bytes = static_cast<int64_t>(text.size());
  if (bytes > kSpecBytesMax)
    return TomlError{
        0, 0, "has " + to_text(bytes) + " bytes, a job spec has at most " + to_text(kSpecBytesMax)};
  if (auto problem = encoding_problem(text)) return problem;
  if (auto problem = line_problem(text)) return problem;
  return Scanner(text).problem();
}

}  // namespace swax
