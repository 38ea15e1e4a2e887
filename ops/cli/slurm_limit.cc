#include "ops/cli/slurm_limit.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>

#include "ops/cli/slurm_command.h"
#include "proto/base/clock.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kSqueueMs = 20'000;
constexpr int64_t kNumberMax = 10'000'000'000;  // so that no product overflows
constexpr size_t kAttemptsRead = 5;             // newest ones
constexpr int64_t kMsPerS = 1000;

std::optional<int64_t> number(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || value < 0 || value > kNumberMax) return std::nullopt;
  return value;
}

std::optional<int64_t> variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::nullopt : number(text);
}

std::optional<SlurmLimit> limit_of_environment() {
  const auto start = variable("SLURM_JOB_START_TIME"), end = variable("SLURM_JOB_END_TIME");
  if (!start || !end || *end <= *start) return std::nullopt;
  return SlurmLimit{.left_s = std::max<int64_t>(0, *end - SystemClock().wall_ms() / kMsPerS),
                    .limit_s = *end - *start};
}

}  // namespace

std::optional<int64_t> parse_slurm_seconds(std::string_view text) {
  int64_t days = 0;
  if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    const auto value = number(text.substr(0, dash));
    if (!value) return std::nullopt;
    days = *value;
    text.remove_prefix(dash + 1);
  }
  const std::vector<std::string_view> words = split(text, ':');
  if (words.size() < 2 || words.size() > 3) return std::nullopt;
  int64_t seconds = 0;
  for (const std::string_view word : words) {
    const auto value = number(word);
    if (!value) return std::nullopt;
    seconds = seconds * 60 + *value;
  }
  return days * 86'400 + seconds;
}

std::optional<SlurmLimit> parse_slurm_limit(std::string_view line) {
  const std::vector<std::string_view> words = split(line, '|');
  if (words.size() != 2) return std::nullopt;
  const auto left = parse_slurm_seconds(words[0]), limit = parse_slurm_seconds(words[1]);
  if (!left || !limit) return std::nullopt;
  return SlurmLimit{.left_s = *left, .limit_s = *limit};
}

std::optional<SlurmLimit> read_slurm_limit() {
  const auto job = variable("SLURM_JOB_ID");
  if (!job) return std::nullopt;
  const CommandResult told =
      run_command({"squeue", "-h", "-j", to_text(*job), "-o", "%L|%l"}, kSqueueMs);
  return told.ok() ? parse_slurm_limit(said(told)) : limit_of_environment();
}

int64_t longest_startup_ms(const std::vector<pb::EventRecord>& events) {
  std::map<uint64_t, int64_t> started, took;  // by attempt
  for (const pb::EventRecord& event : events) {
    if (event.kind() == "attempt_started") started[event.epoch()] = event.wall_ms();
    if (event.kind() == "attempt_running" && started.contains(event.epoch()))
      took[event.epoch()] = event.wall_ms() - started.at(event.epoch());
  }
  int64_t longest = 0;
  size_t read = 0;
  for (auto it = took.rbegin(); it != took.rend() && read < kAttemptsRead; ++it, ++read)
    longest = std::max(longest, it->second);
  return longest;
}

int64_t leave_at_ms(const std::optional<SlurmLimit>& limit, int64_t signal_s, int64_t startup_ms,
                    int64_t now_ms) {
  if (!limit || (limit->limit_s - signal_s) * kMsPerS <= startup_ms) return INT64_MAX;
  return now_ms + (limit->left_s - signal_s) * kMsPerS;
}

}  // namespace swax
