#include "worker/train/arguments.h"

#include <charconv>
#include <cstring>
#include <map>

#include "proto/base/text.h"

namespace swax {
namespace {

template <typename T>
Status parse_number(const std::string& option, const std::string& text, T low, T high, T* out) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= low && value <= high))
    return invalid_argument(option + "=" + printable(text) + ": must be a number in " +
                            to_text(low) + ".." + to_text(high));
  *out = value;
  return ok();
}

using Options = std::multimap<std::string, std::string>;

Result<std::string> required(const Options& options, const std::string& name) {
  const auto it = options.find(name);
  if (it == options.end()) return invalid_argument(name + " is missing");
  return it->second;
}

std::string optional_text(const Options& options, const std::string& name,
                          const std::string& fallback) {
  const auto it = options.find(name);
  return it == options.end() ? fallback : it->second;
}

Result<TrainArguments> parse_train(const Options& options) {
  TrainArguments args;
  SWAX_ASSIGN(args.spec, required(options, "--spec"));
  SWAX_ASSIGN(args.state, required(options, "--state"));
  SWAX_ASSIGN(const std::string epoch, required(options, "--epoch"));
  SWAX_ASSIGN(const std::string ranks, required(options, "--ranks"));
  SWAX_TRY(parse_number<int64_t>("--epoch", epoch, 1, INT64_MAX, &args.epoch));
  SWAX_TRY(parse_number<int>("--ranks", ranks, 1, 65536, &args.ranks));
  args.checkpoints = optional_text(options, "--checkpoints", "");
  args.records = optional_text(options, "--records", "");
  args.logs = optional_text(options, "--logs", "");
  const auto [first, last] = options.equal_range("--data");
  for (auto it = first; it != last; ++it) args.data.push_back(it->second);
  if (args.data.empty()) return invalid_argument("--data is missing");
  return args;
}

Result<GenerateArguments> parse_generate(const Options& options) {
  GenerateArguments args;
  SWAX_ASSIGN(args.spec, required(options, "--spec"));
  SWAX_ASSIGN(args.checkpoints, required(options, "--checkpoints"));
  args.prompt = optional_text(options, "--prompt", "");
  SWAX_TRY(parse_number<int64_t>("--step", optional_text(options, "--step", "-1"), -1, INT64_MAX,
                                 &args.step));
  SWAX_TRY(parse_number<int64_t>("--tokens", optional_text(options, "--tokens", "200"), 1,
                                 1'000'000'000, &args.tokens));
  SWAX_TRY(parse_number<double>("--temperature", optional_text(options, "--temperature", "0.8"),
                                0.0, 100.0, &args.temperature));
  SWAX_TRY(parse_number<int>("--top-k", optional_text(options, "--top-k", "40"), 0, 1 << 20,
                             &args.top_k));
  SWAX_TRY(parse_number<uint64_t>("--seed", optional_text(options, "--seed", "0"), 0, UINT64_MAX,
                                  &args.seed));
  return args;
}

}  // namespace

Result<Arguments> parse_train_arguments(int argc, char** argv) {
  Arguments arguments;
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "version" || verb == "--version") {
    arguments.version = true;
    return arguments;
  }
  if (verb == "doctor") {
    arguments.doctor = true;
    return arguments;
  }
  Options options;
  for (int i = 2; i < argc; i += 2) {
    const std::string name = argv[i];
    constexpr const char* kKnown[] = {
        "--spec", "--state", "--epoch",  "--ranks",  "--data",        "--checkpoints", "--records",
        "--logs", "--step",  "--prompt", "--tokens", "--temperature", "--top-k",       "--seed"};
    bool known = false;
    for (const char* k : kKnown) known = known || name == k;
    if (!known) return invalid_argument("unknown option " + printable(name));
    if (i + 1 >= argc) return invalid_argument(name + ": value is missing");
    if (name != "--data" && options.count(name) > 0)
      return invalid_argument(name + " is given twice");
    options.emplace(name, argv[i + 1]);
  }
  if (verb == "train") {
    SWAX_ASSIGN(arguments.train, parse_train(options));
  } else if (verb == "generate") {
    SWAX_ASSIGN(arguments.generate, parse_generate(options));
  } else {
    return invalid_argument(
        "verb must be train, generate, doctor or version; this program is started by swax, see "
        "`swax "
        "--help`");
  }
  return arguments;
}

Status agree_fingerprint(Collectives& group, const std::string& fingerprint) {
  constexpr size_t kBytes = 512;
  std::vector<char> mine(kBytes, '\0');
  std::strncpy(mine.data(), fingerprint.c_str(), kBytes - 1);
  std::vector<char> all(kBytes * static_cast<size_t>(group.size()));
  SWAX_TRY(group.all_gather_host(std::as_bytes(std::span(mine)),
                                 std::as_writable_bytes(std::span(all))));
  for (int rank = 1; rank < group.size(); ++rank) {
    const char* other = all.data() + static_cast<size_t>(rank) * kBytes;
    if (std::memcmp(all.data(), other, kBytes) != 0)
      return failed_precondition(std::string("arithmetic fingerprints differ: rank 0 has \"") +
                                 all.data() + "\", rank " + to_text(rank) + " has \"" + other +
                                 "\"");
  }
  return ok();
}

}  // namespace swax
