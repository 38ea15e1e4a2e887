// AttemptRunner: ranks that srun starts, as children of Slurm's daemon on each node.
#include <algorithm>

#include "proto/base/files.h"
#include "proto/base/log.h"
#include "worker/agent/attempt_files.h"
#include "worker/agent/attempt_runner.h"
#include "worker/agent/mpirun.h"
#include "worker/agent/srun.h"
#include "worker/agent/srun_rank.h"
#include "worker/agent/sweeper.h"

namespace swax {
namespace {

constexpr std::string_view kSrun = "srun";

}  // namespace

Status AttemptRunner::seat_ranks(const pb::StartAttempt& start, const std::string& store,
                                 Running* running) {
  const Key key{start.job(), start.epoch()};
  SWAX_TRY(make_session(key, store, running));
  return write_rank_seat(running->session, slurm_place(current_environment()).node,
                         {.worker = options_.node,
                          .state = options_.state,
                          .socket_folder = options_.socket_folder,
                          .ranks = running->ranks_here});
}

Status AttemptRunner::launch_srun(const pb::StartAttempt& start, const std::string& store,
                                  Running* running) {
  const Key key{start.job(), start.epoch()};
  const AttemptPaths paths(store, key.first, key.second);
  const std::vector<std::string> own = current_environment();
  const SlurmPlace place = slurm_place(own);
  const Result<std::string> srun = find_program(kSrun);
  if (!srun.ok()) return srun.status().with_context("resources.launcher=\"srun\"");
  SrunPlan plan;
  plan.srun = *srun;
  plan.job = place.job;
  SWAX_ASSIGN(plan.hosts, srun_hosts(start, options_.node, place));
  plan.session_folder = running->session;
  plan.share_cores = options_.slots >= std::thread::hardware_concurrency();
  plan.command = {options_.swax_program, "srun-rank", running->session};
  for (std::string& word : rank_command(key, paths, start.ranks_size()))
    plan.command.push_back(std::move(word));
  SWAX_TRY(write_atomic(srun_host_file(plan), srun_host_lines(plan)));
  return start_launcher({.arguments = srun_arguments(plan),
                         .environment = srun_environment(plan, environment(key), own),
                         .output_path = paths.srun_log,
                         .working_folder = paths.job_folder},
                        paths, running);
}

// No rank begins from here on but those that have taken the seat already.
void AttemptRunner::unseat_ranks(const Running& running) {
  if (running.session.empty() || running.srun_mark.empty()) return;
  const std::string host = slurm_place(current_environment()).node;
  if (const Status s = remove_rank_seat(running.session, host); !s.ok())
    log_warn("agent", "ranks may still begin", {{"reason", s.message()}});
}

// Those that are not ranks yet first: each becomes one, or is ended here.
Result<int> AttemptRunner::sweep_srun(const std::string& job, const std::string& srun_mark,
                                      int64_t patience_ms, int64_t limit_ms) const {
  const JobMark mark{.job = job, .state = options_.state};
  if (patience_ms > 0) wait_processes(mark, patience_ms);
  SWAX_TRY(sweep_processes({.job = job, .state = srun_mark}, limit_ms, 0).status());
  return sweep_processes(mark, limit_ms, 0);
}

void AttemptRunner::look_for_ranks(const Key& key, Running* running, int64_t now_ms) const {
  std::vector<ProcessStat> ranks;
  bool starting = false;
  for (ProcessStat& p : list_processes()) {
    if (p.state == 'Z' || (p.name != "swax-train" && p.name != "swax")) continue;
    const std::string environment = process_environment(p.id.pid).value_or("");
    if (environment_value(environment, "SWAX_JOB") != key.first) continue;
    const auto state = environment_value(environment, "SWAX_STATE");
    starting = starting || state == running->srun_mark;
    if (p.name == "swax-train" && state == options_.state) ranks.push_back(std::move(p));
  }
  running->launch.look(ranks, starting, now_ms);
}

}  // namespace swax
