#include "ops/cli/state_open.h"

#include "ops/cli/output.h"
#include "proto/base/text.h"

namespace swax {

Result<OpenRun> open_run(const std::string& folder) {
  OpenRun run;
  SWAX_ASSIGN(run.state, open_state_dir(folder));
  Result<RunView> view = load_run_view(run.state);
  if (!view.ok())
    return view.status().with_context("no run can be read in " + printable(folder, 200));
  run.view = std::move(view).value();
  if (!run.view.held.empty())
    print_message("the run in " + printable(folder, 200) + " is held: " + one_line(run.view.held));
  return run;
}

}  // namespace swax
