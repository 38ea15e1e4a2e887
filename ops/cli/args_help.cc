// Help texts, at most 80 columns, from the same data that the command line is checked against.
#include <algorithm>

#include "ops/cli/args.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kColumns = 80;

// `text` in lines that begin at column `indent`; the first line follows what stands there already.
std::string wrapped(std::string_view text, size_t indent) {
  std::string out;
  size_t column = indent;
  for (const std::string_view word : split(text, ' ')) {
    if (column > indent && column + 1 + word.size() > kColumns) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out + "\n";
}

std::string row(std::string head, std::string_view text, size_t indent) {
  if (head.size() + 2 > indent) {
    head += "\n" + std::string(indent, ' ');
  } else {
    head.resize(indent, ' ');
  }
  return head + wrapped(text, indent);
}

std::string option_head(const OptionSpec& option) {
  const std::string letter = option.letter == '\0' ? "" : std::string("-") + option.letter + ", ";
  return "  " + letter + option.name + (option.value.empty() ? "" : " " + option.value);
}

std::string option_doc(const OptionSpec& option) {
  std::string doc = option.doc;
  if (!option.fallback.empty()) doc += "; default " + option.fallback;
  if (option.repeat) doc += "; may be repeated";
  if (option.required) doc += "; required";
  return doc;
}

std::string usage(const VerbSpec& verb) {
  std::string text = "swax " + verb.name;
  for (const WordSpec& word : verb.words) {
    const std::string name = word.name + (word.max > 1 ? "..." : "");
    text += word.min == 0 ? " [" + name + "]" : " " + name;
  }
  for (const OptionSpec& option : verb.options) {
    const std::string name = option.letter == '\0' ? option.name : std::string("-") + option.letter;
    const std::string shown = name + (option.value.empty() ? "" : " " + option.value);
    text += option.required ? " " + shown : " [" + shown + "]";
  }
  return text;
}

}  // namespace

std::string help_of_verb(const VerbSpec& verb) {
  std::string text = "Usage: " + wrapped(usage(verb), 7) + "\n" + wrapped(verb.summary, 0);
  if (!verb.details.empty()) {
    for (const std::string_view paragraph : split(verb.details, '\n'))
      text += "\n" + wrapped(paragraph, 0);
  }
  size_t indent = 12;
  for (const OptionSpec& option : verb.options)
    indent = std::max(indent, std::min<size_t>(option_head(option).size() + 2, 30));
  text += "\n";
  for (const WordSpec& word : verb.words) text += row("  " + word.name, word.doc, indent);
  for (const OptionSpec& option : verb.options)
    text += row(option_head(option), option_doc(option), indent);
  text += row("  -h, --help", "this text", indent);
  text += verb.examples.size() > 1 ? "\nExamples:\n" : "\nExample:\n";
  for (const std::string& example : verb.examples) text += "  " + example + "\n";
  return text;
}

std::string help_of_program(const std::vector<VerbSpec>& verbs, std::string_view group) {
  std::string text = group.empty()
                         ? "Usage: swax VERB [ARGUMENTS]\n\nTrains SWAX language models; the same "
                           "job spec gives the same bits.\n\n"
                         : "Usage: swax " + std::string(group) + " VERB [ARGUMENTS]\n\n";
  for (const VerbSpec& verb : verbs) {
    if (group.empty() || verb.name.starts_with(std::string(group) + " "))
      text += row("  " + verb.name, verb.summary, 22);
  }
  text += "\nswax VERB --help names the options of a verb, with an example.\n";
  if (!group.empty()) return text;
  text += "\nResults go to stdout, progress and messages to stderr. Exit codes:\n";
  text += row("  0", "done", 6);
  text += row("  1", "internal error", 6);
  text += row("  2", "usage, the job spec or an input file is wrong", 6);
  text += row("  3", "no such run, job, checkpoint or data set", 6);
  text += row("  4", "conflict, wrong state, damaged stored data; diff: the runs differ", 6);
  text += row("  5", "the coordinator is not reached; the request id is printed", 6);
  text += row("  8", "the service has as many jobs as it takes", 6);
  text += row("  10", "the job FAILED; 11 CANCELLED, 12 EXPIRED", 6);
  text += row("  124", "the time to wait was over", 7);
  return text;
}

OptionSpec output_option() {
  return {.name = "--output",
          .value = "FORMAT",
          .doc = "text or json",
          .fallback = "text",
          .one_of = "text|json",
          .letter = 'o'};
}

OptionSpec state_option() {
  return {.name = "--state", .value = "DIR", .doc = "state folder of the run", .required = true};
}

OptionSpec set_option() {
  return {.name = "--set",
          .value = "KEY=VALUE",
          .doc = "value of a spec field, e.g. training.steps=50",
          .repeat = true};
}

OptionSpec ranks_option() {
  return {.name = "--ranks",
          .value = "N",
          .doc = "number of ranks, the same as --set parallelism.ranks=N",
          .kind = ArgKind::kInteger,
          .min = 1,
          .max = 65536};
}

}  // namespace swax
