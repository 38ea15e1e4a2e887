// `swax cancel` and `swax resume`: both change a job once, whatever gets lost on the way.
#include "ops/cli/client_job.h"
#include "ops/cli/client_session.h"
#include "ops/cli/client_verbs.h"
#include "ops/cli/output.h"

namespace swax {
namespace {

int change(const Args& args, const pb::Request& request) {
  const Result<std::string> id = request_id(args);
  if (!id.ok()) return fail(id.status());
  Result<ClientSession> session = connect_coordinator(args);
  if (!session.ok()) return fail(session.status());
  session->on_retry([&](const std::string& why) {
    print_message("no answer yet: " + why + "; trying again with request id " + *id);
  });
  const pb::Reply reply = session->ask(
      request, {.tries = 0, .total_ms = static_cast<int64_t>(args.real("--timeout") * 1e3)}, *id);
  if (reply.code() != 0) return fail_reply(reply);
  if (reply.jobs_size() != 1) return fail(internal_error("the coordinator's answer has no job"));
  if (args.text("--output") == "json") {
    print_line(job_json(reply.jobs(0)).text(false));
  } else {
    print(text_row("job", one_line(reply.jobs(0).job(), 64)) +
          text_row("state", one_line(reply.jobs(0).state(), 20)) +
          text_row("now", one_line(reply.jobs(0).message())));
  }
  return kExitOk;
}

}  // namespace

int verb_cancel(const Args& args) {
  pb::Request request;
  request.mutable_cancel()->set_job(args.words().front());
  request.mutable_cancel()->set_now(args.has("--now"));
  return change(args, request);
}

int verb_resume(const Args& args) {
  pb::Request request;
  request.mutable_resume()->set_job(args.words().front());
  return change(args, request);
}

}  // namespace swax
