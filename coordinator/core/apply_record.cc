#include <algorithm>
#include <cstdint>

#include "coordinator/core/core.h"
#include "jobs/spec.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

using Problem = std::optional<std::string>;

JobState ended_state(const std::string& name) {
  if (name == "SUCCEEDED") return JobState::kSucceeded;
  if (name == "FAILED") return JobState::kFailed;
  if (name == "CANCELLED") return JobState::kCancelled;
  return JobState::kQueued;
}

Problem apply_created(Durable& durable, const pb::JobRecord& r) {
  if (durable.jobs.contains(r.job())) return "the job exists already";
  if (r.number() != 1) return "record 1 is missing";
  const pb::JobCreated& created = r.created();
  Job job;
  job.name = r.job();
  job.spec = created.spec();
  fill_absent(&job.spec);
  job.numeric_id = created.numeric_id();
  job.spec_hash = created.spec_hash();
  job.request_id = created.request_id();
  job.priority = created.priority();
  job.order = created.order();
  job.submitted_ms = r.wall_ms();
  for (const pb::PlanLine& line : created.plan())
    job.plan[line.ranks()] = std::min<uint64_t>(line.bytes_per_rank(), INT64_MAX);
  job.records = 1;
  durable.next_order = std::max(durable.next_order, created.order() + 1);
  durable.active.insert(job.name);
  durable.jobs.emplace(job.name, std::move(job));
  return {};
}

Problem apply_placed(Job& job, const pb::AttemptPlaced& placed) {
  if (job.attempt_live) return "an attempt is placed while another one is live";
  if (job.stop) return "an attempt is placed after a stop";
  if (placed.epoch() != job.epoch + 1) return "attempt epochs are not consecutive";
  if (placed.ranks().empty()) return "an attempt without ranks";
  job.epoch = placed.epoch();
  job.attempt_live = true;
  job.lead = placed.lead();
  job.ranks.assign(placed.ranks().begin(), placed.ranks().end());
  job.state = JobState::kStarting;
  job.reason.clear();
  job.retry_delay_ms = 0;
  return {};
}

Problem apply_running(Job& job, const pb::AttemptRunning& running) {
  if (!job.attempt_live || running.epoch() != job.epoch) return "a step of an attempt that is over";
  if (!job.stop) job.state = JobState::kRunning;
  return {};
}

Problem apply_finished(Job& job, const pb::AttemptFinished& finished) {
  if (!job.attempt_live || finished.epoch() != job.epoch) return "an attempt ends twice";
  job.attempt_live = false;
  job.progress_step = std::max(job.progress_step, finished.step());
  job.restarts_since_commit = finished.restarts_since_commit();
  job.no_progress = finished.no_progress();
  job.launch_failures = finished.result() == "launch_failed" ? job.launch_failures + 1 : 0;
  job.retry_delay_ms = finished.retry_delay_ms();
  job.reason = finished.result();
  if (!finished.reason().empty()) job.reason += ": " + finished.reason();
  job.state = job.stop                 ? JobState::kStopping
              : job.retry_delay_ms > 0 ? JobState::kBackoff
                                       : JobState::kQueued;
  return {};
}

// Also of an attempt that is over, when its record was lost with a coordinator (FindCommitted).
Problem apply_committed(Job& job, const pb::CheckpointDone& done) {
  if (done.epoch() == 0 || done.epoch() > job.epoch) return "a commit of an attempt that never was";
  if (job.checkpoints.contains({done.step(), done.epoch()})) return "a checkpoint commits twice";
  Checkpoint& c = job.checkpoints[{done.step(), done.epoch()}];
  c.step = done.step();
  c.epoch = done.epoch();
  c.state = "COMMITTED";
  c.digest = done.digest();
  c.bytes = done.bytes();
  c.world_size = done.world_size();
  c.committed_ms = done.committed_ms();
  job.progress_step = std::max(job.progress_step, done.step());
  if (!job.attempt_live || done.epoch() != job.epoch) return {};
  job.progress_epoch = done.epoch();
  job.restarts_since_commit = 0;
  job.no_progress = 0;
  return {};
}

Problem apply_gone(Job& job, const pb::CheckpointGone& gone, const char* state) {
  const auto it = job.checkpoints.find({gone.step(), gone.epoch()});
  if (it == job.checkpoints.end()) return "an unknown checkpoint goes";
  it->second.state = state;
  return {};
}

Problem apply_stop(Job& job, const pb::StopAsked& stop) {
  job.stop = stop;
  job.state = JobState::kStopping;
  return {};
}

Problem apply_resumed(Durable& durable, Job& job) {
  if (job.state != JobState::kFailed && job.state != JobState::kCancelled)
    return "only a failed or cancelled job is resumed";
  job.state = JobState::kQueued;
  job.reason.clear();
  job.stop.reset();
  job.result.reset();
  job.restarts_since_commit = 0;
  job.no_progress = 0;
  job.launch_failures = 0;
  job.retry_delay_ms = 0;
  durable.active.insert(job.name);
  return {};
}

Problem apply_job_finished(Durable& durable, Job& job, const pb::JobFinished& finished) {
  const JobState state = ended_state(finished.state());
  if (!job_ended(state)) return "unknown end " + printable(finished.state());
  if (job.attempt_live) return "the job ends while an attempt is live";
  job.state = state;
  job.reason = finished.reason();
  durable.active.erase(job.name);
  return {};
}

bool allowed_after_end(pb::JobRecord::KindCase kind) {
  return kind == pb::JobRecord::kResumed || kind == pb::JobRecord::kRetired ||
         kind == pb::JobRecord::kBad || kind == pb::JobRecord::kNoted;
}

Problem apply_kind(Durable& durable, Job& job, const pb::JobRecord& r) {
  switch (r.kind_case()) {
    case pb::JobRecord::kPlaced:
      return apply_placed(job, r.placed());
    case pb::JobRecord::kRunning:
      return apply_running(job, r.running());
    case pb::JobRecord::kFinished:
      return apply_finished(job, r.finished());
    case pb::JobRecord::kCommitted:
      return apply_committed(job, r.committed());
    case pb::JobRecord::kRetired:
      return apply_gone(job, r.retired(), "RETIRED");
    case pb::JobRecord::kBad:
      return apply_gone(job, r.bad(), "BAD");
    case pb::JobRecord::kStopAsked:
      return apply_stop(job, r.stop_asked());
    case pb::JobRecord::kResumed:
      return apply_resumed(durable, job);
    case pb::JobRecord::kJobFinished:
      return apply_job_finished(durable, job, r.job_finished());
    case pb::JobRecord::kSpecChanged:
      job.spec = r.spec_changed().spec();
      fill_absent(&job.spec);
      job.spec_hash = r.spec_changed().spec_hash();
      job.plan.clear();  // of the spec before
      if (job.attempt_live) job.changed_epoch = job.epoch;
      return {};
    case pb::JobRecord::kNoted:
      return {};
    case pb::JobRecord::kResult:
      if (!job.attempt_live || r.result().epoch() != job.epoch) return "a result of an old attempt";
      job.result = r.result();
      return {};
    case pb::JobRecord::kCreated:
    case pb::JobRecord::KIND_NOT_SET:
      break;
  }
  return "a kind of record that this build does not know";
}

Problem apply(Durable& durable, const pb::JobRecord& r) {
  if (r.kind_case() == pb::JobRecord::kCreated) return apply_created(durable, r);
  const auto it = durable.jobs.find(r.job());
  if (it == durable.jobs.end()) return "the job was never created";
  Job& job = it->second;
  if (r.number() != job.records + 1)
    return "record " + to_text(job.records + 1) + " should stand here";
  if (job_ended(job.state) && !allowed_after_end(r.kind_case()))
    return std::string("a change after the end ") + job_state_name(job.state);
  Problem problem = apply_kind(durable, job, r);
  if (!problem) job.records = r.number();
  return problem;
}

}  // namespace

std::optional<std::string> apply_record(Durable& durable, const pb::JobRecord& record) {
  Problem problem = apply(durable, record);
  if (!problem) return {};
  return "record " + to_text(uint64_t{record.number()}) + " of job " + printable(record.job()) +
         ": " + *problem;
}

void hold_job(Durable& durable, const std::string& job, std::string why) {
  durable.active.erase(job);
  durable.held.emplace(job, std::move(why));
}

void remember_answer(Durable& durable, const RequestAnswer& answer) {
  durable.requests[answer.request_id] = {.body_hash = answer.body_hash, .job = answer.job};
}

void remember_taken(Durable& durable, const ReportsTaken& taken) {
  uint64_t& index = durable.reports_taken[taken.state_id];
  index = std::max(index, taken.index);
}

const char* job_state_name(JobState s) {
  switch (s) {
    case JobState::kQueued:
      return "QUEUED";
    case JobState::kStarting:
      return "STARTING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kBackoff:
      return "BACKOFF";
    case JobState::kStopping:
      return "STOPPING";
    case JobState::kHeld:
      return "HELD";
    case JobState::kSucceeded:
      return "SUCCEEDED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kCancelled:
      return "CANCELLED";
  }
  return "?";
}

bool job_ended(JobState s) {
  return s == JobState::kSucceeded || s == JobState::kFailed || s == JobState::kCancelled;
}

}  // namespace swax::coord
