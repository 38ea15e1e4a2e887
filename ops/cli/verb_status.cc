#include "ops/cli/output.h"
#include "ops/cli/state_open.h"
#include "ops/cli/state_report.h"
#include "ops/cli/verbs.h"
#include "proto/base/text.h"

namespace swax {
namespace {

Json event_json(const pb::EventRecord& event) {
  Json fields = Json::object();
  const std::map<std::string, std::string> sorted(event.fields().begin(), event.fields().end());
  for (const auto& [key, value] : sorted) fields.set(key, value);
  return Json::object()
      .set("sequence", event.sequence())
      .set("time", std::string(utc_text(event.wall_ms()).text))
      .set("wall_ms", event.wall_ms())
      .set("kind", event.kind())
      .set("attempt", event.epoch())
      .set("step", event.step())
      .set("text", event.text())
      .set("fields", fields);
}

}  // namespace

int verb_status(const Args& args) {
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
  const Result<OpenRun> run = open_run(args.text("--state"));
  if (!run.ok()) return fail(run.status());
  if (args.text("--output") == "json") {
    Json events = Json::array();
    for (const pb::EventRecord& event : run->view.events) events.push(event_json(event));
    print_json(events);
    return kExitOk;
  }
  for (const pb::EventRecord& event : run->view.events)
    print_line(std::string(utc_text(event.wall_ms()).text) + "  " + one_line(event.kind(), 40) +
               "  attempt " + to_text(event.epoch()) + "  step " + to_text(event.step()) +
               "\n    " + one_line(event.text()));
  return kExitOk;
}

}  // namespace swax
