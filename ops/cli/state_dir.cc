#include "ops/cli/state_dir.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>

#include <charconv>
#include <map>
#include <memory>

#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/record_log.h"
#include "storage/rocks_kv.h"

namespace swax {
namespace {

std::string big_endian(uint64_t value) {
  std::string bytes(8, '\0');
  for (int i = 7; i >= 0; --i, value >>= 8)
    bytes[static_cast<size_t>(i)] = static_cast<char>(value);
  return bytes;
}

// "a12.log" -> 12
bool parse_record_name(std::string_view name, uint64_t* epoch) {
  if (!name.starts_with("a") || !name.ends_with(".log")) return false;
  const std::string_view number = name.substr(1, name.size() - 5);
  const auto end = std::from_chars(number.data(), number.data() + number.size(), *epoch);
  return end.ec == std::errc{} && end.ptr == number.data() + number.size();
}

}  // namespace

std::string attempt_name(uint64_t epoch) { return "a" + to_text(epoch); }

std::string StateDir::lock_path() const { return join_path(root_, "run.lock"); }
std::string StateDir::db_folder() const { return join_path(root_, "run.db"); }
std::string StateDir::spec_path() const { return join_path(root_, "spec.pb"); }
std::string StateDir::records_folder() const { return join_path(root_, "records"); }
std::string StateDir::records_path(uint64_t epoch) const {
  return join_path(records_folder(), attempt_name(epoch) + ".log");
}
std::string StateDir::logs_folder(uint64_t epoch) const {
  return join_path(root_, "logs/" + attempt_name(epoch));
}
std::string StateDir::rank_log_path(uint64_t epoch, int rank) const {
  return join_path(logs_folder(epoch), "rank-" + to_text(rank) + ".log");
}
std::string StateDir::mpirun_log_path(uint64_t epoch) const {
  return join_path(logs_folder(epoch), "mpirun.log");
}
std::string StateDir::attempts_folder() const { return join_path(root_, "attempts"); }
std::string StateDir::attempt_folder(uint64_t epoch) const {
  return join_path(attempts_folder(), attempt_name(epoch));
}
std::string StateDir::store_folder() const { return join_path(root_, "store"); }
std::string StateDir::data_folder() const { return join_path(store_folder(), "data"); }
std::string StateDir::checkpoints_folder(std::string_view job) const {
  return join_path(store_folder(), "jobs/" + std::string(job) + "/ckpt");
}

std::string default_state_folder(std::string_view job) { return "./runs/" + std::string(job); }
std::string event_key(uint64_t sequence) {
  return std::string(kEventPrefix) + big_endian(sequence);
}
std::string tail_key(uint64_t epoch) { return std::string(kTailPrefix) + big_endian(epoch); }

Result<StateDir> open_state_dir(const std::string& path) {
  const std::unique_ptr<char, decltype(&::free)> real(::realpath(path.c_str(), nullptr), &::free);
  if (!real) return not_found("no state folder " + printable(path, 200));
  StateDir state{std::string(real.get())};
  if (!is_directory(state.db_folder())) return not_found("no run in " + printable(path, 200));
  return state;
}

bool run_is_active(const StateDir& state) {
  const Fd fd(::open(state.lock_path().c_str(), O_RDONLY | O_CLOEXEC));
  // A shared lock fails exactly while the run holds its exclusive one; it is gone with the
  // descriptor.
  return fd.valid() && ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0;
}

std::string shown_state(const pb::RunRecord& run, bool active) {
  if (run.state() == "RUNNING" && !active) return "STOPPED";
  return run.state();
}

Result<RunView> load_run_view(const StateDir& state) {
  SWAX_ASSIGN(const std::unique_ptr<Kv> db, open_rocks_kv(state.db_folder(), KvMode::kReadOnly));
  RunView view;
  SWAX_ASSIGN(const std::string bytes, db->get(kRunKey));
  if (!view.run.ParseFromString(bytes))
    return data_loss(state.db_folder() + ": the run record cannot be read");
  uint64_t damaged = 0;
  SWAX_TRY(db->scan(kEventPrefix, "", [&](std::string_view, std::string_view value) {
    pb::EventRecord event;
    if (event.ParseFromArray(value.data(), static_cast<int>(value.size())))
      view.events.push_back(std::move(event));
    else
      ++damaged;
    return true;
  }));
  if (damaged > 0)
    return data_loss(state.db_folder() + ": " + to_text(damaged) + " events cannot be read");
  view.active = run_is_active(state);
  view.state = shown_state(view.run, view.active);
  return view;
}

Result<std::vector<uint64_t>> recorded_epochs(const StateDir& state) {
  std::vector<uint64_t> epochs;
  if (!is_directory(state.records_folder())) return epochs;
  SWAX_ASSIGN(const std::vector<std::string> names, list_dir(state.records_folder()));
  std::map<uint64_t, bool> sorted;  // names sort a10 before a2
  for (const std::string& name : names) {
    uint64_t epoch = 0;
    if (parse_record_name(name, &epoch)) sorted[epoch] = true;
  }
  for (const auto& [epoch, unused] : sorted) epochs.push_back(epoch);
  return epochs;
}

Status visit_reports(const StateDir& state, uint64_t epoch,
                     const std::function<bool(const pb::RankReport&)>& visit) {
  const std::string path = state.records_path(epoch);
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

Result<StepHistory> load_step_history(const StateDir& state) {
  StepHistory history;
  std::map<uint64_t, pb::StepRecord> steps;
  std::map<std::pair<uint64_t, bool>, pb::ValidationRecord> validations;
  SWAX_ASSIGN(const std::vector<uint64_t> epochs, recorded_epochs(state));
  for (const uint64_t epoch : epochs) {
    const Status read = visit_reports(state, epoch, [&](const pb::RankReport& report) {
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

}  // namespace swax
