#include "ops/cli/run.h"

#include <stdlib.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/cli/client_session.h"
#include "ops/cli/data_check.h"
#include "ops/cli/output.h"
#include "ops/cli/run_job.h"
#include "ops/cli/run_prepare.h"
#include "ops/cli/run_service.h"
#include "ops/cli/run_signals.h"
#include "ops/cli/spec_file.h"
#include "ops/cli/state_dir.h"
#include "ops/cli/train_program.h"
#include "proto/base/files.h"
#include "proto/base/log.h"
#include "proto/base/text.h"

namespace swax {
namespace {

struct Opened {
  StateDir state;
  Fd lock;
  std::optional<RunInfo> recorded;  // of the run that stands there
};

// RocksDB writes CURRENT last: without it an earlier start was killed early.
bool may_hold_a_run(const StateDir& state) {
  return path_exists(join_path(state.db_folder(), "CURRENT"));
}

// Exit code 4 for a state folder that is in use.
int fail_open(const Status& status) {
  if (status.code() == Code::kFailedPrecondition || status.code() == Code::kUnavailable) {
    print_message(status.message());
    return kExitConflict;
  }
  return fail(status);
}

// Going on would need what cannot be read; starting anew would throw away what can.
Status held(const StateDir& state, const std::string& why) {
  return failed_precondition("the run in " + state.root() + " is held: " + one_line(why, 1000) +
                             "; its checkpoints are untouched: restore " +
                             state.coordinator_folder() +
                             " from a backup, or give another --state");
}

std::string state_folder(const RunArgs& args, const pb::JobSpec& spec) {
  return args.state_dir.empty() ? default_state_folder(spec.job().name()) : args.state_dir;
}

std::string no_run_in(const std::string& folder) {
  return "there is no run in " + printable(folder, 200);
}

// What keeps a run from beginning, found before a folder is made. A run that stands already knows
// its data: what it was built from may be gone.
std::vector<SpecProblem> begin_problems(const RunArgs& args, const pb::JobSpec& spec) {
  const std::string folder = state_folder(args, spec);
  if (may_hold_a_run(StateDir(folder))) return {};
  std::vector<SpecProblem> problems = source_problems(spec);
  if (auto problem = start_problem(spec, no_run_in(folder))) problems.push_back(*problem);
  return problems;
}

Result<Opened> open_state(const std::string& folder) {
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
  if (!may_hold_a_run(opened.state)) return opened;
  Result<RunView> view = load_run_view(opened.state);
  if (view.status().code() == Code::kNotFound) return opened;
  if (view.status().code() == Code::kDataLoss) return held(opened.state, view.status().message());
  if (!view.ok()) return view.status();
  if (!view->held.empty()) return held(opened.state, view->held);
  opened.recorded = std::move(view->run);
  return opened;
}

// Building a data set takes seconds to minutes and may be ended at any point.
Status gather_data(const StateDir& state, const pb::JobSpec* recorded, pb::JobSpec* spec,
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

int run_job(const RunArgs& args, pb::JobSpec spec, const Opened& opened, RunSignals* signals) {
  const StateDir& state = opened.state;
  const pb::JobSpec* recorded = opened.recorded ? &opened.recorded->spec : nullptr;
  if (recorded != nullptr && recorded->job().name() != spec.job().name()) {
    print_message("job.name: the run in this folder keeps its name, " + recorded->job().name());
    spec.mutable_job()->set_name(recorded->job().name());
  }
  if (recorded == nullptr) {
    if (const auto problem = start_problem(spec, no_run_in(state.root())))
      return fail_input(invalid_argument(problem->text()));
  }
  if (const Status s = gather_data(state, recorded, &spec, signals); !s.ok()) return fail_input(s);
  // From here on others write to the log too, below the progress of this terminal.
  const Status logging = log_init({.file = state.log_path(), .to_stderr = false});
  if (!logging.ok()) return fail(logging);
  const Result<std::unique_ptr<RunService>> service = RunService::start(state);
  if (!service.ok()) return fail_open(service.status());
  Result<ClientSession> session = ClientSession::connect((*service)->address());
  if (!session.ok()) return fail(session.status());
  return RunJob(args, state, std::move(spec), **service, *session, *signals).go();
}

}  // namespace

int verb_run(const RunArgs& args) {
  const auto check = [&args](const pb::JobSpec& spec) { return begin_problems(args, spec); };
  std::optional<pb::JobSpec> spec = load_spec_file(args.spec_path, args.overrides, check);
  if (!spec) return kExitUsage;
  const std::string folder = state_folder(args, *spec);
  // A job that cannot fit leaves no folder behind.
  if (!path_exists(folder)) {
    if (const Status s = check_fit(*spec); !s.ok()) return fail_input(s);
  }
  if (const Result<std::string> program = train_program(); !program.ok())
    return fail(program.status());
  RunSignals signals;
  const Result<Opened> opened = open_state(folder);
  if (!opened.ok()) return fail_open(opened.status());
  return run_job(args, std::move(*spec), *opened, &signals);
}

}  // namespace swax
