#include "worker/agent/orted_command.h"

#include "proto/base/text.h"

namespace swax {
namespace {

constexpr std::string_view kShellOnly = ";&|<>()$`\n*?#!~";

Status refused(std::string_view why) {
  return invalid_argument("launch command: " + std::string(why));
}

Result<std::vector<std::string>> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;  // in a word
  char quote = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != '\0') {
      if (c == quote) {
        quote = '\0';
      } else if (quote == '"' && (c == '$' || c == '`')) {
        return refused("a variable or command in quotes");
      } else if (quote == '"' && c == '\\' && i + 1 < text.size()) {
        word += text[++i];
      } else {
        word += c;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
      open = true;
    } else if (c == ' ' || c == '\t') {
      if (open) words.push_back(std::move(word));
      word.clear();
      open = false;
    } else if (c == '\\' && i + 1 < text.size()) {
      word += text[++i];
      open = true;
    } else if (kShellOnly.find(c) != std::string_view::npos) {
      return refused(std::string("the sign ") + c + " outside quotes");
    } else {
      word += c;
      open = true;
    }
  }
  if (quote != '\0') return refused("an open quote");
  if (open) words.push_back(std::move(word));
  return words;
}

// For users whose login shell is sh or ksh mpirun writes `( test ! -r ./.profile || . ./.profile;
// orted ... )`.
std::string_view without_subshell(std::string_view text) {
  if (text.starts_with("( ") && text.ends_with(" )")) return text.substr(2, text.size() - 4);
  return text;
}

// Where the word orted begins and ends, as its own word or the end of a path.
size_t find_orted(std::string_view text) {
  constexpr std::string_view kName = "orted";
  for (size_t at = text.find(kName); at != std::string_view::npos; at = text.find(kName, at + 1)) {
    const bool begins =
        at == 0 || text[at - 1] == ' ' || text[at - 1] == '/' || text[at - 1] == ';';
    const bool ends = at + kName.size() == text.size() || text[at + kName.size()] == ' ';
    if (begins && ends) return at + kName.size();
  }
  return std::string_view::npos;
}

}  // namespace

Result<std::vector<std::string>> orted_arguments(std::string_view command) {
  const std::string_view inner = without_subshell(command);
  const size_t at = find_orted(inner);
  if (at == std::string_view::npos) return refused("only mpirun's daemon, orted, is started");
  return words_of(inner.substr(at));
}

}  // namespace swax
