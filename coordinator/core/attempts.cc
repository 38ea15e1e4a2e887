#include <algorithm>
#include <bit>
#include <tuple>

#include "coordinator/core/internal.h"
#include "proto/base/text.h"

namespace swax::coord {
namespace {

void take_step(Context& ctx, const std::string& job_name, AttemptLive& live,
               const pb::StepRecord& step) {
  const Job& job = ctx.state.durable.jobs.at(job_name);
  live.step = std::max(live.step, step.step());
  live.last_step = step;
  ctx.out.commands.emplace_back(StoreStep{.job = job_name, .record = step});
  if (job.state != JobState::kStarting) return;
  int64_t& startup_ms = ctx.state.vol.startup_ms;
  startup_ms = std::max(startup_ms, ctx.now() - live.started_ms);
  pb::JobRecord r;
  r.mutable_running()->set_epoch(job.epoch);
  r.mutable_running()->set_step(step.step());
  record(ctx, job_name, std::move(r));
}

void take_done(Context& ctx, const std::string& job_name, const pb::DoneReport& done) {
  const Job& job = ctx.state.durable.jobs.at(job_name);
  const bool known = job.result && job.result->epoch() == job.epoch;
  if (done.outcome() != "done" || known) return;
  pb::JobRecord r;
  pb::RunResult& result = *r.mutable_result();
  result.set_epoch(job.epoch);
  result.set_step(done.step());
  result.set_digest(done.digest());
  result.set_loss_bits(done.loss_bits());
  result.set_validation_bpb_bits(done.validation_bpb_bits());
  result.set_tokens_per_s(done.tokens_per_s());
  record(ctx, job_name, std::move(r));
}

void take_event(Context& ctx, const std::string& job, const pb::EventRecord& event) {
  if (event.kind() == "checkpoint_bad")
    return mark_checkpoint_bad(ctx, job, event.step(), event.text());
  if (event.kind() == "checkpoint_failed") ctx.state.vol.live.at(job).save_failed = true;
  note(ctx, job, event.kind(), event.step(), event.text());
}

void take_validation(Context& ctx, const std::string& job, const pb::ValidationRecord& validation) {
  ctx.state.vol.last_validation[job] = validation;
  note(ctx, job, "validation", validation.step(),
       fixed_text(std::bit_cast<double>(validation.bpb_bits()), 4) + " bits per byte, loss " +
           fixed_text(std::bit_cast<double>(validation.loss_bits()), 4) +
           (validation.final() ? ", all held-out text" : ""));
}

void take_ended(Context& ctx, const Worker& worker, const std::string& job,
                const pb::AttemptEnded& ended) {
  NodeEnd end;
  end.result = ended.result();
  end.report = ended;
  end_node(ctx, job, worker.node, std::move(end));
}

// Messages of an older epoch, of an attempt that is over or of a node without a part in it change
// nothing.
void take_report(Context& ctx, const Worker& worker, const pb::AttemptReport& report) {
  const Job* job = find_job(ctx.state, report.job());
  AttemptLive* live = find_live(ctx.state, report.job());
  if (job == nullptr || live == nullptr || job->epoch != report.epoch()) return;
  if (!hosts(*job, worker.node)) return;
  switch (report.kind_case()) {
    case pb::AttemptReport::kStep:
      return take_step(ctx, report.job(), *live, report.step());
    case pb::AttemptReport::kValidation:
      return take_validation(ctx, report.job(), report.validation());
    case pb::AttemptReport::kEvent:
      return take_event(ctx, report.job(), report.event());
    case pb::AttemptReport::kDurable:
      return take_durable(ctx, worker, report.job(), report.durable());
    case pb::AttemptReport::kDone:
      return take_done(ctx, report.job(), report.done());
    case pb::AttemptReport::kEnded:
      return take_ended(ctx, worker, report.job(), report.ended());
    case pb::AttemptReport::kHello:
      return note(ctx, report.job(), "loaded", report.hello().start_step(),
                  "ranks " + to_text(uint64_t{report.hello().world_size()}) + ", build " +
                      report.hello().build_id() + ", " + report.hello().fingerprint());
    case pb::AttemptReport::kLaunched:
    case pb::AttemptReport::KIND_NOT_SET:
      return;
  }
}

// How little an end explains: 0 a cause of its own; 1 what follows from another rank's end (the
// launcher's SIGTERM, a lost peer) or was asked for; 2 none.
int weakness(const NodeEnd& end) {
  constexpr int kSigTerm = 15, kExitRetry = 75;
  if (end.result == "done") return 2;
  const bool follows = end.result == "killed" || end.result == "stopped" ||
                       end.report.signal() == kSigTerm || end.report.exit_code() == kExitRetry;
  return follows ? 1 : 0;
}

// Which end names the cause: the first that came of those that explain most.
const std::pair<const std::string, NodeEnd>* blamed_end(const AttemptLive& live) {
  const std::pair<const std::string, NodeEnd>* best = nullptr;
  for (const auto& end : live.ends) {
    const bool better =
        best == nullptr || weakness(end.second) < weakness(best->second) ||
        (weakness(end.second) == weakness(best->second) && end.second.order < best->second.order);
    if (better) best = &end;
  }
  return best;
}

struct Outcome {
  std::string result, reason, node;
  pb::AttemptEnded report;
};

// A gang that hangs falls silent everywhere, and the node that says so first knows its own ranks
// only. All wait for the one whose process is stopped, that has done the fewest steps, or whose
// last word is the oldest.
void blame_by_evidence(const AttemptLive& live, Outcome* outcome) {
  const auto place = [](const NodeEnd& end) {
    const pb::RankEvidence& rank = end.report.behind();
    return std::tuple(!rank.halted(), rank.step(), end.come_ms - rank.silent_ms());
  };
  const std::pair<const std::string, NodeEnd>* behind = nullptr;
  for (const auto& end : live.ends)
    if (end.second.report.has_behind() &&
        (behind == nullptr || place(end.second) < place(behind->second)))
      behind = &end;
  if (behind == nullptr || behind->first == outcome->node) return;
  const pb::RankEvidence& rank = behind->second.report.behind();
  outcome->node = behind->first;
  outcome->report.set_first_rank(static_cast<int32_t>(rank.rank()));
  outcome->report.set_phase(rank.phase());
  outcome->reason = "rank " + to_text(uint64_t{rank.rank()}) + ", in phase " + rank.phase() +
                    " after step " + to_text(uint64_t{rank.step()}) +
                    ", is the one furthest behind" +
                    (rank.halted() ? ": its process is stopped" : "");
}

// Rank 0 has told the result and its state is committed: nothing is left to be done, however the
// processes ended.
bool complete(const Job& job) {
  if (!job.result || job.result->epoch() != job.epoch) return false;
  return std::any_of(job.checkpoints.begin(), job.checkpoints.end(), [&job](const auto& entry) {
    return entry.first.first == job.result->step() && entry.second.state == "COMMITTED";
  });
}

Outcome outcome_of(const Job& job, const AttemptLive& live) {
  const auto& [node, end] = *blamed_end(live);
  Outcome outcome{
      .result = end.result, .reason = end.report.reason(), .node = node, .report = end.report};
  if (end.result == "hang") blame_by_evidence(live, &outcome);
  const bool told = job.result && job.result->epoch() == job.epoch;
  if (end.result == "done" && !told) {
    outcome.result = "user_error";
    outcome.reason = "the ranks ended in order, but rank 0 gave no result";
  }
  // Without its commit the final state is lost: the last steps are done again.
  if (end.result == "done" && told && job.spec.checkpoint().enable() && !complete(job)) {
    outcome.result = "user_error";
    outcome.reason = "the checkpoint of the final state, step " + to_text(job.result->step()) +
                     ", was not committed";
  }
  return outcome;
}

void record_finished(Context& ctx, const std::string& job, const Outcome& outcome,
                     const Verdict& verdict, uint64_t step) {
  pb::JobRecord r;
  pb::AttemptFinished& finished = *r.mutable_finished();
  finished.set_epoch(ctx.state.durable.jobs.at(job).epoch);
  finished.set_result(outcome.result);
  finished.set_first_rank(outcome.report.first_rank());
  finished.set_signal(outcome.report.signal());
  finished.set_exit_code(outcome.report.exit_code());
  finished.set_node(outcome.node);
  finished.set_reason(outcome.reason);
  finished.set_phase(outcome.report.phase());
  finished.set_step(step);
  finished.set_restarts_since_commit(verdict.restarts_since_commit);
  finished.set_no_progress(verdict.no_progress);
  finished.set_retry_delay_ms(verdict.delay_ms);
  record(ctx, job, std::move(r));
}

// Nodes that still run it are told at once; the heartbeats repeat it.
void tell_nodes(Context& ctx, const Job& job, const AttemptLive& live) {
  for (const std::string& node : nodes_of(job)) {
    const auto worker = ctx.state.vol.workers.find(node);
    if (worker == ctx.state.vol.workers.end()) continue;
    if (live.ends.contains(node)) {
      tell_ended(ctx, worker->second, job.name, job.epoch);
      continue;
    }
    pb::Envelope e;
    e.mutable_stop_attempt()->set_job(job.name);
    e.mutable_stop_attempt()->set_epoch(job.epoch);
    e.mutable_stop_attempt()->set_mode(pb::STOP_KILL);
    send_to(ctx, worker->second, std::move(e));
  }
}

void finish_attempt(Context& ctx, const std::string& name) {
  const AttemptLive live = std::move(ctx.state.vol.live.at(name));
  ctx.state.vol.live.erase(name);
  const Job& job = ctx.state.durable.jobs.at(name);
  const Outcome outcome = outcome_of(job, live);
  uint64_t step = live.step;
  for (const auto& [node, end] : live.ends) step = std::max(step, uint64_t{end.report.step()});
  const bool progressed = step > job.progress_step || job.progress_epoch == job.epoch;
  Verdict verdict = judge_end(job, outcome.result, outcome.reason, progressed);
  const bool success = (outcome.result == "done" || complete(job)) && !job.stop;
  if (success)
    verdict = {
        .job_end = "SUCCEEDED", .reason = "", .restarts_since_commit = job.restarts_since_commit};
  if (!verdict.job_end.empty()) verdict.delay_ms = 0;
  tell_nodes(ctx, job, live);
  record_finished(ctx, name, outcome, verdict, step);
  ctx.state.vol.blamed.erase(name);
  end_growth(ctx, job, live, outcome.result, progressed);
  if (!verdict.job_end.empty()) return finish_job(ctx, name, verdict.job_end, verdict.reason);
  if (outcome.result != "stopped") ctx.state.vol.blamed[name] = outcome.node;
  if (verdict.delay_ms > 0) ctx.state.vol.retry_at_ms[name] = ctx.now() + verdict.delay_ms;
}

// Placed nodes that are lost, left, or never took the attempt.
void check_node(Context& ctx, const Job& job, const std::string& node, bool* all_report) {
  const Volatile& vol = ctx.state.vol;
  const AttemptLive& live = vol.live.at(job.name);
  if (live.ends.contains(node)) return;
  const auto it = vol.workers.find(node);
  const bool absent = it == vol.workers.end();
  NodeEnd end;
  if (absent && may_return(ctx, node)) {
    *all_report = false;
    return;
  }
  if (absent || it->second.lost) {
    end.result = "node_lost";
    end.report.set_reason("worker " + node + (absent ? " did not come back" : " is lost"));
    return end_node(ctx, job.name, node, std::move(end));
  }
  if (reports(it->second, job.name, job.epoch) || live.launched) return;
  *all_report = false;
  if (ctx.now() - live.started_ms < ctx.config.launch_ms) return;
  end.result = "launch_failed";
  end.report.set_reason("worker " + node + " did not take the attempt within " +
                        duration_text(ctx.config.launch_ms));
  end_node(ctx, job.name, node, std::move(end));
}

}  // namespace

void on_reports(Context& ctx, Worker& worker, const pb::AttemptReports& reports) {
  uint64_t& seen = ctx.state.vol.reports_taken[worker.state_id];
  const auto durable = ctx.state.durable.reports_taken.find(worker.state_id);
  if (durable != ctx.state.durable.reports_taken.end()) seen = std::max(seen, durable->second);
  const uint64_t before = seen;
  const size_t records = ctx.out.records.size();
  const bool chained = reports.after() <= seen;
  for (const pb::AttemptReport& report : reports.reports()) {
    // DURABLE makes no record of its own: one that an earlier process took may be news to this one.
    if (report.index() <= seen && report.kind_case() != pb::AttemptReport::kDurable) continue;
    if (report.index() > seen && !chained) break;
    take_report(ctx, worker, report);
    seen = std::max(seen, uint64_t{report.index()});
  }
  if (ctx.out.records.size() > records && seen > before) {
    const ReportsTaken taken{.state_id = worker.state_id, .index = seen};
    remember_taken(ctx.state.durable, taken);
    ctx.out.taken.push_back(taken);
  }
  pb::Envelope e;
  e.mutable_reports_acknowledged()->set_index(seen);
  send_to(ctx, worker, std::move(e));
}

void end_node(Context& ctx, const std::string& job, const std::string& node, NodeEnd end) {
  AttemptLive* live = find_live(ctx.state, job);
  if (live == nullptr || live->ends.contains(node)) return;
  end.order = live->ends.size();
  end.come_ms = ctx.now();
  // Ranks that left in order left everywhere: their other nodes have all the time they need.
  const bool bad = end.result != "done" && end.result != "stopped";
  if (bad && live->bad_end_ms < 0) live->bad_end_ms = ctx.now();
  live->ends.emplace(node, std::move(end));
  settle_attempt(ctx, job);
}

void settle_attempt(Context& ctx, const std::string& name) {
  const Job* job = find_job(ctx.state, name);
  const AttemptLive* live = find_live(ctx.state, name);
  if (job == nullptr || live == nullptr) return;
  const std::set<std::string> nodes = nodes_of(*job);
  const bool all = std::all_of(nodes.begin(), nodes.end(), [live](const std::string& node) {
    return live->ends.contains(node);
  });
  // Who may still come back has time to tell its end.
  bool called = live->bad_end_ms >= 0 &&
                std::none_of(nodes.begin(), nodes.end(), [&](const std::string& node) {
                  return !live->ends.contains(node) && may_return(ctx, node);
                });
  if (called) {
    const NodeEnd& cause = blamed_end(*live)->second;
    const bool clear = weakness(cause) == 0 && cause.result != "hang";
    const int64_t call_ms = clear ? ctx.config.last_call_ms : ctx.config.weak_call_ms;
    called = ctx.now() - live->bad_end_ms >= call_ms;
  }
  if ((!all && !called) || commit_pending(*live)) return;
  finish_attempt(ctx, name);
}

void finish_job(Context& ctx, const std::string& job, std::string state, std::string reason) {
  pb::JobRecord r;
  r.mutable_job_finished()->set_state(std::move(state));
  r.mutable_job_finished()->set_reason(std::move(reason));
  record(ctx, job, std::move(r));
  Volatile& vol = ctx.state.vol;
  vol.retry_at_ms.erase(job);
  vol.waiting_since_ms.erase(job);
  vol.blamed.erase(job);
  vol.growths.erase(job);
}

void tick_attempts(Context& ctx) {
  std::vector<std::string> names;
  for (const auto& [name, live] : ctx.state.vol.live) names.push_back(name);
  for (const std::string& name : names) {
    const Job& job = ctx.state.durable.jobs.at(name);
    bool all_report = true;
    for (const std::string& node : nodes_of(job)) {
      if (!ctx.state.vol.live.contains(name)) break;
      check_node(ctx, job, node, &all_report);
    }
    AttemptLive* live = find_live(ctx.state, name);
    if (live == nullptr) continue;
    live->launched = live->launched || all_report;
    settle_attempt(ctx, name);
  }
}

void tell_ended(Context& ctx, const Worker& worker, const std::string& job, uint64_t epoch) {
  pb::Envelope e;
  pb::ReportsAcknowledged& acknowledged = *e.mutable_reports_acknowledged();
  const auto taken = ctx.state.vol.reports_taken.find(worker.state_id);
  if (taken != ctx.state.vol.reports_taken.end()) acknowledged.set_index(taken->second);
  pb::AttemptRef& ref = *acknowledged.add_ended();
  ref.set_job(job);
  ref.set_epoch(epoch);
  send_to(ctx, worker, std::move(e));
}

}  // namespace swax::coord
