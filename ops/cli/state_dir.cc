#include "ops/cli/state_dir.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "coordinator/core/core.h"
#include "coordinator/journal.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/record_log.h"
#include "storage/rocks_kv.h"

namespace swax {
namespace {

constexpr size_t kRateSteps = 20;  // newest steps whose mean is the shown speed
constexpr int kReadTries = 3;

// "a12.log" -> 12
bool parse_record_name(std::string_view name, uint64_t* epoch) {
  if (!name.starts_with("a") || !name.ends_with(".log")) return false;
  const std::string_view number = name.substr(1, name.size() - 5);
  const auto end = std::from_chars(number.data(), number.data() + number.size(), *epoch);
  return end.ec == std::errc{} && end.ptr == number.data() + number.size();
}

}  // namespace

std::string attempt_name(uint64_t epoch) { return "a" + to_text(epoch); }

StateDir StateDir::of_service(std::string root, std::string store) {
  StateDir state(std::move(root));
  state.service_ = true;
  state.store_ = std::move(store);
  return state;
}
std::string StateDir::lock_path() const { return join_path(root_, service_ ? "lock" : "run.lock"); }
std::string StateDir::log_path() const { return join_path(root_, "run.log"); }
std::string StateDir::coordinator_folder() const {
  return service_ ? root_ : join_path(root_, "coordinator");
}
std::string StateDir::db_folder() const { return join_path(coordinator_folder(), "kv"); }
std::string StateDir::worker_folder() const { return join_path(root_, "worker"); }
std::string StateDir::spec_path() const { return join_path(root_, "spec.pb"); }
std::string StateDir::store_folder() const {
  return store_.empty() ? join_path(root_, "store") : store_;
}
std::string StateDir::data_folder() const { return join_path(store_folder(), "data"); }
std::string StateDir::job_folder(std::string_view job) const {
  return join_path(store_folder(), "jobs/" + std::string(job));
}
std::string StateDir::checkpoints_folder(std::string_view job) const {
  return join_path(job_folder(job), "ckpt");
}
std::string StateDir::records_folder(std::string_view job) const {
  return join_path(job_folder(job), "records");
}
std::string StateDir::records_path(std::string_view job, uint64_t epoch) const {
  return join_path(records_folder(job), attempt_name(epoch) + ".log");
}
std::string StateDir::logs_folder(std::string_view job, uint64_t epoch) const {
  return join_path(job_folder(job), "logs/" + attempt_name(epoch));
}

std::string default_state_folder(std::string_view job) { return "./runs/" + std::string(job); }

Result<StateDir> open_state_dir(const std::string& path) {
  SWAX_ASSIGN(StateDir state, open_job_state(path, ""));
  if (state.is_service())
    return not_found("no run in " + printable(path, 200) +
                     ": it is the state of a coordinator, which answers about its jobs");
  return state;
}

Result<StateDir> open_job_state(const std::string& path, const std::string& store) {
  const std::unique_ptr<char, decltype(&::free)> real(::realpath(path.c_str(), nullptr), &::free);
  if (!real) return not_found("no state folder " + printable(path, 200));
  const StateDir run{std::string(real.get())};
  const StateDir service = StateDir::of_service(real.get(), store);
  if (!is_directory(run.db_folder()) && is_directory(service.db_folder())) return service;
  if (!is_directory(run.db_folder())) return not_found("no run in " + printable(path, 200));
  if (!store.empty())
    return invalid_argument("--store: the store of the run in " + printable(path, 200) +
                            " lies in it");
  return run;
}

bool run_is_active(const StateDir& state) {
  const Fd fd(::open(state.lock_path().c_str(), O_RDONLY | O_CLOEXEC));
  // A shared lock fails exactly while the run holds its exclusive one; it is gone with the
  // descriptor.
  return fd.valid() && ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0;
}

namespace {

std::string state_of(const coord::Job& job, bool active) {
  if (coord::job_ended(job.state)) return coord::job_state_name(job.state);
  return active ? "RUNNING" : "STOPPED";
}

RunInfo info_of(const coord::Job& job, bool active) {
  RunInfo run;
  run.spec = job.spec;
  run.numeric_id = job.numeric_id;
  run.spec_hash = job.spec_hash;
  run.state = state_of(job, active);
  if (coord::job_ended(job.state) || job.state == coord::JobState::kBackoff)
    run.reason = job.reason;
  run.epoch = job.epoch;
  run.progress_step = job.progress_step;
  if (!job.result) return run;
  run.digest = job.state == coord::JobState::kSucceeded ? job.result->digest() : "";
  run.progress_step = std::max(run.progress_step, uint64_t{job.result->step()});
  run.loss_bits = job.result->loss_bits();
  run.validation_bpb_bits = job.result->validation_bpb_bits();
  run.tokens_per_s = job.result->tokens_per_s();
  return run;
}

Result<std::vector<std::string>> candidates(Kv& db, const StateDir& state, const std::string& job) {
  SWAX_ASSIGN(std::vector<std::string> jobs, coord::recorded_jobs(db));
  if (!job.empty()) {
    if (std::find(jobs.begin(), jobs.end(), job) != jobs.end()) return std::vector{job};
    return not_found("no job " + printable(job, 64) + " in " + state.root());
  }
  if (state.is_service() && jobs.size() > 1)
    return invalid_argument(state.root() + " holds " + to_text(uint64_t{jobs.size()}) +
                            " jobs: which one? give --job NAME");
  return jobs;
}

// The fold of the coordinator's records, as the coordinator itself makes it at its start. The run's
// job is the first one that its coordinator was ever given.
Result<RunView> read_run_view(const StateDir& state, const std::string& wanted) {
  SWAX_ASSIGN(const std::unique_ptr<Kv> db, open_rocks_kv(state.db_folder(), KvMode::kReadOnly));
  SWAX_ASSIGN(const std::vector<std::string> jobs, candidates(*db, state, wanted));
  RunView view;
  view.active = run_is_active(state);
  std::optional<uint64_t> first;
  for (const std::string& name : jobs) {
    coord::Durable durable;
    std::vector<pb::EventRecord> events;
    const Status read = coord::read_job(*db, name, &durable, [&](const pb::JobRecord& record) {
      events.push_back(coord::history_event(record));
      return true;
    });
    const std::string held = read.ok() ? "" : "job " + name + ": " + read.message();
    const auto job = durable.jobs.find(name);
    if (job == durable.jobs.end()) return data_loss(held).with_context(state.db_folder());
    if (first && job->second.order > *first) continue;
    first = job->second.order;
    view.run = info_of(job->second, view.active);
    view.events = std::move(events);
    view.held = held;
    if (!held.empty()) view.run.state = coord::job_state_name(coord::JobState::kHeld);
  }
  if (!first) return not_found("no run in " + state.root());
  return view;
}

}  // namespace

Result<RunView> load_run_view(const StateDir& state, const std::string& job) {
  Result<RunView> view = read_run_view(state, job);
  // A store that is being written may remove a file between two looks of its reader.
  for (int tries = 1; tries < kReadTries && !view.ok() && run_is_active(state); ++tries)
    view = read_run_view(state, job);
  return view;
}

Result<std::vector<uint64_t>> recorded_epochs(const StateDir& state, std::string_view job) {
  std::vector<uint64_t> epochs;
  if (!is_directory(state.records_folder(job))) return epochs;
  SWAX_ASSIGN(const std::vector<std::string> names, list_dir(state.records_folder(job)));
  std::map<uint64_t, bool> sorted;  // names sort a10 before a2
  for (const std::string& name : names) {
    uint64_t epoch = 0;
    if (parse_record_name(name, &epoch)) sorted[epoch] = true;
  }
  for (const auto& [epoch, unused] : sorted) epochs.push_back(epoch);
  return epochs;
}

Status visit_reports(const StateDir& state, std::string_view job, uint64_t epoch,
                     const std::function<bool(const pb::RankReport&)>& visit) {
  const std::string path = state.records_path(job, epoch);
  SWAX_ASSIGN(RecordLogReader reader, RecordLogReader::open(path));
  std::string payload;
  for (;;) {
    SWAX_ASSIGN(const bool more, reader.next(&payload));
    if (!more) return ok();
    pb::RankReport report;
    if (!report.ParseFromString(payload))
      return data_loss(path + " before byte " + to_text(reader.offset()) +
                       ": the report cannot be read");
    if (!visit(report)) return ok();
  }
}

Result<StepHistory> load_step_history(const StateDir& state, std::string_view job) {
  StepHistory history;
  std::map<uint64_t, pb::StepRecord> steps;
  std::map<std::pair<uint64_t, bool>, pb::ValidationRecord> validations;
  SWAX_ASSIGN(const std::vector<uint64_t> epochs, recorded_epochs(state, job));
  for (const uint64_t epoch : epochs) {
    const Status read = visit_reports(state, job, epoch, [&](const pb::RankReport& report) {
      if (report.has_step()) steps[report.step().step()] = report.step();
      if (report.has_validation())
        validations[{report.validation().step(), report.validation().final()}] =
            report.validation();
      return true;
    });
    if (!read.ok()) history.problems.push_back(read.message());
  }
  for (auto& [step, record] : steps) history.steps.push_back(std::move(record));
  for (auto& [key, record] : validations) history.validations.push_back(std::move(record));
  return history;
}

double newest_rate(const std::vector<pb::StepRecord>& steps) {
  double ns = 0, tokens = 0;
  for (size_t i = steps.size() - std::min(kRateSteps, steps.size()); i < steps.size(); ++i) {
    ns += static_cast<double>(steps[i].step_ns());
    tokens += static_cast<double>(steps[i].tokens());
  }
  return ns > 0 ? tokens / ns * 1e9 : 0.0;
}

void complete_from_history(const StateDir& state, RunInfo* run) {
  // An attempt that found everything done made no step and knows no loss.
  const auto known = [](uint64_t bits) {
    return bits != 0 && std::isfinite(std::bit_cast<double>(bits));
  };
  if (known(run->loss_bits) && known(run->validation_bpb_bits) && run->tokens_per_s > 0.0) return;
  const Result<StepHistory> history = load_step_history(state, run->spec.job().name());
  if (!history.ok()) return;
  if (!history->steps.empty()) {
    const pb::StepRecord& step = history->steps.back();
    run->progress_step = std::max(run->progress_step, uint64_t{step.step()});
    if (!known(run->loss_bits)) run->loss_bits = step.loss_bits();
    if (run->tokens_per_s <= 0.0) run->tokens_per_s = newest_rate(history->steps);
  }
  if (!history->validations.empty() && !known(run->validation_bpb_bits))
    run->validation_bpb_bits = history->validations.back().bpb_bits();
}

}  // namespace swax
