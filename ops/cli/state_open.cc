#include "ops/cli/state_open.h"

#include "ops/cli/output.h"
#include "proto/base/text.h"

namespace swax {

namespace {

Result<OpenRun> open_view(const std::string& folder, StateDir state, const std::string& job) {
  OpenRun run;
  run.state = std::move(state);
  Result<RunView> view = load_run_view(run.state, job);
  if (view.status().code() == Code::kInvalidArgument) return view.status();
  if (!view.ok())
    return view.status().with_context("no run can be read in " + printable(folder, 200));
  run.view = std::move(view).value();
  if (!run.view.held.empty())
    print_message("the run in " + printable(folder, 200) + " is held: " + one_line(run.view.held));
  return run;
}

}  // namespace

Result<OpenRun> open_run(const std::string& folder) {
  SWAX_ASSIGN(StateDir state, open_state_dir(folder));
  return open_view(folder, std::move(state), "");
}

Result<OpenRun> open_job(const Args& args) {
  const std::string& folder = args.text("--state");
  SWAX_ASSIGN(StateDir state, open_job_state(folder, args.text("--store")));
  return open_view(folder, std::move(state), args.text("--job"));
}

OptionSpec service_job_option() {
  return {.name = "--job",
          .value = "NAME",
          .doc = "which job, where DIR is the state of a coordinator with several"};
}

OptionSpec service_store_option() {
  return {.name = "--store",
          .value = "DIR",
          .doc = "what the coordinator has as --store; default STATE/store"};
}

}  // namespace swax
