#include "ops/cli/output.h"
#include "ops/cli/plan_report.h"
#include "ops/cli/spec_file.h"
#include "ops/cli/state_dir.h"
#include "ops/cli/verbs.h"

namespace swax {

int verb_plan(const Args& args) {
  const Result<std::vector<SpecOverride>> overrides = spec_overrides(args);
  if (!overrides.ok()) return fail(overrides.status());
  const std::optional<pb::JobSpec> spec = load_spec_file(args.words().front(), *overrides);
  if (!spec) return kExitUsage;
  const std::string state_folder =
      args.has("--state") ? args.text("--state") : default_state_folder(spec->job().name());
  const Result<PlanReport> plan = make_plan_report(*spec, StateDir(state_folder).data_folder());
  if (!plan.ok()) return fail(plan.status());
  if (args.text("--output") == "json") {
    print_json(plan_json(*plan));
  } else {
    print(plan_text(*plan));
  }
  return kExitOk;
}

}  // namespace swax
