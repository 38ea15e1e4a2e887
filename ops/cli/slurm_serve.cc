// `swax slurm serve`: the coordinator inside a self-contained Slurm job, and the one who decides
// how that job ends. It hands the training job over once its nodes are there, follows it, and
// leaves with what the batch script needs to know (slurm_verbs.h). STATE is a folder as `swax run`
// makes it, so every verb that reads one reads this one; a later Slurm job with the same STATE goes
// on.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>

#include "coordinator/server.h"
#include "jobs/spec.h"
#include "ops/cli/client_events.h"
#include "ops/cli/client_job.h"
#include "ops/cli/client_session.h"
#include "ops/cli/data_check.h"
#include "ops/cli/job_view.h"
#include "ops/cli/output.h"
#include "ops/cli/run_prepare.h"
#include "ops/cli/run_result.h"
#include "ops/cli/slurm_limit.h"
#include "ops/cli/slurm_verbs.h"
#include "ops/cli/spec_file.h"
#include "ops/cli/state_dir.h"
#include "proto/base/files.h"
#include "proto/base/log.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kPollMs = 200;
constexpr int64_t kAskMs = 2'000;
constexpr int64_t kStopMs = 5'000;
constexpr int64_t kLockMs = 60'000;     // an earlier incarnation may be dying still
constexpr int64_t kNodesMs = 60'000;    // for the workers of all nodes to come up
constexpr int64_t kStarvedMs = 15'000;  // the nodes that are left do not suffice: none comes back
constexpr int64_t kLeaveMs = 120'000;   // for the last checkpoint

// Nodes of an allocation do not come back, and there are no others: what is lost is soon given up,
// and fewer ranks begin at once, but not before all nodes have come up. An earlier incarnation's
// workers have other names. Before the time limit nothing begins that would not reach a checkpoint.
coord::Config allocation_timing(const StateDir& state, const pb::JobSpec& spec, bool first_start,
                                int64_t nodes) {
  const int64_t now_ms = SystemClock().monotonic_ms();
  coord::Config timing;
  const Result<RunView> view = load_run_view(state);
  if (view.ok()) timing.startup_ms = longest_startup_ms(view->events);
  timing.leave_at_ms =
      leave_at_ms(read_slurm_limit(), spec.resources().signal_seconds(), timing.startup_ms, now_ms);
  timing.lost_ms = 3'500;
  timing.shrink_after_ms = 1'500;
  timing.launch_ms = 60'000;
  if (!first_start) return timing;
  timing.reattach_ms = 1'000;
  timing.workers_expected = static_cast<uint64_t>(nodes);
  timing.expected_until_ms = now_ms + kNodesMs;
  return timing;
}

class Leave {  // the first signal: save and leave. There is no second one
 public:
  Leave() {
    sigset_t wanted;
    ::sigemptyset(&wanted);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2})
      ::sigaddset(&wanted, signal);
    ::pthread_sigmask(SIG_BLOCK, &wanted, nullptr);
    fd_ = Fd(::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
  }
  bool asked() {
    signalfd_siginfo info{};
    while (::read(fd_.get(), &info, sizeof info) == sizeof info) asked_ = true;
    return asked_;
  }
  void wait(int64_t ms) const {
    pollfd item{.fd = fd_.get(), .events = POLLIN, .revents = 0};
    ::poll(&item, 1, static_cast<int>(ms));
  }

 private:
  Fd fd_;
  bool asked_ = false;
};

int fail_as(const Status& status, int code) {
  fail(status);
  return code;
}

class SlurmJobRun {
 public:
  SlurmJobRun(const StateDir& state, pb::JobSpec spec, ClientSession& session, Leave& leave)
      : state_(state),
        spec_(std::move(spec)),
        session_(session),
        leave_(leave),
        view_(&session, {.terminal = false, .total_steps = spec_.training().steps()}) {}

  int go(int64_t nodes) {
    if (const int code = find(); code >= 0) return code;
    if (!known_) {
      wait_for_nodes(nodes);
      if (leave_.asked()) return kSlurmSaved;
      if (const int code = submit(); code >= 0) return code;
    }
    return follow();
  }

  // Nodes whose workers are lost, one a line: names of workers without what was appended.
  std::string lost_nodes() {
    pb::Request request;
    request.mutable_nodes();
    std::string lines;
    const pb::Reply reply = session_.ask(request, {.tries = 2, .total_ms = 2 * kAskMs});
    const std::string mark = slurm_worker_mark();
    for (const pb::NodeStatus& node : reply.nodes())
      if (node.state() == "LOST" && node.node().ends_with(mark))
        lines += node.node().substr(0, node.node().size() - mark.size()) + "\n";
    return lines;
  }

 private:
  // -1: go on. A job that stands in the records goes on with the free fields as they are now.
  int find() {
    const pb::Reply reply = session_.read(status_request(spec_.job().name()));
    if (reply.code() == kExitNotFound) return -1;
    if (reply.code() != 0) {
      fail_reply(reply);
      return kSlurmRetry;
    }
    const pb::JobStatus& job = reply.jobs(0);
    known_ = true;
    view_.pass_over(job.events());
    if (job.numeric_id() == numeric_id(spec_).hex() && ended_code(job) >= 0 &&
        job.state() != "CANCELLED")
      return ended_code(job);
    pb::Request request;
    request.mutable_resume()->set_job(job.job());
    *request.mutable_resume()->mutable_spec() = spec_;
    const pb::Reply resumed = session_.read(request);
    if (resumed.code() == 0) return -1;
    print_message(state_.root() + " holds another job; give the old spec, or another state folder");
    fail_reply(resumed);
    return kSlurmConfig;
  }

  // A gang that begins before its nodes are there would begin with fewer ranks.
  void wait_for_nodes(int64_t nodes) {
    SystemClock clock;
    const int64_t end_ms = clock.monotonic_ms() + kNodesMs;
    pb::Request request;
    request.mutable_nodes();
    while (clock.monotonic_ms() < end_ms && !leave_.asked()) {
      const pb::Reply reply = session_.ask(request, {.tries = 1, .total_ms = kAskMs});
      if (reply.nodes_size() >= nodes) return;
      leave_.wait(kPollMs);
    }
    print_message("not all of the " + to_text(nodes) + " nodes have come up; beginning without");
  }

  int submit() {
    if (const auto problem = start_problem(spec_, "there is no job in " + state_.root())) {
      print_message(problem->text());
      return kSlurmConfig;
    }
    pb::Request request;
    *request.mutable_submit()->mutable_spec() = spec_;
    const pb::Reply reply = session_.read(request);
    if (reply.code() == 0) return -1;
    fail_reply(reply);
    return reply.code() == kExitUsage || reply.code() == kExitConflict ? kSlurmConfig : kSlurmRetry;
  }

  static int ended_code(const pb::JobStatus& job) {
    const int code = exit_code_of_job(job);
    if (code <= 0) return code;
    const std::string why = job.reason() + " " + job.message();
    return why.find("config_error") != std::string::npos ? kSlurmConfig : kSlurmDecided;
  }

  // No attempt lives: what was saved is recorded.
  static bool rests(const pb::JobStatus& job) {
    return job.state() == "QUEUED" || job.state() == "BACKOFF";
  }

  int follow() {
    constexpr int64_t kNot = -1;
    SystemClock clock;
    int64_t starved_ms = kNot, leave_ms = kNot;  // since when
    for (;;) {
      leave_.wait(kPollMs);
      const int64_t now_ms = clock.monotonic_ms();
      if (leave_.asked() && leave_ms == kNot) leave_ms = now_ms;
      const pb::Reply reply =
          session_.ask(status_request(spec_.job().name()), {.tries = 1, .total_ms = kAskMs});
      if (reply.code() != 0 || reply.jobs_size() != 1) continue;  // a slow disk
      const pb::JobStatus& job = reply.jobs(0);
      view_.show(job);
      if (const int code = ended_code(job); code >= 0) return code;
      const bool waited = leave_ms != kNot && now_ms - leave_ms > kLeaveMs;
      if (leave_ms != kNot && (rests(job) || waited)) return kSlurmSaved;
      if (rests(job) && job.reason() == "WaitingForTime") {
        view_.say("the time limit is too near to begin again: " + one_line(job.message(), 300));
        return kSlurmSaved;
      }
      const bool starves = rests(job) && job.reason() == "WaitingForCapacity";
      if (!starves) starved_ms = kNot;
      if (starves && starved_ms == kNot) starved_ms = now_ms;
      if (starves && now_ms - starved_ms > kStarvedMs) {
        view_.say("the nodes that are left are too few: " + one_line(job.message(), 300));
        return kSlurmRetry;
      }
    }
  }

  const StateDir& state_;
  const pb::JobSpec spec_;
  ClientSession& session_;
  Leave& leave_;
  JobView view_;
  bool known_ = false;  // to the coordinator's records
};

Result<StateDir> make_state(const std::string& folder) {
  SWAX_TRY(make_dirs(folder));
  char here[4096];
  const bool is_absolute = folder.starts_with("/");
  if (!is_absolute && ::getcwd(here, sizeof here) == nullptr)
    return internal_error("the working folder is not known");
  return StateDir(is_absolute ? folder : join_path(here, folder));
}

// What this process holds while it works; the server goes first.
struct Served {
  Fd lock;  // of the state folder, as `swax run` takes it
  std::unique_ptr<coord::Server> server;
};

struct Address {
  std::string listen;
  bool insecure = false;  // one that others reach, without keys
};

Result<Served> try_serve(const Address& address, const StateDir& state,
                         const coord::Config& timing) {
  Served served;
  SWAX_ASSIGN(served.lock, lock_file(state.lock_path()));
  SWAX_ASSIGN(served.server, coord::Server::open({.state = state.coordinator_folder(),
                                                  .listen = address.listen,
                                                  .store = state.store_folder(),
                                                  .insecure = address.insecure,
                                                  .timing = timing}));
  return served;
}

Result<Served> serve(const Address& address, const StateDir& state, const coord::Config& timing,
                     Leave* leave) {
  SystemClock clock;
  const int64_t end_ms = clock.monotonic_ms() + kLockMs;
  for (;;) {
    Result<Served> served = try_serve(address, state, timing);
    const bool taken = !served.ok() && served.status().code() == Code::kFailedPrecondition;
    if (!taken || clock.monotonic_ms() >= end_ms || leave->asked()) return served;
    leave->wait(500);
  }
}

std::string port_of(const std::string& address) { return address.substr(address.rfind(':') + 1); }

Status prepare(const StateDir& state, pb::JobSpec* spec) {
  const Result<RunView> view = load_run_view(state);
  const pb::JobSpec* recorded = view.ok() ? &view->run.spec : nullptr;
  SWAX_TRY(prepare_data(state, recorded, spec, [](const std::string&, int64_t) {}));
  return write_atomic(state.spec_path(), spec->SerializeAsString());
}

void print_end(const StateDir& state, const std::string& output) {
  const Result<RunView> view = load_run_view(state);
  if (!view.ok()) return print_message(view.status().message());
  RunInfo run = view->run;
  if (exit_code_of_run(run) < 0) run.state = "STOPPED";
  complete_from_history(state, &run);
  print_run_result(state, run, output);
}

}  // namespace

int verb_slurm_serve(const Args& args) {
  Leave leave;  // before any thread
  const Result<std::vector<SpecOverride>> overrides = spec_overrides(args);
  if (!overrides.ok()) return fail_as(overrides.status(), kSlurmConfig);
  std::optional<pb::JobSpec> spec = load_spec_file(args.words().front(), *overrides);
  if (!spec) return kSlurmConfig;
  const Result<StateDir> state = make_state(args.text("--state"));
  if (!state.ok()) return fail_as(state.status(), kSlurmConfig);
  if (const Status s = prepare(*state, &*spec); !s.ok()) return fail_as(s, kSlurmConfig);
  const std::string& port_file = args.text("--port-file");
  const bool first_start = port_file.empty() || !path_exists(port_file);
  const Result<Served> served =
      serve({.listen = args.text("--listen"), .insecure = args.has("--insecure")}, *state,
            allocation_timing(*state, *spec, first_start, args.integer("--nodes")), &leave);
  if (!served.ok()) return fail_as(served.status(), kSlurmRetry);
  const std::string port = port_of(served->server->address());
  if (!port_file.empty()) {
    if (const Status s = write_atomic(port_file, port); !s.ok()) return fail_as(s, kSlurmConfig);
  }
  Result<ClientSession> session = ClientSession::connect("tcp://127.0.0.1:" + port);
  if (!session.ok()) return fail_as(session.status(), kExitInternal);
  SlurmJobRun run(*state, std::move(*spec), *session, leave);
  const int code = run.go(args.integer("--nodes"));
  const std::string lost = run.lost_nodes();
  if (!args.text("--lost-file").empty()) {
    if (const Status s = write_atomic(args.text("--lost-file"), lost); !s.ok())
      print_message(s.message());
  }
  if (!served->server->stop(kStopMs))
    print_message("the coordinator did not stop, its disk may be stuck");
  print_end(*state, args.text("--output"));
  return code;
}

}  // namespace swax
