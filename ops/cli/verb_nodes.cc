#include "ops/cli/client_job.h"
#include "ops/cli/client_session.h"
#include "ops/cli/client_verbs.h"
#include "ops/cli/output.h"
#include "proto/base/text.h"

namespace swax {
namespace {

Json node_json(const pb::NodeStatus& node) {
  Json attempts = Json::array();
  for (const pb::AttemptRef& attempt : node.attempts())
    attempts.push(Json::object().set("job", attempt.job()).set("attempt", attempt.epoch()));
  return Json::object()
      .set("node", node.node())
      .set("state", node.state())
      .set("reason", node.reason().empty() ? Json() : Json(node.reason()))
      .set("slots", node.slots())
      .set("slots_used", node.slots_used())
      .set("host", node.host())
      .set("heard_ms_ago", node.heard_ms_ago())
      .set("incarnation", node.incarnation())
      .set("attempts", attempts);
}

std::string cut(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 2) + "..";
}

std::string node_table(const pb::Reply& reply) {
  TextTable table({{"NODE", TextTable::Align::kLeft},
                   {"STATE", TextTable::Align::kLeft},
                   {"SLOTS"},
                   {"HEARD"},
                   {"JOBS", TextTable::Align::kLeft}});
  std::string reasons;
  for (const pb::NodeStatus& node : reply.nodes()) {
    std::string jobs;
    for (const pb::AttemptRef& attempt : node.attempts())
      jobs += (jobs.empty() ? "" : ", ") + one_line(attempt.job(), 64) + " a" +
              to_text(attempt.epoch());
    table.add({cut(one_line(node.node(), 64), 20), one_line(node.state(), 10),
               to_text(uint64_t{node.slots_used()}) + "/" + to_text(uint64_t{node.slots()}),
               duration_text(node.heard_ms_ago()), cut(jobs, 24)});
    if (!node.reason().empty())
      reasons += text_row(one_line(node.node(), 64), one_line(node.reason()));
  }
  return table.text() + (reasons.empty() ? "" : "\n" + reasons);
}

}  // namespace

int verb_nodes(const Args& args) {
  Result<ClientSession> session = connect_coordinator(args);
  if (!session.ok()) return fail(session.status());
  pb::Request request;
  request.mutable_nodes();
  const pb::Reply reply = session->read(request);
  if (reply.code() != 0) return fail_reply(reply);
  if (!reply.error().empty()) print_message(one_line(reply.error()));
  if (args.text("--output") == "json") {
    Json nodes = Json::array();
    for (const pb::NodeStatus& node : reply.nodes()) nodes.push(node_json(node));
    print_json(Json::object().set("schema_version", kClientSchemaVersion).set("nodes", nodes));
  } else if (reply.nodes_size() > 0) {
    print(node_table(reply));
  } else {
    print_line(
        "no workers; start one: swax worker --name NAME --slots N --state DIR --coordinator " +
        session->address());
  }
  return kExitOk;
}

}  // namespace swax
