#include "ops/cli/args.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <climits>
#include <optional>

#include "proto/base/text.h"

namespace swax {
namespace {

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  int best_distance = INT_MAX;
  for (const std::string& candidate : known) {
    const int distance = edit_distance(word.substr(0, 64), candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

template <typename T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Status check_value(const OptionSpec& option, const std::string& text) {
  const std::string given = option.name + "=" + printable(text);
  const auto in_range = [&](auto value) {
    return value.has_value() && static_cast<double>(*value) >= option.min &&
           static_cast<double>(*value) <= option.max;
  };
  if (option.kind == ArgKind::kInteger && !in_range(number<int64_t>(text))) {
    return invalid_argument(given + ": must be an integer in " +
                            to_text(static_cast<int64_t>(option.min)) + ".." +
                            to_text(static_cast<int64_t>(option.max)));
  }
  if (option.kind == ArgKind::kReal && !in_range(number<double>(text))) {
    return invalid_argument(given + ": must be a number in " + to_text(option.min) + ".." +
                            to_text(option.max));
  }
  if (!option.one_of.empty()) {
    const std::vector<std::string_view> choices = split(option.one_of, '|');
    if (std::find(choices.begin(), choices.end(), text) == choices.end())
      return invalid_argument(given + ": must be one of " + option.one_of);
  }
  return ok();
}

std::string names_for_cli11(const OptionSpec& option) {
  const std::string letter = option.letter == '\0' ? "" : std::string("-") + option.letter + ",";
  return letter + option.name;
}

struct RawArguments {
  std::map<std::string, std::vector<std::string>, std::less<>> given;
  std::vector<std::string> rest;  // words and unknown options
};

// The library splits the command line; what the values mean is checked here, in our words.
Result<RawArguments> split_arguments(const std::vector<OptionSpec>& options,
                                     std::vector<std::string> words) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::map<std::string, std::vector<std::string>> values;
  std::vector<std::pair<const OptionSpec*, CLI::Option*>> added;
  try {
    for (const OptionSpec& option : options) {
      CLI::Option* o = option.kind == ArgKind::kFlag
                           ? app.add_flag(names_for_cli11(option))
                           : app.add_option(names_for_cli11(option), values[option.name]);
      if (option.kind != ArgKind::kFlag) o->expected(1)->allow_extra_args(false);
      o->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
      added.emplace_back(&option, o);
    }
    std::reverse(words.begin(), words.end());  // as the library wants it
    app.parse(std::move(words));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();
    return invalid_argument(printable(text.substr(0, text.find(':')), 100) +
                            ": the value is missing");
  } catch (const CLI::Error& error) {
    return invalid_argument(printable(error.what(), 200));
  }
  RawArguments raw;
  for (const auto& [option, o] : added) {
    if (o->count() > 0) raw.given[option->name] = o->results();
  }
  raw.rest = app.remaining();
  return raw;
}

Status unknown_option(const VerbSpec& verb, const std::string& word) {
  std::vector<std::string> known = {"--help"};
  for (const OptionSpec& option : verb.options) known.push_back(option.name);
  const std::string name = word.substr(0, word.find('='));
  return invalid_argument(verb.name + ": unknown option " + printable(name) +
                          "; nearest known option is " + nearest(name, known));
}

}  // namespace

class ArgsBuilder {
 public:
  explicit ArgsBuilder(const VerbSpec& verb) : verb_(verb) {}

  Result<Args> build(RawArguments raw) {
    args_.given_ = std::move(raw.given);
    SWAX_TRY(take_words(raw.rest));
    for (const OptionSpec& option : verb_.options) SWAX_TRY(check_option(option));
    return check_words();
  }

 private:
  std::string verb() const { return verb_.name + ": "; }

  Status take_words(const std::vector<std::string>& rest) {
    bool only_words = false;
    for (const std::string& word : rest) {
      if (!only_words && word == "--") {
        only_words = true;
      } else if (!only_words && word.size() > 1 && word[0] == '-') {
        return unknown_option(verb_, word);
      } else {
        args_.words_.push_back(word);
      }
    }
    return ok();
  }

  // An option name where a value should stand is a forgotten value; --x=--y still says it.
  bool is_option_name(const std::string& text) const {
    return std::any_of(verb_.options.begin(), verb_.options.end(),
                       [&](const OptionSpec& option) { return option.name == text; });
  }

  Status check_option(const OptionSpec& option) {
    args_.fallbacks_[option.name] = option.fallback;
    const auto it = args_.given_.find(option.name);
    if (it == args_.given_.end()) {
      if (!option.required) return ok();
      return invalid_argument(verb() + option.name + " " + option.value + " is missing");
    }
    if (!option.repeat && it->second.size() > 1)
      return invalid_argument(verb() + option.name + " is given twice");
    if (option.kind == ArgKind::kFlag) return ok();
    for (const std::string& text : it->second) {
      if (is_option_name(text))
        return invalid_argument(verb() + option.name + ": the value is missing before " + text);
      if (const Status s = check_value(option, text); !s.ok())
        return invalid_argument(verb() + s.message());
    }
    return ok();
  }

  Result<Args> check_words() {
    int min = 0, max = 0;
    for (const WordSpec& word : verb_.words) {
      if (static_cast<int>(args_.words_.size()) < min + word.min)
        return invalid_argument(verb() + word.name + " is missing (" + word.doc + ")");
      min += word.min;
      max += word.max;
    }
    if (static_cast<int>(args_.words_.size()) > max)
      return invalid_argument(verb() + "unexpected argument " +
                              printable(args_.words_[static_cast<size_t>(max)]));
    return std::move(args_);
  }

  const VerbSpec& verb_;
  Args args_;
};

bool Args::has(std::string_view name) const { return given_.contains(name); }

const std::string& Args::text(std::string_view name) const {
  if (const auto it = given_.find(name); it != given_.end()) return it->second.front();
  const auto it = fallbacks_.find(name);
  SWAX_CHECK(it != fallbacks_.end());
  return it->second;
}

int64_t Args::integer(std::string_view name) const {
  const auto value = number<int64_t>(text(name));
  SWAX_CHECK(value.has_value());
  return *value;
}

double Args::real(std::string_view name) const {
  const auto value = number<double>(text(name));
  SWAX_CHECK(value.has_value());
  return *value;
}

const std::vector<std::string>& Args::list(std::string_view name) const {
  static const std::vector<std::string> kNone;
  const auto it = given_.find(name);
  return it == given_.end() ? kNone : it->second;
}

namespace {

bool asks_help(const std::string& word) { return word == "--help" || word == "-h"; }

// The verb that the first words name: two words where the first one is a group.
Result<const VerbSpec*> find_verb(const std::vector<VerbSpec>& verbs,
                                  const std::vector<std::string>& words, std::string* group) {
  std::vector<std::string> firsts, seconds;
  for (const VerbSpec& verb : verbs) {
    const size_t space = verb.name.find(' ');
    const std::string first = verb.name.substr(0, space);
    firsts.push_back(first);
    if (first != words[0]) continue;
    if (space == std::string::npos) return &verb;
    *group = first;
    seconds.push_back(verb.name.substr(space + 1));
    if (words.size() > 1 && seconds.back() == words[1]) return &verb;
  }
  if (group->empty()) {
    return invalid_argument("unknown verb " + printable(words[0]) + "; nearest known verb is \"" +
                            nearest(words[0], firsts) + "\" (swax --help lists all)");
  }
  std::string known;
  for (const std::string& second : seconds) known += (known.empty() ? "" : ", ") + second;
  if (words.size() < 2) return invalid_argument(*group + " needs one of: " + known);
  return invalid_argument("unknown verb " + *group + " " + printable(words[1]) +
                          "; nearest known verb is \"" + *group + " " + nearest(words[1], seconds) +
                          "\"");
}

}  // namespace

Result<CommandLine> parse_command_line(const std::vector<VerbSpec>& verbs,
                                       const std::vector<std::string>& words) {
  CommandLine line;
  if (words.empty()) return invalid_argument("a verb is missing; swax --help lists all");
  if (asks_help(words[0]) || words[0] == "help") {
    line.help = help_of_program(verbs, "");
    return line;
  }
  std::vector<std::string> named = words;
  if (named[0] == "--version") named[0] = "version";
  std::string group;
  const Result<const VerbSpec*> found = find_verb(verbs, named, &group);
  if (!found.ok()) {
    if (group.empty() || words.size() < 2 || !asks_help(words[1])) return found.status();
    line.help = help_of_program(verbs, group);
    return line;
  }
  const VerbSpec& verb = **found;
  const std::vector<std::string> rest(words.begin() + (group.empty() ? 1 : 2), words.end());
  const auto end = std::find(rest.begin(), rest.end(), "--");
  if (std::any_of(rest.begin(), end, asks_help)) {
    line.help = help_of_verb(verb);
    return line;
  }
  Result<RawArguments> raw = split_arguments(verb.options, rest);
  if (!raw.ok()) return raw.status().with_context(verb.name);
  ArgsBuilder builder(verb);
  SWAX_ASSIGN(line.args, builder.build(std::move(raw).value()));
  line.verb = &verb;
  return line;
}

}  // namespace swax
