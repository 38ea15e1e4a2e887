// `swax status`, `events` and `checkpoints list` as the coordinator answers them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "ops/cli/client_events.h"
#include "ops/cli/client_follow.h"
#include "ops/cli/client_job.h"
#include "ops/cli/client_session.h"
#include "ops/cli/client_verbs.h"
#include "ops/cli/output.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kFollowMs = 500;

Json service_json(const pb::ServiceStatus& service) {
  Json refused = Json::object();
  for (const auto& [reason, count] :
       std::map<std::string, uint64_t>(service.refused().begin(), service.refused().end()))
    refused.set(reason, count);
  return Json::object()
      .set("version", service.version())
      .set("build_id", service.build_id())
      .set("cluster_id", service.cluster_id())
      .set("coordinator_epoch", service.coordinator_epoch())
      .set("store", service.store())
      .set("jobs", service.jobs())
      .set("jobs_active", service.jobs_active())
      .set("nodes", service.nodes())
      .set("commits", service.commits())
      .set("peers", service.peers())
      .set("refused", refused);
}

std::string refused_text(const pb::ServiceStatus& service) {
  std::string text;
  for (const auto& [reason, count] :
       std::map<std::string, uint64_t>(service.refused().begin(), service.refused().end()))
    text += (text.empty() ? "" : ", ") + to_text(count) + " " + one_line(reason, 40);
  return text.empty() ? "no messages" : text;
}

std::string service_text(const pb::ServiceStatus& service, const std::string& address) {
  std::string text =
      text_row("coordinator", address + ", start " + to_text(service.coordinator_epoch()) +
                                  ", swax " + one_line(service.version(), 40) + " build " +
                                  one_line(service.build_id(), 40));
  text += text_row("store", one_line(service.store(), 1000));
  text += text_row(
      "jobs", to_text(service.jobs()) + ", " + to_text(service.jobs_active()) + " of them active");
  text += text_row(
      "workers", to_text(service.nodes()) + (service.nodes() > 0 ? "; swax nodes shows them" : ""));
  text += text_row("refused", refused_text(service));
  if (service.nodes() == 0)
    text += text_row("do",
                     "start a worker: swax worker --name NAME --slots N --state DIR "
                     "--coordinator " +
                         address);
  return text;
}

int overview(ClientSession* session, const std::string& output) {
  pb::Request service, list;
  service.mutable_service();
  list.mutable_list()->set_all(false);
  const pb::Reply about = session->read(service);
  if (about.code() != 0) return fail_reply(about);
  // It answers about itself also while its state cannot be written.
  const pb::Reply jobs = session->read(list);
  if (output == "json") {
    Json rows = Json::array();
    for (const pb::JobStatus& job : jobs.jobs()) rows.push(job_json(job));
    print_json(Json::object()
                   .set("schema_version", kClientSchemaVersion)
                   .set("service", service_json(about.service()))
                   .set("jobs", rows)
                   .set("problem", jobs.error().empty() ? Json() : Json(jobs.error())));
  } else {
    print(service_text(about.service(), session->address()));
    if (jobs.jobs_size() > 0) print("\n" + job_table({jobs.jobs().begin(), jobs.jobs().end()}));
  }
  return jobs.error().empty() ? kExitOk : fail_reply(jobs);
}

int one_job(ClientSession* session, const std::string& name, const std::string& output) {
  const pb::Reply reply = session->read(status_request(name));
  if (reply.code() != 0) return fail_reply(reply);
  if (reply.jobs_size() != 1) return fail(internal_error("the coordinator's answer has no job"));
  const pb::JobStatus& job = reply.jobs(0);
  if (output == "json") {
    print_line(job_json(job).text(false));
    return kExitOk;
  }
  pb::Reply events;
  if (job.events() > 0) events = read_events(session, name, job.events());
  print(job_text(job, events.events_size() > 0 ? &*events.events().rbegin() : nullptr));
  return kExitOk;
}

// Prints events from number *from on and moves it past them. An exit code, or -1: all is printed.
int print_events(ClientSession* session, const std::string& job, uint64_t* from, bool lines,
                 Json* array) {
  for (;;) {
    const pb::Reply reply = read_events(session, job, *from);
    if (reply.code() != 0) return fail_reply(reply);
    if (reply.events_size() == 0) return -1;
    for (const pb::EventRecord& event : reply.events()) {
      if (array != nullptr) {
        array->push(event_json(event));
      } else if (lines) {
        print_line(event_json(event).text(false));
      } else {
        print(event_text(event));
      }
      *from = event.sequence() + 1;
    }
    std::fflush(stdout);
  }
}

int follow_events(ClientSession* session, const std::string& job, bool json) {
  JobFollower follower(session, job, 0);
  uint64_t from = 1;
  while (const std::optional<pb::JobStatus> status = follower.next()) {
    // A coordinator that goes away or gets stuck between two answers is waited for by next().
    const int code =
        status->events() < from ? -1 : print_events(session, job, &from, json, nullptr);
    if (code >= 0 && code != kExitUnreachable && code != kExitInternal) return code;
    if (std::ferror(stdout) != 0) return kExitOk;  // nobody reads any more
    if (code < 0 && exit_code_of_job(*status) >= 0) return kExitOk;
    follower.pause(kFollowMs);
  }
  // Once the job has ended next() gives nothing more, also when its last events were not heard.
  const int code = print_events(session, job, &from, json, nullptr);
  if (code >= 0) return code;
  return follower.exit_code() == kExitNotFound ? kExitNotFound : kExitOk;
}

}  // namespace

int verb_service_status(const Args& args) {
  Result<ClientSession> session = connect_coordinator(args);
  if (!session.ok()) return fail(session.status());
  const std::string& output = args.text("--output");
  return args.words().empty() ? overview(&*session, output)
                              : one_job(&*session, args.words().front(), output);
}

int verb_service_events(const Args& args) {
  if (args.words().empty())
    return fail(invalid_argument("events: give JOB, or --state DIR for a run of swax run"));
  Result<ClientSession> session = connect_coordinator(args);
  if (!session.ok()) return fail(session.status());
  const bool json = args.text("--output") == "json";
  const std::string& job = args.words().front();
  if (args.has("--follow")) return follow_events(&*session, job, json);
  uint64_t from = 1;
  Json array = Json::array();
  const int code = print_events(&*session, job, &from, false, json ? &array : nullptr);
  if (code >= 0) return code;
  if (json) print_json(array);
  return kExitOk;
}

int verb_service_checkpoints(const Args& args) {
  if (args.words().empty())
    return fail(
        invalid_argument("checkpoints list: give JOB, or --state DIR for a run of swax run"));
  Result<ClientSession> session = connect_coordinator(args);
  if (!session.ok()) return fail(session.status());
  pb::Request request;
  request.mutable_checkpoints()->set_job(args.words().front());
  pb::Reply reply = session->read(request);
  if (reply.code() != 0) return fail_reply(reply);
  if (!reply.error().empty()) print_message(one_line(reply.error()));
  auto& rows = *reply.mutable_checkpoints();
  std::reverse(rows.begin(), rows.end());  // newest first
  Json list = Json::array();
  TextTable table({{"step"},
                   {"attempt"},
                   {"ranks"},
                   {"size"},
                   {"state", TextTable::Align::kLeft},
                   {"digest", TextTable::Align::kLeft}});
  for (const pb::CheckpointStatus& row : rows) {
    list.push(Json::object()
                  .set("step", row.step())
                  .set("attempt", row.epoch())
                  .set("state", row.state())
                  .set("committed_ms", row.committed_ms())
                  .set("ranks", row.world_size())
                  .set("bytes", row.bytes())
                  .set("digest", row.digest()));
    table.add({to_text(row.step()), to_text(row.epoch()), to_text(uint64_t{row.world_size()}),
               bytes_text(static_cast<int64_t>(row.bytes())), one_line(row.state(), 10),
               one_line(row.digest(), 32)});
  }
  if (args.text("--output") == "json") {
    print_json(list);
  } else if (rows.empty()) {
    print_line("no checkpoints yet");
  } else {
    print(table.text());
  }
  return kExitOk;
}

}  // namespace swax
