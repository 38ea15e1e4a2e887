#include "ops/cli/slurm_queue.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "ops/cli/slurm_command.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kSqueueMs = 60'000;

// 5 or {"set": true, "infinite": false, "number": 5} or "5".
int64_t number_of(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return 0;
  if (it->is_number_integer()) return it->get<int64_t>();
  if (it->is_object()) return number_of(*it, "number");
  int64_t value = 0;
  if (it->is_string()) {
    const auto& text = it->get_ref<const std::string&>();
    std::from_chars(text.data(), text.data() + text.size(), value);
  }
  return value;
}

// "RUNNING" or ["RUNNING", "CONFIGURING"]: the first word.
std::string word_of(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  if (it->is_array() && !it->empty() && it->front().is_string())
    return it->front().get<std::string>();
  return "";
}

void add(SlurmJob job, std::vector<SlurmJob>* jobs) {
  if (job.id <= 0) return;
  if (job.state.empty()) job.state = "UNKNOWN";
  jobs->push_back(std::move(job));
}

}  // namespace

Result<std::vector<SlurmJob>> parse_squeue_json(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("jobs") || !json["jobs"].is_array())
    return invalid_argument("no JSON of squeue");
  std::vector<SlurmJob> jobs;
  for (const nlohmann::json& row : json["jobs"]) {
    if (!row.is_object()) continue;
    const int64_t array = number_of(row, "array_job_id");
    add({.id = array > 0 ? array : number_of(row, "job_id"),
         .state = word_of(row, "job_state"),
         .reason = word_of(row, "state_reason"),
         .comment = word_of(row, "comment")},
        &jobs);
  }
  return jobs;
}

std::vector<SlurmJob> parse_squeue_lines(std::string_view text) {
  std::vector<SlurmJob> jobs;
  for (const std::string_view line : split(text, '\n')) {
    const std::vector<std::string_view> words = split(line, '|');
    if (words.size() < 4) continue;
    SlurmJob job;
    std::from_chars(words[0].data(), words[0].data() + words[0].size(), job.id);  // "12_3": 12
    job.state = words[1];
    job.reason = words[2];
    job.comment = words[3];
    add(std::move(job), &jobs);
  }
  return jobs;
}

std::string slurm_field(std::string_view text, std::string_view key) {
  const std::string mark = std::string(key) + "=";
  for (const std::string_view line : split(text, '\n')) {
    for (const std::string_view word : split(line, ' ')) {
      if (!word.starts_with(mark)) continue;
      const std::string value(word.substr(mark.size()));
      return value == "(null)" ? "" : value;
    }
  }
  return "";
}

Result<std::vector<SlurmJob>> find_slurm_jobs(const std::string& comment) {
  const CommandResult json = run_command({"squeue", "--json"}, kSqueueMs);
  Result<std::vector<SlurmJob>> all = parse_squeue_json(json.out);
  if (!json.ok() || !all.ok()) {
    const CommandResult lines =
        run_command({"squeue", "-h", "-t", "all", "-o", "%i|%T|%r|%k"}, kSqueueMs);
    if (!lines.ok()) return unavailable("squeue: " + said(lines));
    all = parse_squeue_lines(lines.out);
  }
  std::vector<SlurmJob> jobs;
  for (SlurmJob& job : *all)
    if (job.comment == comment) jobs.push_back(std::move(job));
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const SlurmJob& a, const SlurmJob& b) { return a.id < b.id; });
  const auto same = [](const SlurmJob& a, const SlurmJob& b) { return a.id == b.id; };
  jobs.erase(std::unique(jobs.begin(), jobs.end(), same), jobs.end());
  return jobs;
}

bool never_starts(const SlurmJob& job) {
  constexpr std::array<std::string_view, 9> kForGood{
      "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS",
      "AccountNotAllowed",  "QOSNotAllowed",      "JobHeldAdmin",   "PartitionConfig"};
  return job.state == "PENDING" &&
         std::find(kForGood.begin(), kForGood.end(), job.reason) != kForGood.end();
}

}  // namespace swax
