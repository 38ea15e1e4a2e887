#include "jobs/spec.h"
#include "ops/cli/output.h"
#include "ops/cli/spec_file.h"
#include "ops/cli/verbs.h"
#include "proto/base/text.h"

namespace swax {

int verb_validate(const Args& args) {
  const Result<std::vector<SpecOverride>> overrides = spec_overrides(args);
  if (!overrides.ok()) return fail(overrides.status());
  const std::string& path = args.words().front();
  const std::optional<pb::JobSpec> spec = load_spec_file(path, *overrides);
  if (!spec) return kExitUsage;
  const int64_t steps = static_cast<int64_t>(spec->training().steps());
  if (args.text("--output") == "json") {
    print_json(Json::object()
                   .set("valid", true)
                   .set("job", spec->job().name())
                   .set("steps", steps)
                   .set("ranks", spec->parallelism().ranks()));
    return kExitOk;
  }
  print_line(one_line(path) + ": valid, job " + spec->job().name() + ", " + group_digits(steps) +
             " steps");
  return kExitOk;
}

}  // namespace swax
