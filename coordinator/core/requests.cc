#include <algorithm>

#include "coordinator/core/internal.h"
#include "jobs/spec.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

constexpr int kBadSpec = 2, kUnknown = 3, kConflict = 4, kQuota = 8;
constexpr size_t kProblemsMax = 20;
constexpr size_t kPlacedAtOnceMax = 64;
constexpr int kPlanLinesMax = 256;  // as many as spec fields parallelism.allowed_ranks may have

void answer(Context& ctx, const Message& message, pb::Reply reply) {
  pb::Envelope e;
  e.set_cluster_id(ctx.config.cluster_id);
  e.set_coordinator_epoch(ctx.state.durable.coordinator_epoch);
  e.set_sequence(++ctx.state.vol.sequence);
  e.set_request_id(message.envelope.request_id());
  *e.mutable_reply() = std::move(reply);
  ctx.out.commands.emplace_back(Send{.peer = message.peer, .envelope = std::move(e)});
}

void answer_error(Context& ctx, const Message& message, int code, std::string error) {
  pb::Reply reply;
  reply.set_code(code);
  reply.set_error(std::move(error));
  answer(ctx, message, std::move(reply));
}

void answer_job(Context& ctx, const Message& message, const std::string& job, bool existing) {
  pb::Reply reply;
  reply.set_existing(existing);
  if (const Job* j = find_job(ctx.state, job); j != nullptr)
    *reply.add_jobs() = job_status(ctx.state, ctx.config, *j, ctx.event);
  answer(ctx, message, std::move(reply));
}

// Durable in the batch of the records it goes with: the same request again gets the same answer.
void remember(Context& ctx, const Message& message, const std::string& job) {
  RequestAnswer stored{
      .request_id = message.envelope.request_id(), .body_hash = message.body_hash, .job = job};
  if (stored.request_id.empty()) return;
  remember_answer(ctx.state.durable, stored);
  ctx.out.answers.push_back(std::move(stored));
}

// True when the request was answered before (or its id belongs to another request).
bool answered_before(Context& ctx, const Message& message) {
  const auto it = ctx.state.durable.requests.find(message.envelope.request_id());
  if (it == ctx.state.durable.requests.end()) return false;
  if (it->second.body_hash != message.body_hash) {
    answer_error(ctx, message, kConflict,
                 "request id " + printable(message.envelope.request_id()) +
                     " was used for another request: make a new one");
  } else {
    answer_job(ctx, message, it->second.job, true);
  }
  return true;
}

bool good_request_id(std::string_view id) {
  return id.size() == 32 && std::all_of(id.begin(), id.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string problems_text(const pb::JobSpec& spec) {
  std::string text;
  size_t count = 0;
  for (const SpecProblem& problem : check_spec(spec)) {
    if (problem.warning || ++count > kProblemsMax) continue;
    if (!text.empty()) text += "\n";
    text += problem.text();
  }
  if (count > kProblemsMax) text += "\nand " + to_text(uint64_t{count - kProblemsMax}) + " more";
  return text;
}

std::string name_conflict(const State& state, const std::string& name) {
  if (state.durable.held.contains(name))
    return "job " + name + " is held, its records cannot be read: choose another job.name";
  const Job& job = state.durable.jobs.at(name);
  const std::string is = "job " + name + " is " + job_state_name(job.state);
  if (job.state == JobState::kFailed || job.state == JobState::kCancelled)
    return is + ": `swax resume " + name +
           "` goes on from its last checkpoint, or choose another "
           "job.name";
  if (job.state == JobState::kSucceeded) return is + ": choose another job.name";
  return is + ": choose another job.name, or cancel it first (`swax cancel " + name + "`)";
}

// The answer should say what the next tick would find. Many that wait are a reason of their own,
// and looking at them for each request would cost more than the request.
void place_now(Context& ctx) {
  const size_t active = ctx.state.durable.active.size(), live = ctx.state.vol.live.size();
  if (active <= live + kPlacedAtOnceMax) schedule(ctx);
}

void on_submit(Context& ctx, const Message& message, const pb::SubmitRequest& submit) {
  const Durable& durable = ctx.state.durable;
  if (!good_request_id(message.envelope.request_id()))
    return answer_error(ctx, message, kBadSpec, "a submit needs a request id of 32 hex digits");
  if (answered_before(ctx, message)) return;
  const std::string problems = problems_text(submit.spec());
  if (!problems.empty()) return answer_error(ctx, message, kBadSpec, problems);
  const std::string name = submit.spec().job().name();
  if (durable.jobs.contains(name) || durable.held.contains(name))
    return answer_error(ctx, message, kConflict, name_conflict(ctx.state, name));
  if (durable.active.size() >= ctx.config.jobs_active_max)
    return answer_error(ctx, message, kQuota,
                        to_text(uint64_t{durable.active.size()}) + " jobs are active, at most " +
                            to_text(ctx.config.jobs_active_max) + ": wait for some to end");
  pb::JobRecord r;
  pb::JobCreated& created = *r.mutable_created();
  *created.mutable_spec() = submit.spec();
  created.set_numeric_id(numeric_id(submit.spec()).hex());
  created.set_spec_hash(spec_hash(submit.spec()).hex());
  created.set_priority(submit.priority());
  created.set_order(durable.next_order);
  created.set_request_id(message.envelope.request_id());
  for (int i = 0; i < std::min(submit.plan_size(), kPlanLinesMax); ++i)
    *created.add_plan() = submit.plan(i);
  record(ctx, name, std::move(r));
  remember(ctx, message, name);
  place_now(ctx);
  answer_job(ctx, message, name, false);
}

// nullptr: answered already.
Job* named_job(Context& ctx, const Message& message, const std::string& name) {
  Job* job = find_job(ctx.state, name);
  if (job != nullptr) return job;
  const auto held = ctx.state.durable.held.find(name);
  if (held != ctx.state.durable.held.end()) {
    answer_error(ctx, message, kConflict, "job " + name + " is held: " + held->second);
  } else {
    answer_error(ctx, message, kUnknown,
                 "no job " + printable(name) + ": `swax list --all` shows all jobs");
  }
  return nullptr;
}

// What changes nothing is remembered too: a copy that comes late must not end, or begin again, what
// was changed meanwhile.
void on_cancel(Context& ctx, const Message& message, const pb::CancelRequest& cancel) {
  if (answered_before(ctx, message)) return;
  const Job* job = named_job(ctx, message, cancel.job());
  if (job == nullptr) return;
  if (job->state == JobState::kCancelled) {
    remember(ctx, message, cancel.job());
    return answer_job(ctx, message, cancel.job(), true);
  }
  if (job_ended(job->state))
    return answer_error(ctx, message, kConflict,
                        "job " + job->name + " has ended: " + job_state_name(job->state));
  if (!job->stop || (cancel.now() && !job->stop->now())) {
    pb::JobRecord r;
    r.mutable_stop_asked()->set_outcome("CANCELLED");
    r.mutable_stop_asked()->set_now(cancel.now());
    record(ctx, cancel.job(), std::move(r));
  }
  remember(ctx, message, cancel.job());
  if (!job->attempt_live) {
    finish_job(ctx, cancel.job(), "CANCELLED", "cancelled");
  } else {
    for (const std::string& node : nodes_of(*job))
      for (Command& command : reconcile(ctx.state, ctx.config, node))
        ctx.out.commands.push_back(std::move(command));
  }
  answer_job(ctx, message, cancel.job(), false);
}

// Fields that differ, as "path: before -> after": the free ones, or those that make another job.
std::string changes_text(const pb::JobSpec& before, const pb::JobSpec& after, bool free_fields) {
  constexpr size_t kShown = 5;
  std::string text;
  size_t count = 0;
  for (const FieldChange& change : spec_changes(before, after)) {
    if ((change.field_class == pb::FREE) != free_fields || ++count > kShown) continue;
    text += (text.empty() ? "" : "; ") + change.path + ": " + change.before + " -> " + change.after;
  }
  if (count > kShown) text += "; and " + to_text(uint64_t{count - kShown}) + " more";
  return text;
}

// False: answered.
bool may_take_spec(Context& ctx, const Message& message, const Job& job, const pb::JobSpec& spec) {
  const std::string problems = problems_text(spec);
  if (!problems.empty()) {
    answer_error(ctx, message, kBadSpec, problems);
    return false;
  }
  if (spec.job().name() == job.name && numeric_id(spec).hex() == job.numeric_id) return true;
  answer_error(ctx, message, kConflict,
               "job " + job.name + " is another one: " + changes_text(job.spec, spec, false));
  return false;
}

// Changed free fields are taken by the next attempt; one that is live keeps what it began with.
void on_resume(Context& ctx, const Message& message, const pb::ResumeRequest& resume) {
  if (answered_before(ctx, message)) return;
  const Job* job = named_job(ctx, message, resume.job());
  if (job == nullptr) return;
  if (resume.has_spec() && !may_take_spec(ctx, message, *job, resume.spec())) return;
  const bool ended = job->state == JobState::kFailed || job->state == JobState::kCancelled;
  // By what they say: the hash of a spec of an older build covers fewer keys.
  const bool changed = resume.has_spec() && spec_hash(resume.spec()) != spec_hash(job->spec);
  if (!ended && (!resume.has_spec() || job_ended(job->state)))
    return answer_error(ctx, message, kConflict,
                        "job " + job->name + " is " + job_state_name(job->state) +
                            ": only a failed or cancelled job is resumed");
  if (ended) {
    pb::JobRecord r;
    r.mutable_resumed();
    record(ctx, resume.job(), std::move(r));
  }
  if (changed) {
    pb::JobRecord r;
    pb::SpecChanged& spec = *r.mutable_spec_changed();
    *spec.mutable_spec() = resume.spec();
    spec.set_spec_hash(spec_hash(resume.spec()).hex());
    spec.set_text(changes_text(job->spec, resume.spec(), true));
    record(ctx, resume.job(), std::move(r));
    ctx.state.vol.growths.erase(resume.job());  // of the numbers before
  }
  remember(ctx, message, resume.job());
  if (ended) place_now(ctx);
  answer_job(ctx, message, resume.job(), !ended && !changed);
}

void on_list(Context& ctx, const Message& message, bool all) {
  pb::Reply reply;
  for (const auto& [name, job] : ctx.state.durable.jobs)
    if (!ctx.state.durable.held.contains(name) && (all || !job_ended(job.state)))
      *reply.add_jobs() = job_status(ctx.state, ctx.config, job, ctx.event);
  for (const auto& [name, why] : ctx.state.durable.held)
    *reply.add_jobs() = held_status(ctx.state, name);
  answer(ctx, message, std::move(reply));
}

void on_status(Context& ctx, const Message& message, const std::string& name) {
  pb::Reply reply;
  if (ctx.state.durable.held.contains(name)) {
    *reply.add_jobs() = held_status(ctx.state, name);
    return answer(ctx, message, std::move(reply));
  }
  if (named_job(ctx, message, name) == nullptr) return;
  answer_job(ctx, message, name, false);
}

void on_nodes(Context& ctx, const Message& message) {
  pb::Reply reply;
  for (const auto& [node, worker] : ctx.state.vol.workers)
    *reply.add_nodes() = node_status(ctx.state, ctx.config, worker, ctx.now());
  answer(ctx, message, std::move(reply));
}

void on_checkpoints(Context& ctx, const Message& message, const std::string& name) {
  const Job* job = named_job(ctx, message, name);
  if (job == nullptr) return;
  pb::Reply reply;
  for (const auto& [key, checkpoint] : job->checkpoints) {
    pb::CheckpointStatus& status = *reply.add_checkpoints();
    status.set_step(checkpoint.step);
    status.set_epoch(checkpoint.epoch);
    status.set_state(checkpoint.state);
    status.set_committed_ms(checkpoint.committed_ms);
    status.set_digest(checkpoint.digest);
    status.set_world_size(checkpoint.world_size);
    status.set_bytes(checkpoint.bytes);
  }
  answer(ctx, message, std::move(reply));
}

}  // namespace

void on_request(Context& ctx, const Message& message) {
  const pb::Request& request = message.envelope.request();
  switch (request.kind_case()) {
    case pb::Request::kSubmit:
      return on_submit(ctx, message, request.submit());
    case pb::Request::kCancel:
      return on_cancel(ctx, message, request.cancel());
    case pb::Request::kResume:
      return on_resume(ctx, message, request.resume());
    case pb::Request::kList:
      return on_list(ctx, message, request.list().all());
    case pb::Request::kStatus:
      return on_status(ctx, message, request.status().job());
    case pb::Request::kNodes:
      return on_nodes(ctx, message);
    case pb::Request::kCheckpoints:
      return on_checkpoints(ctx, message, request.checkpoints().job());
    case pb::Request::kEvents:
    case pb::Request::kLogs:
    case pb::Request::kService:
    case pb::Request::kSteps:
    case pb::Request::KIND_NOT_SET:
      return answer_error(ctx, message, kConflict, "this request is answered outside the core");
  }
}

}  // namespace swax::coord
