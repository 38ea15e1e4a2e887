// `swax slurm worker`: the worker of one node of a Slurm job, one task a node. It differs from
// `swax worker` in where it takes its name and address from, in that only the first signal counts
// (Slurm sends several, and the second must not end a checkpoint), and in that it calls for help
// when the node of the coordinator is gone.
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <thread>

#include "ops/cli/client_session.h"
#include "ops/cli/output.h"
#include "ops/cli/slurm_command.h"
#include "ops/cli/slurm_queue.h"
#include "ops/cli/slurm_verbs.h"
#include "ops/cli/worker_options.h"
#include "proto/base/files.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "worker/agent/agent.h"

namespace swax {
namespace {

constexpr int kPollMs = 500;
constexpr int64_t kAskMs = 2'000;         // for an answer
constexpr int64_t kAskEveryMs = 5'000;    // to be sure that the coordinator is there
constexpr int64_t kSilentMs = 10'000;     // longer than a coordinator needs to start again
constexpr int64_t kHelpEveryMs = 30'000;  // controllers count the calls of a user
constexpr int64_t kScontrolMs = 30'000;
constexpr size_t kNameBytesMax = 32;

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

std::string worker_name() {
  std::string name = variable("SLURMD_NODENAME");
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return name + slurm_worker_mark();
}

Status check_place() {
  if (variable("SLURM_JOB_ID").empty() || variable("SLURMD_NODENAME").empty())
    return failed_precondition("is started by srun, in a batch script of ops/slurm");
  if (variable("SLURM_LOCALID") != "0")
    return failed_precondition("SLURM_LOCALID=" + printable(variable("SLURM_LOCALID")) +
                               ": a node has one worker, which starts its ranks itself; give srun "
                               "--ntasks-per-node=1");
  if (worker_name().size() > kNameBytesMax)
    return failed_precondition("worker name " + printable(worker_name()) + " is longer than 32");
  return ok();
}

// The coordinator is named, or runs where srun runs: Slurm tells that address.
std::string address_of(const Args& args) {
  if (args.has("--coordinator")) return args.text("--coordinator");
  if (!args.has("--port")) return variable("SWAX_COORDINATOR");
  return "tcp://" + variable("SLURM_LAUNCH_NODE_IPADDR") + ":" + args.text("--port");
}

std::string state_of(const Args& args) {
  if (args.has("--state")) return args.text("--state");
  const std::string base = variable("TMPDIR");
  return join_path(base.empty() ? "/tmp" : base, "swax-worker-" + worker_name());
}

class NodeWatch {
 public:
  NodeWatch(Agent& agent, std::string address, bool embedded)
      : agent_(agent), address_(std::move(address)), embedded_(embedded) {
    ::sigemptyset(&wanted_);
    for (const int signal : signals()) ::sigaddset(&wanted_, signal);
    fd_ = Fd(::signalfd(-1, &wanted_, SFD_NONBLOCK | SFD_CLOEXEC));
  }
  static std::array<int, 5> signals() { return {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}; }
  bool valid() const { return fd_.valid(); }
  void end() { ended_ = true; }

  void run() {
    SystemClock clock;
    int64_t ask_ms = clock.monotonic_ms() + kAskEveryMs;
    int64_t heard_ms = clock.monotonic_ms(), help_ms = 0;
    while (!ended_) {
      pollfd item{.fd = fd_.get(), .events = POLLIN, .revents = 0};
      ::poll(&item, 1, kPollMs);
      hear();
      if (left_ || !embedded_ || clock.monotonic_ms() < ask_ms) continue;
      ask_ms = clock.monotonic_ms() + kAskEveryMs;
      if (answers()) {
        heard_ms = clock.monotonic_ms();
      } else if (clock.monotonic_ms() - heard_ms >= kSilentMs && clock.monotonic_ms() >= help_ms) {
        call_for_help();
        help_ms = clock.monotonic_ms() + kHelpEveryMs;
      }
    }
  }

 private:
  void hear() {
    signalfd_siginfo info{};
    while (::read(fd_.get(), &info, sizeof info) == sizeof info) {
      log_info("slurm", left_ ? "signal, is leaving already" : "signal: save and leave",
               {{"signal", static_cast<int64_t>(info.ssi_signo)}});
      if (!left_) agent_.stop(true);
      left_ = true;
    }
  }

  bool answers() {
    Result<ClientSession> session = ClientSession::connect(address_);
    if (!session.ok()) return false;
    pb::Request request;
    request.mutable_service();
    const pb::Reply reply = session->ask(request, {.tries = 1, .total_ms = kAskMs});
    return reply.code() != kExitUnreachable;
  }

  // With --no-kill a job outlives the node of its batch script, and nobody is left to requeue it
  // but its workers. A node that is cut off itself is not heard by Slurm either: its ranks end.
  void call_for_help() {
    const std::string job = variable("SLURM_JOB_ID");
    const CommandResult host = run_command({"squeue", "-h", "-j", job, "-o", "%B"}, kScontrolMs);
    const std::string node = said(host);
    CommandResult state;
    if (host.ok()) state = run_command({"sinfo", "-h", "-N", "-n", node, "-o", "%T"}, kScontrolMs);
    if (!state.ok()) {
      log_error("slurm", "neither the coordinator nor Slurm can be reached: this node is cut off",
                {{"coordinator", address_}});
      left_ = true;
      agent_.stop(false);
      return;
    }
    const std::string word = said(state);
    const bool gone = word.starts_with("down") || word.find('*') != std::string::npos;
    log_warn("slurm", "the coordinator is silent",
             {{"address", address_}, {"node", node}, {"state", word}});
    if (!gone) return;
    const CommandResult requeued = run_command({"scontrol", "requeue", job}, kScontrolMs);
    log_warn("slurm", "its node is down: the job is requeued",
             {{"job", job}, {"said", said(requeued)}});
    if (requeued.ok()) leave_out(job, node);
  }

  // The next incarnation does without the node, should it come back meanwhile.
  static void leave_out(const std::string& job, const std::string& node) {
    const CommandResult shown = run_command({"scontrol", "-o", "show", "job", job}, kScontrolMs);
    std::string nodes = slurm_field(shown.out, "ExcNodeList");
    nodes += (nodes.empty() ? "" : ",") + node;
    run_command({"scontrol", "update", "JobId=" + job, "ExcNodeList=" + nodes}, kScontrolMs);
  }

  Agent& agent_;
  const std::string address_;
  const bool embedded_;  // it runs in this Slurm job
  sigset_t wanted_{};
  Fd fd_;
  bool left_ = false;
  std::atomic<bool> ended_ = false;
};

int fail_as(const Status& status, int code) {
  fail(status);
  return code;
}

int run_worker(const Args& args, const std::string& address, const std::string& state) {
  const int64_t slots = args.has("--slots") ? args.integer("--slots") : 1;
  Result<AgentOptions> options = worker_options({.node = worker_name(),
                                                 .state = state,
                                                 .coordinator = address,
                                                 .slots = static_cast<uint32_t>(slots)});
  if (!options.ok()) return fail_as(options.status(), kSlurmConfig);
  options->hear_signals = false;
  Result<std::unique_ptr<Agent>> agent = Agent::open(std::move(options).value());
  if (!agent.ok()) return fail_as(agent.status(), kSlurmConfig);
  NodeWatch watch(**agent, address, args.has("--port"));
  if (!watch.valid())
    return fail_as(resource_exhausted("signalfd: no descriptor is left"), kSlurmRetry);
  std::thread watching(&NodeWatch::run, &watch);
  const int code = (*agent)->run();
  watch.end();
  watching.join();
  return code;
}

}  // namespace

std::string slurm_worker_mark() {
  const std::string restart = variable("SLURM_RESTART_COUNT");
  const bool first = restart.empty() || restart == "0";
  return "-" + variable("SLURM_JOB_ID") + (first ? "" : "-" + restart);
}

int verb_slurm_worker(const Args& args) {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : NodeWatch::signals()) ::sigaddset(&wanted, signal);
  ::pthread_sigmask(SIG_BLOCK, &wanted, nullptr);  // before any thread: the watch takes them
  if (const Status s = check_place(); !s.ok()) return fail_as(s, kSlurmConfig);
  const std::string address = address_of(args);
  if (address.empty())
    return fail_as(invalid_argument("give --port or --coordinator"), kSlurmConfig);
  const std::string state = state_of(args);
  const int code = run_worker(args, address, state);
  // What it had to tell is told or nobody's any more: the next start of this node has another name.
  if (const Status s = remove_tree(state); !s.ok()) print_message(s.message());
  return code;
}

}  // namespace swax
