// `swax submit`: hands a job over to the coordinator, once, whatever gets lost on the way.
#include <stdlib.h>
#include <unistd.h>

#include <climits>

#include "jobs/spec.h"
#include "ops/cli/client_follow.h"
#include "ops/cli/client_job.h"
#include "ops/cli/client_session.h"
#include "ops/cli/client_verbs.h"
#include "ops/cli/data_check.h"
#include "ops/cli/output.h"
#include "ops/cli/spec_file.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "storage/shard_catalog.h"
#include "worker/model/plan.h"

namespace swax {
namespace {

constexpr std::string_view kFileText = "file:";

std::string absolute_path(const std::string& path) {
  char resolved[PATH_MAX];
  if (::realpath(path.c_str(), resolved) != nullptr) return resolved;
  char here[PATH_MAX];
  return ::getcwd(here, sizeof here) == nullptr ? path : join_path(here, path);
}

// Workers have other working folders: paths are made absolute here. A data set that can be read
// from here is known by its digest from now on; one that a worker builds from a text is not yet,
// and its digest stays empty until the ranks know it.
Status fix_sources(pb::JobSpec* spec) {
  for (int i = 0; i < spec->data().sources_size(); ++i) {
    pb::DataSource& source = *spec->mutable_data()->mutable_sources(i);
    if (source.text().starts_with(kFileText)) {
      const std::string path = source.text().substr(kFileText.size());
      source.set_text(std::string(kFileText) + absolute_path(path));
    }
    if (source.path().empty()) continue;
    source.set_path(absolute_path(source.path()));
    const Result<pb::DatasetManifest> manifest = read_dataset_manifest(source.path());
    if (!manifest.ok() && manifest.status().code() != Code::kNotFound)
      return manifest.status().with_context(source_field(*spec, i));
    if (!manifest.ok()) continue;
    if (const auto problem = dataset_problem(*spec, i, *manifest))
      return invalid_argument(problem->text());
    source.set_digest(manifest->digest());
  }
  return ok();
}

std::vector<SpecProblem> begin_problems(const pb::JobSpec& spec) {
  const auto problem = start_problem(
      spec, "a submitted job is new (`swax resume " + spec.job().name() + "` goes on with one)");
  return problem ? std::vector{*problem} : std::vector<SpecProblem>();
}

Status fill_plan(pb::SubmitRequest* submit) {
  for (const int ranks : allowed_ranks(submit->spec())) {
    SWAX_ASSIGN(const MemoryPlan plan, plan_memory(submit->spec(), ranks));
    pb::PlanLine& line = *submit->add_plan();
    line.set_ranks(static_cast<uint32_t>(ranks));
    line.set_bytes_per_rank(static_cast<uint64_t>(plan.host_bytes()));
  }
  return ok();
}

void print_submitted(const pb::JobStatus& job, const std::string& request_id,
                     const std::string& output) {
  if (output == "json") {
    print_line(Json::object()
                   .set("schema_version", kClientSchemaVersion)
                   .set("job", job.job())
                   .set("request_id", request_id)
                   .set("state", job.state())
                   .text(false));
    return;
  }
  print(text_row("job", one_line(job.job(), 64)) + text_row("state", one_line(job.state(), 20)) +
        text_row("now", one_line(job.message())) + text_row("request id", request_id) +
        text_row("do", "swax watch " + one_line(job.job(), 64) + " follows it"));
}

int submit(const Args& args, const std::string& id, const pb::Request& request) {
  Result<ClientSession> session = connect_coordinator(args);
  if (!session.ok()) return fail(session.status());
  session->on_retry([&](const std::string& why) {
    print_message("no answer yet: " + why + "; trying again with request id " + id);
  });
  const pb::Reply reply = session->ask(
      request, {.tries = 0, .total_ms = static_cast<int64_t>(args.real("--timeout") * 1e3)}, id);
  if (reply.code() != 0) return fail_reply(reply);
  if (reply.jobs_size() != 1)
    return fail(internal_error("the coordinator's answer has no job; request id " + id));
  const pb::JobStatus& job = reply.jobs(0);
  if (reply.existing() && session->retried()) {
    print_message("an earlier try had reached the coordinator, its answer was lost: job " +
                  one_line(job.job(), 64) + " was submitted once");
  } else if (reply.existing()) {
    print_message("request id " + id + " is known: job " + one_line(job.job(), 64) +
                  " was submitted before");
  }
  const std::string& output = args.text("--output");
  if (!args.has("--wait")) {
    print_submitted(job, id, output);
    return kExitOk;
  }
  print_message("job " + one_line(job.job(), 64) + " submitted, request id " + id +
                "; Ctrl-C leaves it running");
  const Followed followed = follow_job(&*session, job.job(), {.timeout_ms = 0, .show = true});
  print_followed(followed, output, id);
  return followed.exit_code;
}

}  // namespace

int verb_submit(const Args& args) {
  const Result<std::string> id = request_id(args);
  if (!id.ok()) return fail(id.status());
  const Result<std::vector<SpecOverride>> overrides = spec_overrides(args);
  if (!overrides.ok()) return fail(overrides.status());
  std::optional<pb::JobSpec> spec =
      load_spec_file(args.words().front(), *overrides, begin_problems);
  if (!spec) return kExitUsage;
  if (const Status status = fix_sources(&*spec); !status.ok()) {
    print_message(status.message());
    return kExitUsage;  // an input is wrong, whatever the way it is
  }
  pb::Request request;
  pb::SubmitRequest& body = *request.mutable_submit();
  *body.mutable_spec() = std::move(*spec);
  body.set_priority(static_cast<int32_t>(args.integer("--priority")));
  if (const Status status = fill_plan(&body); !status.ok()) return fail(status);
  return submit(args, *id, request);
}

}  // namespace swax
