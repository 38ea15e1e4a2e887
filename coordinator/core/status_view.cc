#include <algorithm>

#include "coordinator/core/internal.h"
#include "jobs/schedule.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

std::string n(uint64_t value) { return to_text(value); }

std::string attempt_message(const State& state, const Job& job) {
  const auto it = state.vol.live.find(job.name);
  const AttemptLive* live = it == state.vol.live.end() ? nullptr : &it->second;
  const bool smaller = job.ranks.size() < ranks_asked(job);
  const std::string who = "attempt " + n(job.epoch) + ", " + n(job.ranks.size()) +
                          (smaller ? " of " + n(ranks_asked(job)) : "") + " ranks on " +
                          n(nodes_of(job).size()) + " workers";
  for (const std::string& node : nodes_of(job)) {
    const auto worker = state.vol.workers.find(node);
    if (worker == state.vol.workers.end())
      return who + ": waiting for worker " + node + " to come back after the coordinator's start";
  }
  if (job.stop)
    return who + ": " + (job.stop->now() ? "is being killed" : "writes a checkpoint and leaves") +
           " because it was cancelled";
  if (live == nullptr) return who;
  if (live->bad_end_ms >= 0) return who + ": has failed on a worker and is being ended";
  if (live->grow_to > 0)
    return who + ": saves and leaves, to go on with " + n(live->grow_to) + " ranks";
  if (job.state == JobState::kStarting)
    return who + ": " + (live->phase.empty() ? "starting" : live->phase) + ", no step yet";
  return who + ": " + (live->phase.empty() ? "running" : live->phase);
}

std::string ended_message(const Job& job) {
  switch (job.state) {
    case JobState::kSucceeded:
      return "done after " + n(job.epoch) + (job.epoch == 1 ? " attempt" : " attempts");
    case JobState::kFailed:
      return "failed (" + job.reason + "). `swax events " + job.name +
             "` tells what happened; `swax resume " + job.name +
             "` goes on from the last checkpoint";
    default:
      return "cancelled; `swax resume " + job.name + "` goes on from the last checkpoint";
  }
}

std::string waiting_message(const State& state, const Job& job, const std::string& reason,
                            int64_t now_ms) {
  const std::string ranks = n(ranks_asked(job));
  std::string text;
  if (reason == "Backoff") {
    text = "next attempt in " + duration_text(state.vol.retry_at_ms.at(job.name) - now_ms);
  } else if (reason == "WaitingForCapacity") {
    uint64_t slots = 0;
    for (const auto& [node, worker] : state.vol.workers)
      if (!worker.lost) slots += worker.slots;
    const uint64_t bytes = planned_bytes(job, job.spec.parallelism().ranks());
    text =
        "needs " + ranks + " slots" +
        (bytes > 0 ? " with " + bytes_text(static_cast<int64_t>(bytes)) + " of memory each" : "") +
        ", the live workers have " + n(slots) +
        ": start more workers or allow fewer ranks (parallelism.allowed_ranks)";
  } else if (reason == "WaitingForTime") {
    text = "the workers are taken away before a new attempt could save anything";
  } else if (reason == "HigherPriority") {
    text = "slots are kept for a job that comes first";
  } else {
    text = "needs " + ranks + " free slots: they are in use, `swax nodes` shows by whom";
  }
  if (!job.reason.empty()) text += "; attempt " + n(job.epoch) + " ended with " + job.reason;
  return text;
}

void fill_numbers(const State& state, const Job& job, pb::JobStatus* s) {
  s->set_total_steps(static_cast<uint64_t>(std::max<int64_t>(0, total_steps(job.spec))));
  s->set_step(job.progress_step);
  const auto live = state.vol.live.find(job.name);
  if (live != state.vol.live.end()) {
    const pb::StepRecord& step = live->second.last_step;
    s->set_phase(live->second.phase);
    if (live->second.step > 0) s->set_step(live->second.step);
    if (step.step() > 0) {
      s->set_loss_bits(step.loss_bits());
      s->set_window(step.window());
      if (step.step_ns() > 0)
        s->set_tokens_per_s(static_cast<double>(step.tokens()) * 1e9 /
                            static_cast<double>(step.step_ns()));
    }
  }
  const auto validation = state.vol.last_validation.find(job.name);
  if (validation != state.vol.last_validation.end())
    s->set_validation_bpb_bits(validation->second.bpb_bits());
  for (const auto& [key, checkpoint] : job.checkpoints) {
    if (checkpoint.state != "COMMITTED") continue;
    s->set_checkpoint_step(key.first);
    s->set_checkpoint_ms(checkpoint.committed_ms);
  }
  if (!job.result) return;
  s->set_step(job.result->step());
  s->set_loss_bits(job.result->loss_bits());
  s->set_validation_bpb_bits(job.result->validation_bpb_bits());
  s->set_tokens_per_s(job.result->tokens_per_s());
  s->set_digest(job.result->digest());
}

}  // namespace

pb::JobStatus job_status(const State& state, const Config& config, const Job& job,
                         const Event& event) {
  pb::JobStatus s;
  s.set_job(job.name);
  s.set_state(job_state_name(job.state));
  if (job_ended(job.state)) {
    s.set_reason(job.reason);
    s.set_message(ended_message(job));
  } else if (job.attempt_live) {
    s.set_reason(job.stop ? "Cancelled" : "");
    s.set_message(attempt_message(state, job));
  } else {
    s.set_reason(waiting_reason(state, config, job, event.now_ms));
    s.set_message(waiting_message(state, job, s.reason(), event.now_ms));
  }
  fill_numbers(state, job, &s);
  s.set_epoch(job.epoch);
  s.set_restarts(job.epoch > 0 ? job.epoch - 1 : 0);
  if (job.attempt_live) {
    for (const pb::RankPlacement& rank : job.ranks) {
      pb::RankPlace& place = *s.add_ranks();
      place.set_rank(rank.rank());
      place.set_node(rank.node());
    }
  }
  s.set_priority(job.priority);
  s.set_submitted_ms(job.submitted_ms);
  s.set_numeric_id(job.numeric_id);
  s.set_events(job.records);
  s.set_wall_ms(event.wall_ms);
  s.set_store_path(config.store + "/jobs/" + job.name);
  return s;
}

pb::JobStatus held_status(const State& state, const std::string& job) {
  pb::JobStatus s;
  s.set_job(job);
  s.set_state(job_state_name(JobState::kHeld));
  s.set_reason("CorruptRecord");
  s.set_message("its records cannot be read (" + state.durable.held.at(job) +
                "): restore the coordinator's state from a backup, or submit it under another "
                "job.name; its checkpoints are untouched");
  return s;
}

pb::NodeStatus node_status(const State& state, const Config& config, const Worker& worker,
                           int64_t now_ms) {
  pb::NodeStatus s;
  s.set_node(worker.node);
  s.set_host(worker.host);
  s.set_slots(worker.slots);
  s.set_incarnation(worker.incarnation);
  s.set_heard_ms_ago(now_ms - worker.heard_ms);
  uint32_t used = 0;
  for (const auto& [name, live] : state.vol.live) {
    const Job& job = state.durable.jobs.at(name);
    const auto here = std::count_if(job.ranks.begin(), job.ranks.end(),
                                    [&](const auto& rank) { return rank.node() == worker.node; });
    if (here == 0) continue;
    used += static_cast<uint32_t>(here);
    s.add_attempts()->set_job(name);
    s.mutable_attempts()->rbegin()->set_epoch(job.epoch);
  }
  s.set_slots_used(used);
  if (worker.lost) {
    s.set_state("LOST");
    s.set_reason("silent for " + duration_text(s.heard_ms_ago()));
  } else if (s.heard_ms_ago() > config.suspect_ms) {
    s.set_state("SUSPECT");
    s.set_reason("silent for " + duration_text(s.heard_ms_ago()) + ": gets no new work");
  } else {
    s.set_state(used > 0 ? "ALLOCATED" : "IDLE");
  }
  return s;
}

}  // namespace swax::coord
