#include "ops/cli/run.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "ops/cli/output.h"
#include "ops/cli/run_journal.h"
#include "ops/cli/run_loop.h"
#include "ops/cli/run_prepare.h"
#include "ops/cli/run_progress.h"
#include "ops/cli/run_result.h"
#include "ops/cli/run_signals.h"
#include "ops/cli/spec_file.h"
#include "ops/cli/state_dir.h"
#include "proto/base/build_info.h"
#include "proto/base/failpoint.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "worker/agent/attempt_folder.h"
#include "worker/agent/mpirun.h"
#include "worker/agent/sweeper.h"

namespace swax {
namespace {

constexpr int64_t kSweepMs = 30'000;
constexpr uint32_t kRunFormat = 1;
constexpr int64_t kTestHangMsMin = 100;

struct Opened {
  StateDir state;
  Fd lock;
  std::unique_ptr<RunJournal> journal;
};

// Exit code 4 for a state folder that is in use.
int fail_open(const Status& status) {
  if (status.code() == Code::kFailedPrecondition || status.code() == Code::kUnavailable) {
    print_message(status.message());
    return kExitConflict;
  }
  return fail(status);
}

Result<Opened> open_state(const std::string& folder, Clock& clock) {
  SWAX_TRY(make_dirs(folder));
  const std::unique_ptr<char, decltype(&::free)> real(::realpath(folder.c_str(), nullptr), &::free);
  if (!real) return invalid_argument("state folder " + printable(folder, 200) + " cannot be used");
  Opened opened;
  opened.state = StateDir(real.get());
  Result<Fd> lock = lock_file(opened.state.lock_path());
  if (!lock.ok()) {
    if (lock.status().code() != Code::kFailedPrecondition) return lock.status();
    return failed_precondition("another `swax run` works in " + opened.state.root() +
                               "; `swax status --state " + opened.state.root() + "` shows it");
  }
  opened.lock = std::move(lock).value();
  SWAX_ASSIGN(opened.journal, RunJournal::open(opened.state, clock));
  return opened;
}

// What the state's last run left behind: processes first, then their folders.
Status clean_up(const StateDir& state, const std::string& job, RunProgress* view) {
  SWAX_ASSIGN(const int killed, sweep_processes({.job = job, .state = state.root()}, kSweepMs));
  if (killed > 0) view->say("ended " + to_text(killed) + " processes of an earlier run");
  return sweep_attempt_folders(state.attempts_folder());
}

std::string changes_text(const std::vector<FieldChange>& changes, bool free_fields) {
  constexpr size_t kShown = 5;
  std::string text;
  size_t count = 0;
  for (const FieldChange& change : changes) {
    if ((change.field_class == pb::FREE) != free_fields) continue;
    if (++count > kShown) continue;
    text += (text.empty() ? "" : "; ") + change.path + ": " + change.before + " -> " + change.after;
  }
  if (count > kShown) text += "; and " + to_text(static_cast<uint64_t>(count - kShown)) + " more";
  return text;
}

// The typed spec against the one of the run in the folder. kFailedPrecondition: another run.
Status reconcile_spec(const StateDir& state, const pb::JobSpec& typed, RunJournal* journal,
                      RunProgress* view) {
  pb::RunRecord& run = journal->run();
  const std::vector<FieldChange> changes = spec_changes(run.spec(), typed);
  if (numeric_id(typed).hex() != run.numeric_id())
    return failed_precondition(state.root() +
                               " holds another run: " + changes_text(changes, false) +
                               "; give the old values, or another --state");
  if (exit_code_of_run(run) >= 0 || spec_hash(typed).hex() == run.spec_hash()) return ok();
  *run.mutable_spec() = typed;
  run.set_spec_hash(spec_hash(typed).hex());
  view->event(journal->add("spec_changed", run.progress_step(), changes_text(changes, true)));
  return journal->write(true);
}

Status begin_run(const pb::JobSpec& spec, RunJournal* journal) {
  pb::RunRecord run;
  run.set_format_version(kRunFormat);
  *run.mutable_spec() = spec;
  run.set_numeric_id(numeric_id(spec).hex());
  run.set_spec_hash(spec_hash(spec).hex());
  run.set_state("RUNNING");
  journal->begin_run(std::move(run));
  journal->add("run_created", 0, spec.job().name(), {{"numeric_id", numeric_id(spec).hex()}});
  return journal->write(true);
}

Result<std::string> train_program(const RunArgs& args) {
  std::string path = args.train_program;
  if (path.empty()) {
    char self[4096];
    const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
    if (n <= 0) return internal_error("/proc/self/exe cannot be read");
    path = join_path(parent_path(std::string(self, static_cast<size_t>(n))), "swax-train");
  }
  if (::access(path.c_str(), X_OK) != 0) return not_found(path + " cannot be executed");
  return path;
}

// Building a data set takes seconds to minutes and may be ended at any point.
Result<RunData> gather_data(const StateDir& state, const pb::JobSpec* recorded, pb::JobSpec* spec,
                            RunSignals* signals) {
  std::string shown;
  std::unique_ptr<Progress> progress;
  const auto report = [&](const std::string& source, int64_t bytes) {
    if (const int signal = signals->take()) {
      print_message("stopped while the data was prepared");
      std::_Exit(128 + signal);
    }
    if (shown != source) {
      progress = std::make_unique<Progress>("data " + source);
      shown = source;
    }
    progress->bytes(bytes, 0);
  };
  return prepare_data(state, recorded, spec, report);
}

Status check_fit(const pb::JobSpec& spec) {
  const Result<int64_t> available = available_memory();
  if (!available.ok()) return ok();  // nothing to compare with
  return check_memory(spec, *available);
}

int64_t hang_ms() {
  const RunSetup defaults;
  const char* text = std::getenv("SWAX_TEST_HANG_MS");
  if (text == nullptr) return defaults.hang_ms;
  int64_t value = 0;
  for (const char* c = text; *c >= '0' && *c <= '9' && value < defaults.hang_ms; ++c)
    value = value * 10 + (*c - '0');
  return std::max(kTestHangMsMin, value);
}

int fail_input(const Status& status) {
  print_message(status.message());
  return kExitUsage;
}

// From an open state folder to the job's end.
int run_job(const RunArgs& args, pb::JobSpec spec, Opened* opened, RunSignals* signals,
            Clock& clock) {
  RunJournal& journal = *opened->journal;
  RunProgress view(args.terminal, spec.training().steps(), clock);
  const pb::JobSpec* recorded = journal.has_run() ? &journal.run().spec() : nullptr;
  if (recorded != nullptr && recorded->job().name() != spec.job().name()) {
    view.say("job.name: the run in this folder keeps its name, " + recorded->job().name());
    spec.mutable_job()->set_name(recorded->job().name());
  }
  if (const Status s = clean_up(opened->state, spec.job().name(), &view); !s.ok()) return fail(s);
  SWAX_FAILPOINT("run.swept");
  Result<RunData> data = gather_data(opened->state, recorded, &spec, signals);
  if (!data.ok()) return fail_input(data.status());
  if (recorded != nullptr) {
    const Status same = reconcile_spec(opened->state, spec, &journal, &view);
    if (!same.ok()) return fail_open(same);
    if (const int code = exit_code_of_run(journal.run()); code >= 0) {
      print_run_result(opened->state, journal.run(), args.output);
      return code;
    }
  }
  if (const Status s = check_fit(spec); !s.ok()) return fail_input(s);
  Result<std::string> mpirun = find_program("mpirun");
  if (!mpirun.ok()) return fail(mpirun.status().with_context("apt-get install openmpi-bin"));
  Result<std::string> program = train_program(args);
  if (!program.ok()) return fail(program.status());
  if (recorded == nullptr) {
    if (const Status s = begin_run(spec, &journal); !s.ok()) return fail(s);
  }
  if (const Status s = write_atomic(opened->state.spec_path(), spec.SerializeAsString()); !s.ok())
    return fail(s);

  RunSetup setup;
  setup.state = opened->state;
  setup.data = std::move(data).value();
  setup.mpirun = std::move(mpirun).value();
  setup.train_program = std::move(program).value();
  if (args.train_program.empty()) setup.build_id = build_id();
  setup.hang_ms = hang_ms();
  RunLoop loop(std::move(setup), journal, *signals, view, clock);
  const Result<int> code = loop.go();
  if (!code.ok()) return fail(code.status());
  print_run_result(opened->state, journal.run(), args.output);
  return *code;
}

}  // namespace

int verb_run(const RunArgs& args) {
  std::optional<pb::JobSpec> spec = load_spec_file(args.spec_path, args.overrides);
  if (!spec) return kExitUsage;
  const std::string folder =
      args.state_dir.empty() ? default_state_folder(spec->job().name()) : args.state_dir;
  // A job that cannot fit leaves no folder behind.
  if (!path_exists(folder)) {
    if (const Status s = check_fit(*spec); !s.ok()) return fail_input(s);
  }
  RunSignals signals;
  SystemClock clock;
  Result<Opened> opened = open_state(folder, clock);
  if (!opened.ok()) return fail_open(opened.status());
  return run_job(args, std::move(*spec), &*opened, &signals, clock);
}

}  // namespace swax
