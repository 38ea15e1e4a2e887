#include "ops/cli/client_job.h"
#include "ops/cli/client_session.h"
#include "ops/cli/client_verbs.h"
#include "ops/cli/output.h"

namespace swax {

int verb_list(const Args& args) {
  Result<ClientSession> session = connect_coordinator(args);
  if (!session.ok()) return fail(session.status());
  pb::Request request;
  request.mutable_list()->set_all(args.has("--all"));
  const pb::Reply reply = session->read(request);
  if (reply.code() != 0) return fail_reply(reply);
  if (!reply.error().empty()) print_message(one_line(reply.error()));
  if (args.text("--output") == "json") {
    Json jobs = Json::array();
    for (const pb::JobStatus& job : reply.jobs()) jobs.push(job_json(job));
    print_json(Json::object().set("schema_version", kClientSchemaVersion).set("jobs", jobs));
  } else if (reply.jobs_size() > 0) {
    print(job_table({reply.jobs().begin(), reply.jobs().end()}));
  } else {
    print_line(args.has("--all") ? "no jobs" : "no active jobs; --all lists ended ones too");
  }
  return kExitOk;
}

}  // namespace swax
