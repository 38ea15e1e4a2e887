#include "worker/agent/attempt_runner.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "proto/base/failpoint.h"
#include "proto/base/files.h"
#include "proto/base/ids.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "worker/agent/attempt_files.h"
#include "worker/agent/mpirun.h"
#include "worker/agent/orted_command.h"
#include "worker/agent/srun.h"
#include "worker/agent/sweeper.h"

namespace swax {
namespace {

constexpr int64_t kSweepMs = 30'000;
constexpr int64_t kStrangersMs =
    10'000;                         // tens of gigabytes take a process some seconds to give back
constexpr int64_t kReapMs = 1'000;  // mpirun ends by itself after an orderly end
constexpr int64_t kReapGangMs = 10'000;  // ... when ranks of other nodes may still be leaving
constexpr int64_t kLogLookMs = 1'000;    // a log outgrows its limit by what is written meanwhile
constexpr int64_t kNonceBytesMax = 1024;
constexpr int kRefused = 255, kLeft = 99;

bool at_fault(const Status& status) {
  return status.code() == Code::kInvalidArgument || status.code() == Code::kNotFound ||
         status.code() == Code::kDataLoss || status.code() == Code::kFailedPrecondition;
}

// Whether two nodes of the gang or more are workers of one machine.
bool on_one_machine(const pb::StartAttempt& start) {
  std::map<std::string, std::string> node_of;  // by host
  return std::any_of(start.ranks().begin(), start.ranks().end(), [&](const pb::RankPlace& place) {
    return !place.host().empty() &&
           node_of.try_emplace(place.host(), place.node()).first->second != place.node();
  });
}

}  // namespace

AttemptRunner::AttemptRunner(RunnerOptions options, EventQueue& events)
    : options_(std::move(options)), events_(events) {}

AttemptRunner::~AttemptRunner() {
  for (Task& task : tasks_) task.thread.join();
}

void AttemptRunner::start_task(std::function<void()> work) {
  for (Task& task : tasks_)
    if (task.done->load()) task.thread.join();
  std::erase_if(tasks_, [](const Task& task) { return !task.thread.joinable(); });
  auto done = std::make_shared<std::atomic<bool>>(false);
  std::thread thread([work = std::move(work), done] {
    work();
    done->store(true);
  });
  tasks_.push_back({std::move(thread), std::move(done)});
}

std::string AttemptRunner::note_path(const Key& key) const {
  return join_path(options_.attempts_folder, key.first + ".a" + to_text(key.second));
}

Status AttemptRunner::sweep_leftovers() {
  SWAX_ASSIGN(const int killed,
              sweep_processes({.job = "", .state = options_.state}, kSweepMs, kStrangersMs));
  if (killed > 0) log_info("agent", "ended processes of an earlier start", {{"processes", killed}});
  return sweep_sessions(options_.attempts_folder);
}

void AttemptRunner::prepare(const pb::StartAttempt& start, const std::string& store) {
  const Key key{start.job(), start.epoch()};
  Running& running = running_[key];
  running.ranks_here = static_cast<size_t>(
      std::count_if(start.ranks().begin(), start.ranks().end(),
                    [this](const pb::RankPlace& p) { return p.node() == options_.node; }));
  running.alone = running.ranks_here == static_cast<size_t>(start.ranks_size());
  const AttemptPaths log_paths(store, key.first, key.second);
  for (const pb::RankPlace& place : start.ranks())
    if (place.node() == options_.node)
      running.logs[place.rank()] = join_path(parent_path(log_paths.mpirun_log),
                                             "rank-" + to_text(uint64_t{place.rank()}) + ".log");
  const bool by_srun = starts_by_srun(start);
  if (by_srun) running.srun_mark = gang_session_folder(store, key.first, key.second);
  if (start.lead() == options_.node)
    running.logs[-1] = by_srun ? log_paths.srun_log : log_paths.mpirun_log;
  start_task([this, key, start, store, by_srun] {
    agent::Prepared prepared;
    prepared.job = key.first;
    prepared.epoch = key.second;
    pb::StartAttempt resolved = start;
    Status status = ok();
    if (by_srun)
      status = srun_hosts(start, options_.node, slurm_place(current_environment())).status();
    if (status.ok()) status = make_attempt_folders(store, start);
    if (status.ok()) {
      Result<std::vector<std::string>> data =
          options_.prepare(resolved.mutable_spec(), AttemptPaths(store, key.first, key.second));
      status = data.status();
      const std::scoped_lock lock(data_mutex_);
      if (data.ok()) data_[key] = std::move(data).value();
    }
    if (status.ok() && start.lead() == options_.node) status = write_attempt_spec(store, resolved);
    if (!status.ok()) {
      prepared.ok = false;
      prepared.retry = !at_fault(status);
      prepared.error = status.message();
    }
    events_.push(std::move(prepared));
  });
}

void AttemptRunner::read_nonce(const agent::ReadNonce& command) {
  start_task([this, command] {
    const std::string path = join_path(command.store, command.file);
    const Result<std::string> nonce = read_file(path, kNonceBytesMax);
    if (!nonce.ok())
      log_warn("agent", "the coordinator's store is not seen from here",
               {{"path", printable(path, 400)}, {"reason", nonce.status().message()}});
    events_.push(agent::NonceRead{.nonce = nonce.ok() ? *nonce : ""});
  });
}

std::vector<std::string> AttemptRunner::environment(const Key& key) const {
  return rank_environment(current_environment(),
                          {"SWAX_JOB=" + key.first, "SWAX_STATE=" + options_.state,
                           "SWAX_EPOCH=" + to_text(key.second), "SWAX_WORKER=" + options_.node,
                           "SWAX_AGENT_DIR=" + options_.socket_folder, "OPENBLAS_NUM_THREADS=1"},
                          ::geteuid() == 0);
}

// The note comes first: what it names is swept by the next start of this agent.
Status AttemptRunner::make_session(const Key& key, const std::string& store,
                                   Running* running) const {
  if (!running->session.empty()) return ok();
  running->session = gang_session_folder(store, key.first, key.second);
  SWAX_TRY(write_atomic(note_path(key), running->session + "\n"));
  return make_session_folder(running->session);
}

std::vector<std::string> AttemptRunner::rank_command(const Key& key, const AttemptPaths& paths,
                                                     int ranks) {
  std::vector<std::string> command{options_.train_program,
                                   "train",
                                   "--spec",
                                   paths.spec,
                                   "--state",
                                   paths.job_folder,
                                   "--epoch",
                                   to_text(key.second),
                                   "--ranks",
                                   to_text(ranks),
                                   "--checkpoints",
                                   paths.checkpoints,
                                   "--records",
                                   paths.records,
                                   "--logs",
                                   paths.logs};
  const std::scoped_lock lock(data_mutex_);
  for (const std::string& folder : data_[key]) {
    command.push_back("--data");
    command.push_back(folder);
  }
  return command;
}

Status AttemptRunner::start_launcher(LaunchSpec launch, const AttemptPaths& paths,
                                     Running* running) {
  running->attempt_folder = paths.attempt;
  running->launcher_log = launch.output_path;
  SWAX_ASSIGN(Child child, Child::start(launch));
  running->launcher.emplace(std::move(child));
  return ok();
}

Status AttemptRunner::launch_mpirun(const pb::StartAttempt& start, const std::string& store,
                                    Running* running) {
  const Key key{start.job(), start.epoch()};
  SWAX_TRY(make_session(key, store, running));
  const AttemptPaths paths(store, key.first, key.second);
  MpirunPlan plan;
  plan.mpirun = options_.mpirun;
  plan.ranks = start.ranks_size();
  plan.session_folder = running->session;
  plan.root = ::geteuid() == 0;
  plan.share_cores = options_.slots >= std::thread::hardware_concurrency();
  if (!running->alone) {
    SWAX_ASSIGN(plan.hosts, gang_hosts(start));
    plan.launch_agent = options_.swax_program + " launch-proxy";
    plan.loopback = options_.loopback;
    plan.shared_host = options_.loopback || on_one_machine(start);
  }
  plan.program = rank_command(key, paths, plan.ranks);
  return start_launcher({.arguments = mpirun_arguments(plan),
                         .environment = environment(key),
                         .output_path = paths.mpirun_log,
                         .working_folder = paths.job_folder},
                        paths, running);
}

void AttemptRunner::launch(const pb::StartAttempt& start, const std::string& store) {
  const Key key{start.job(), start.epoch()};
  Running& running = running_[key];
  const bool lead = start.lead() == options_.node, by_srun = starts_by_srun(start);
  Status status = by_srun ? seat_ranks(start, store, &running) : ok();
  if (status.ok() && lead)
    status = by_srun ? launch_srun(start, store, &running) : launch_mpirun(start, store, &running);
  if (status.ok()) {
    log_info("agent", "launched", {{"job", key.first}, {"epoch", key.second}});
    SWAX_FAILPOINT("agent.launched");
    return;
  }
  events_.push(agent::LauncherExited{
      .job = key.first, .epoch = key.second, .exit_code = 1, .log_tail = status.message()});
}

void AttemptRunner::run_remote(const agent::RunRemote& command, const std::string& store) {
  const pb::LaunchRemote& launch = command.launch;
  const Key key{launch.job(), launch.epoch()};
  Running& running = running_[key];
  const auto start = [&]() -> Result<Child> {
    SWAX_ASSIGN(std::vector<std::string> words, orted_arguments(launch.command()));
    SWAX_ASSIGN(const std::string orted, find_program("orted"));
    SWAX_TRY(make_session(key, store, &running));
    const AttemptPaths paths(store, key.first, key.second);
    LaunchSpec spec;
    spec.arguments = std::move(words);
    spec.arguments.insert(spec.arguments.begin(), orted);
    spec.environment = environment(key);
    spec.output_path = join_path(parent_path(paths.mpirun_log), "orted-" + options_.node + ".log");
    spec.working_folder = paths.job_folder;
    return Child::start(spec);
  };
  Result<Child> child = start();
  if (child.ok()) {
    running.remotes.push_back({std::move(child).value(), command.lead, launch.proxy()});
    return;
  }
  events_.push(agent::RemoteEnded{.job = key.first,
                                  .epoch = key.second,
                                  .lead = command.lead,
                                  .proxy = launch.proxy(),
                                  .exit_code = kRefused,
                                  .reason = child.status().message()});
}

void AttemptRunner::kill(const std::string& job, uint64_t epoch) {
  const Key key{job, epoch};
  Running& running = running_[key];
  if (running.killed && !running.killed->load()) return;  // at work
  running.killed = std::make_shared<std::atomic<bool>>(false);
  auto children = std::make_shared<std::vector<Child>>();
  if (running.launcher) children->push_back(std::move(*running.launcher));
  running.launcher.reset();
  running.launch = LaunchWatch();
  unseat_ranks(running);
  for (Remote& remote : running.remotes) children->push_back(std::move(remote.child));
  running.remotes.clear();
  // mpirun ends its daemons itself once all ranks have left, and takes a lost one for a failure;
  // ranks of srun may still take their leave of those of other nodes.
  const bool all_left = running.ranks_closed == running.ranks_here && !running.disorder;
  const int64_t patience_ms = all_left && !running.alone ? kReapGangMs : 0;
  start_task([this, key, children, patience_ms, session = running.session,
              srun_mark = running.srun_mark, killed = running.killed,
              attempt = running.attempt_folder, logs = running.logs, ends = running.ends] {
    for (const std::shared_future<void>& end : ends) end.wait();
    for (Child& child : *children) {
      pollfd end{.fd = child.process().get(), .events = POLLIN, .revents = 0};
      if (patience_ms > 0) ::poll(&end, 1, static_cast<int>(patience_ms));
      child.end();
    }
    // The sessions' processes have ended, whether they still showed their mark or not.
    const JobMark mark{.job = key.first, .state = options_.state};
    const Result<int> swept = srun_mark.empty()
                                  ? sweep_processes(mark, kSweepMs, 0)
                                  : sweep_srun(key.first, srun_mark, patience_ms, kSweepMs);
    killed->store(true);
    if (!swept.ok())
      return log_warn("agent", "processes do not die", {{"reason", swept.status().message()}});
    for (const auto& [rank, path] : logs) shorten_log(key, rank, path);  // nobody writes any more
    agent::Swept done{.job = key.first, .epoch = key.second};
    if (!attempt.empty()) done.failures = read_failures(attempt);
    Status removed = remove_session(session, note_path(key));
    if (removed.ok() && !attempt.empty()) removed = remove_tree(attempt);
    if (!removed.ok())
      log_warn("agent", "attempt folder is not removed", {{"reason", removed.message()}});
    events_.push(std::move(done));
  });
}

void AttemptRunner::forget(const std::string& job, uint64_t epoch) {
  running_.erase({job, epoch});
  const std::scoped_lock lock(data_mutex_);
  data_.erase({job, epoch});
}

void AttemptRunner::rank_came(const agent::RankSaid& hello) {
  const auto it = running_.find({hello.job, hello.epoch});
  if (it == running_.end()) return;
  it->second.launch.came(hello.rank);
  it->second.ranks_came.insert(hello.rank);
}

void AttemptRunner::rank_closed(const agent::RankClosed& closed, int64_t now_ms) {
  const auto it = running_.find({closed.job, closed.epoch});
  if (it == running_.end()) return;
  Running& running = it->second;
  ++running.ranks_closed;
  const bool tidy = closed.signal == 0 && (closed.exit_code <= 0 || closed.exit_code == kLeft);
  running.disorder = running.disorder || !tidy;
  if (running.code == 0 && closed.exit_code > 0) running.code = closed.exit_code;
  if (running.launcher && running.ranks_closed == running.ranks_here)
    running.reap_ms = now_ms + (running.alone ? kReapMs : kReapGangMs);
}

void AttemptRunner::add_poll(std::vector<pollfd>* fds) const {
  for (const auto& [key, running] : running_) {
    if (running.launcher)
      fds->push_back({.fd = running.launcher->process().get(), .events = POLLIN, .revents = 0});
    for (const Remote& remote : running.remotes)
      fds->push_back({.fd = remote.child.process().get(), .events = POLLIN, .revents = 0});
    running.launch.add_poll(fds);
  }
}

void AttemptRunner::shorten_log(const Key& key, int64_t rank, const std::string& path) {
  const std::scoped_lock lock(logs_mutex_);  // what was dropped is told before the end is
  const Result<int64_t> dropped = limit_log(path, options_.log_bytes_max);
  if (!dropped.ok())
    log_warn("agent", "log is not kept short", {{"reason", dropped.status().message()}});
  if (!dropped.ok() || *dropped == 0) return;
  events_.push(
      agent::LogCut{.job = key.first, .epoch = key.second, .rank = rank, .dropped = *dropped});
}

// The store may be slow: one look at a time, beside the main loop.
void AttemptRunner::limit_logs(int64_t now_ms) {
  if (now_ms - logs_ms_ < kLogLookMs || (logs_done_ && !logs_done_->load())) return;
  logs_ms_ = now_ms;
  std::vector<std::tuple<Key, int64_t, std::string>> logs;
  for (const auto& [key, running] : running_)
    for (const auto& [rank, path] : running.logs) logs.emplace_back(key, rank, path);
  if (logs.empty()) return;
  logs_done_ = std::make_shared<std::atomic<bool>>(false);
  start_task([this, logs = std::move(logs), done = logs_done_] {
    for (const auto& [key, rank, path] : logs) shorten_log(key, rank, path);
    done->store(true);
  });
}

void AttemptRunner::look(int64_t now_ms) {
  limit_logs(now_ms);
  for (auto& [key, running] : running_) {
    watch_launch(key, &running, now_ms);
    end_remotes(key, &running);
    if (!running.launcher) continue;
    if (running.launcher->ended()) {
      end_launcher(key, &running, std::nullopt);
    } else if (running.reap_ms && now_ms >= *running.reap_ms) {
      end_launcher(key, &running, running.code << 8);  // as wait(2) would say it
    }
  }
}

}  // namespace swax
