// Command lines: verbs with their options as plain data; the help text comes from the same data.
// `--x v` and `--x=v`, one-letter options, `--` before words that begin with a dash. An unknown
// verb or option is refused with the nearest known one, an option that is given twice too.
// args.cc is the only file that sees CLI11. Threads: plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/status.h"

namespace swax {

enum class ArgKind { kFlag, kText, kInteger, kReal };

struct OptionSpec {
  std::string name;   // "--state"
  std::string value;  // what the help calls the value: "DIR"; empty for a flag
  std::string doc;    // one sentence for the help
  ArgKind kind = ArgKind::kText;
  std::string fallback{};  // text of the value when not given
  bool required = false;
  bool repeat = false;
  double min = 0;        // kInteger and kReal, inclusive
  double max = 1e15;     // below 2^53: exact in a double
  std::string one_of{};  // "text|json"
  char letter = '\0';    // 'o' for -o
};

struct WordSpec {
  std::string name;  // "FILE"
  std::string doc;
  int min = 1;
  int max = 1;
};

class Args {
 public:
  bool has(std::string_view name) const;                 // given on the command line
  const std::string& text(std::string_view name) const;  // given or fallback
  int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;
  const std::vector<std::string>& list(std::string_view name) const;
  const std::vector<std::string>& words() const { return words_; }

 private:
  friend class ArgsBuilder;
  std::map<std::string, std::vector<std::string>, std::less<>> given_;
  std::map<std::string, std::string, std::less<>> fallbacks_;
  std::vector<std::string> words_;
};

struct VerbSpec {
  std::string name;     // "validate", "data build"
  std::string summary;  // one line
  std::string details;  // sentences for the help of the verb; may be empty
  std::vector<WordSpec> words;
  std::vector<OptionSpec> options;
  std::vector<std::string> examples;
  int (*run)(const Args& args) = nullptr;  // the exit code
};

struct CommandLine {
  const VerbSpec* verb = nullptr;  // null: print `help` and leave with 0
  Args args;
  std::string help;
};
// kInvalidArgument: says what is wrong and what is known.
Result<CommandLine> parse_command_line(const std::vector<VerbSpec>& verbs,
                                       const std::vector<std::string>& words);

std::string help_of_program(const std::vector<VerbSpec>& verbs, std::string_view group);
std::string help_of_verb(const VerbSpec& verb);

// Options that several verbs have.
OptionSpec output_option();
OptionSpec state_option();
OptionSpec set_option();
OptionSpec ranks_option();

}  // namespace swax
