#include "ops/cli/client_events.h"
#include "ops/cli/client_verbs.h"
#include "ops/cli/output.h"
#include "ops/cli/state_open.h"
#include "ops/cli/state_report.h"
#include "ops/cli/verbs.h"

namespace swax {

Status state_and_job(const std::string& verb) {
  return invalid_argument(verb +
                          ": give JOB, which asks the coordinator, or --state DIR, not both");
}

// Without --state the coordinator is asked.
int verb_status(const Args& args) {
  if (!args.has("--state")) return verb_service_status(args);
  if (!args.words().empty()) return fail(state_and_job("status"));
  const Result<RunReport> report = make_run_report(args.text("--state"));
  if (!report.ok()) return fail(report.status());
  if (args.text("--output") == "json") {
    print_json(run_json(*report));
  } else {
    SystemClock clock;
    print(run_text(*report, clock.wall_ms()));
  }
  return kExitOk;
}

int verb_events(const Args& args) {
  if (!args.has("--state")) return verb_service_events(args);
  if (!args.words().empty()) return fail(state_and_job("events"));
  if (args.has("--follow"))
    return fail(invalid_argument("events: --follow is for jobs of the service, not for --state"));
  const Result<OpenRun> run = open_run(args.text("--state"));
  if (!run.ok()) return fail(run.status());
  if (args.text("--output") == "json") {
    Json events = Json::array();
    for (const pb::EventRecord& event : run->view.events) events.push(event_json(event));
    print_json(events);
    return kExitOk;
  }
  for (const pb::EventRecord& event : run->view.events) print(event_text(event));
  return kExitOk;
}

}  // namespace swax
