#include "ops/cli/client_events.h"

#include <map>

#include "proto/base/text.h"

namespace swax {

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

std::string event_text(const pb::EventRecord& event) {
  return std::string(utc_text(event.wall_ms()).text) + "  " + one_line(event.kind(), 40) +
         "  attempt " + to_text(event.epoch()) + "  step " + to_text(event.step()) + "\n    " +
         one_line(event.text()) + "\n";
}

pb::Reply read_events(ClientSession* session, const std::string& job, uint64_t from) {
  pb::Request request;
  request.mutable_events()->set_job(job);
  request.mutable_events()->set_from(from);
  return session->read(request);
}

pb::Request status_request(const std::string& job) {
  pb::Request request;
  request.mutable_status()->set_job(job);
  return request;
}

}  // namespace swax
