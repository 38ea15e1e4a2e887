#include "ops/cli/state_open.h"

#include "proto/base/text.h"

namespace swax {

Result<OpenRun> open_run(const std::string& folder) {
  OpenRun run;
  SWAX_ASSIGN(run.state, open_state_dir(folder));
  Result<RunView> view = load_run_view(run.state);
  if (!view.ok())
    return not_found("no run can be read in " + printable(folder, 200) + ": " +
                     view.status().message());
  run.view = std::move(view).value();
  return run;
}

}  // namespace swax
