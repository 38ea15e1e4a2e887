#include "worker/agent/agent.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "proto/base/clock.h"
#include "proto/base/failpoint.h"
#include "proto/base/log.h"
#include "proto/base/text.h"
#include "worker/agent/attempt_folder.h"
#include "worker/agent/backlog.h"
#include "worker/agent/coordinator_link.h"
#include "worker/agent/core/core.h"
#include "worker/agent/event_queue.h"
#include "worker/agent/outbox.h"
#include "worker/agent/rank_socket.h"

namespace swax {
namespace {

constexpr int64_t kTickMs = 100;
constexpr int64_t kSaveAgainMs = 500;
constexpr int64_t kSayMs = 10'000;      // between complaints of the same kind
constexpr int64_t kPatienceMs = 1'500;  // a connection takes a moment
constexpr int64_t kDrainMs = 1'000;     // for the last words
constexpr int kGoodbyeMs = 100;         // of the socket, which does not linger
constexpr size_t kNodeBytesMax = 32;

Status check_node(const std::string& node) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  const bool good = !node.empty() && node.size() <= kNodeBytesMax && plain(node[0]) &&
                    std::all_of(node.begin(), node.end(), [&plain](char c) {
                      return plain(c) || c == '.' || c == '_' || c == '-';
                    });
  if (good) return ok();
  return invalid_argument("--name " + printable(node) +
                          ": 1 to 32 of a-z, 0-9, '.', '_', '-', the first a letter or digit");
}

std::string host_name() {
  char host[256] = "";
  // The name only; nothing resolves it.
  if (::gethostname(host, sizeof host - 1) != 0) return "unknown";
  return printable(host, sizeof host);
}

uint64_t memory_bytes() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES), bytes = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(bytes) : 0;
}

// Blocked here and in every thread that starts later; the exec step of children restores them.
Fd hear_signals() {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) ::sigaddset(&wanted, signal);
  ::pthread_sigmask(SIG_BLOCK, &wanted, nullptr);
  return Fd(::signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
}

bool has_durable(const pb::Envelope& envelope) {
  const auto& reports = envelope.attempt_reports().reports();
  return std::any_of(reports.begin(), reports.end(),
                     [](const pb::AttemptReport& r) { return r.has_durable(); });
}

class AgentImpl final : public Agent {
 public:
  AgentImpl(AgentOptions options, Fd signals)
      : options_(std::move(options)), signals_(std::move(signals)) {}
  ~AgentImpl() override;
  Status start();
  int run() override;
  void stop(bool checkpoint) override {
    events_->push(agent::StopSignal{.checkpoint = checkpoint});
  }

 private:
  Status listen();
  Status read_state();
  void wait();
  void handle(agent::EventBody body);
  void note(const agent::EventBody& body);
  void note_welcome(const pb::Welcome& welcome);
  void hear();
  void complain();
  void work_off();
  bool save(const agent::SaveOutbox& command);
  void carry_out(agent::Command command) {
    std::visit([this](auto& c) { execute(c); }, command);
  }

  void execute(agent::Send& command);
  void execute(agent::Reconnect&) { link_->reconnect(); }
  void execute(agent::SaveOutbox&) {}  // save() did it
  void execute(agent::ReadNonce& command) { runner_->read_nonce(command); }
  void execute(agent::Prepare& command) { runner_->prepare(command.start, state_.store); }
  void execute(agent::Launch& command) { runner_->launch(command.start, state_.store); }
  void execute(agent::TellRank& command) { ranks_->tell(command); }
  void execute(agent::Kill& command) { runner_->kill(command.job, command.epoch); }
  void execute(agent::RunRemote& command) { runner_->run_remote(command, state_.store); }
  void execute(agent::ProxyDone& command) { ranks_->answer(command); }
  void execute(agent::Exit& command) { exit_ = command; }

  AgentOptions options_;
  const Fd signals_;
  SystemClock clock_;
  agent::Config config_;
  agent::State state_;
  std::string socket_folder_;
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<EventQueue> events_;
  std::unique_ptr<RankSocket> ranks_;
  std::unique_ptr<AttemptRunner> runner_;  // its threads use events_
  std::unique_ptr<CoordinatorLink> link_;
  std::deque<agent::Command> waiting_;  // in order, behind a batch that could not be written
  int64_t save_again_ms_ = 0;
  int64_t next_tick_ms_ = 0;
  int64_t said_ms_ = 0;
  std::string said_;
  bool was_registered_ = false;
  int64_t lost_ms_ = 0;  // since when the coordinator is away
  int stops_heard_ = 0;
  std::optional<agent::Exit> exit_;
};

AgentImpl::~AgentImpl() {
  ranks_.reset();
  if (outbox_ == nullptr || socket_folder_.empty()) return;
  const Status removed = remove_attempt_folder(join_path(outbox_->folder(), "agent"));
  if (!removed.ok())
    log_warn("agent", "socket folder is not removed", {{"reason", removed.message()}});
}

Status AgentImpl::listen() {
  SWAX_TRY(make_attempt_folder(join_path(outbox_->folder(), "agent")));
  SWAX_ASSIGN(ranks_, RankSocket::listen(join_path(socket_folder_, options_.node + ".sock")));
  return ok();
}

Status AgentImpl::read_state() {
  config_ = options_.timing;
  config_.node = options_.node;
  config_.state_id = outbox_->state_id();
  config_.incarnation = outbox_->incarnation();
  config_.build_id = options_.build_id;
  config_.host = host_name();
  config_.pid = static_cast<uint32_t>(::getpid());
  config_.memory_bytes = memory_bytes();
  return outbox_->load(&state_);
}

Status AgentImpl::start() {
  SWAX_TRY(check_node(options_.node));
  SWAX_ASSIGN(outbox_, Outbox::open(options_.state, options_.node));
  SWAX_TRY(read_state());
  SWAX_ASSIGN(events_, EventQueue::make());
  socket_folder_ = session_folder(join_path(outbox_->folder(), "agent"));
  runner_ = std::make_unique<AttemptRunner>(
      RunnerOptions{.node = options_.node,
                    .slots = config_.slots,
                    .state = outbox_->folder(),
                    .attempts_folder = outbox_->attempts_folder(),
                    .socket_folder = socket_folder_,
                    .mpirun = options_.mpirun,
                    .train_program = options_.train_program,
                    .swax_program = options_.swax_program,
                    .loopback = options_.coordinator.starts_with("tcp://127.") ||
                                options_.coordinator.starts_with("tcp://[::1]"),
                    .log_bytes_max = options_.log_bytes_max,
                    .prepare = options_.prepare},
      *events_);
  SWAX_TRY(runner_->sweep_leftovers());
  SWAX_TRY(listen());
  SWAX_ASSIGN(link_, CoordinatorLink::start(options_.coordinator, *events_));
  return ok();
}

int AgentImpl::run() {
  log_info("agent", "worker runs",
           {{"name", options_.node},
            {"slots", config_.slots},
            {"coordinator", options_.coordinator},
            {"incarnation", config_.incarnation}});
  lost_ms_ = clock_.monotonic_ms();
  handle(agent::Started{});
  while (!exit_) {
    link_->alive();
    wait();
    hear();
    for (agent::EventBody& event : ranks_->look(clock_.monotonic_ms())) handle(std::move(event));
    runner_->look(clock_.monotonic_ms());
    for (agent::EventBody& event : events_->take()) handle(std::move(event));
    if (clock_.monotonic_ms() >= next_tick_ms_) {
      handle(agent::Tick{});
      next_tick_ms_ = clock_.monotonic_ms() + kTickMs;
      complain();
    }
    work_off();
  }
  link_->drain(kDrainMs);
  ::poll(nullptr, 0, kGoodbyeMs);
  const auto text = printable(exit_->reason, 400);
  if (exit_->code == 0 || stops_heard_ > 0) {
    log_info("agent", "worker ends", {{"reason", text}});
  } else {
    log_error("agent", "the coordinator refuses this worker for good", {{"reason", text}});
  }
  return exit_->code;
}

void AgentImpl::wait() {
  std::vector<pollfd> fds;
  fds.push_back({.fd = events_->fd(), .events = POLLIN, .revents = 0});
  fds.push_back({.fd = signals_.get(), .events = POLLIN, .revents = 0});
  ranks_->add_poll(&fds);
  runner_->add_poll(&fds);
  const int64_t left_ms = std::clamp<int64_t>(next_tick_ms_ - clock_.monotonic_ms(), 0, kTickMs);
  ::poll(fds.data(), fds.size(), static_cast<int>(left_ms));
}

void AgentImpl::hear() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    log_info("agent", "signal", {{"signal", static_cast<int64_t>(info.ssi_signo)}});
    handle(agent::StopSignal{.checkpoint = stops_heard_ == 0});
  }
}

void AgentImpl::note_welcome(const pb::Welcome& welcome) {
  // The first HELLO has no nonce and is always refused.
  if (welcome.accepted() || (state_.store_nonce.empty() && !welcome.final())) return;
  const int64_t now_ms = clock_.monotonic_ms();
  if (said_ == welcome.refusal() && now_ms - said_ms_ < kSayMs) return;
  said_ = welcome.refusal();
  said_ms_ = now_ms;
  log_warn("agent", "the coordinator refuses this worker",
           {{"reason", printable(welcome.refusal(), 400)}});
}

void AgentImpl::note(const agent::EventBody& body) {
  if (const auto* e = std::get_if<agent::FromCoordinator>(&body)) {
    if (e->envelope.has_welcome()) note_welcome(e->envelope.welcome());
  } else if (const auto* said = std::get_if<agent::RankSaid>(&body)) {
    if (said->message.has_hello()) runner_->rank_came(*said);
  } else if (const auto* closed = std::get_if<agent::RankClosed>(&body)) {
    log_info("agent", "rank ended",
             {{"job", closed->job},
              {"epoch", closed->epoch},
              {"rank", closed->rank},
              {"exit_code", closed->exit_code},
              {"signal", closed->signal}});
    runner_->rank_closed(*closed, clock_.monotonic_ms());
  } else if (const auto* swept = std::get_if<agent::Swept>(&body)) {
    log_info("agent", "attempt swept", {{"job", swept->job}, {"epoch", swept->epoch}});
    runner_->forget(swept->job, swept->epoch);
  } else if (const auto* stop = std::get_if<agent::StopSignal>(&body)) {
    ++stops_heard_;
    log_info("agent",
             stop->checkpoint ? "stopping: the ranks write a checkpoint and leave" : "killing");
  } else if (const auto* prepared = std::get_if<agent::Prepared>(&body)) {
    if (!prepared->ok)
      log_warn("agent", "attempt cannot be prepared",
               {{"job", prepared->job}, {"reason", printable(prepared->error, 400)}});
  }
}

void AgentImpl::handle(agent::EventBody body) {
  note(body);
  const agent::Event event{
      .now_ms = clock_.monotonic_ms(), .wall_ms = clock_.wall_ms(), .body = std::move(body)};
  for (agent::Command& command : agent::step(state_, config_, event))
    waiting_.push_back(std::move(command));
  work_off();
}

// In order. While a batch cannot be written, what does not need it passes (backlog.h).
void AgentImpl::work_off() {
  while (!waiting_.empty()) {
    if (const auto* batch = std::get_if<agent::SaveOutbox>(&waiting_.front())) {
      if (!save(*batch)) break;
    }
    agent::Command command = std::move(waiting_.front());
    waiting_.pop_front();
    carry_out(std::move(command));
  }
  if (!waiting_.empty())
    shorten_backlog(&waiting_, [this](agent::Command c) { carry_out(std::move(c)); });
}

bool AgentImpl::save(const agent::SaveOutbox& command) {
  const int64_t now_ms = clock_.monotonic_ms();
  if (now_ms < save_again_ms_) return false;
  const Status status = outbox_->save(command);
  if (status.ok()) return true;
  save_again_ms_ = now_ms + kSaveAgainMs;
  log_error("agent", "state cannot be written, reports wait until it can",
            {{"reason", status.message()}});
  return false;
}

void AgentImpl::execute(agent::Send& command) {
  const bool durable = has_durable(command.envelope);
  link_->send(std::move(command.envelope));
  if (durable) SWAX_FAILPOINT("agent.durable_sent");
}

// What a person at the terminal wants to know.
void AgentImpl::complain() {
  const int64_t now_ms = clock_.monotonic_ms();
  if (state_.registered) {
    if (!was_registered_)
      log_info("agent", "registered",
               {{"coordinator", options_.coordinator}, {"store", state_.store}});
    was_registered_ = true;
    return;
  }
  if (was_registered_) lost_ms_ = now_ms;
  was_registered_ = false;
  const std::string trouble = link_->trouble();
  if (trouble.empty() || now_ms - lost_ms_ < kPatienceMs ||
      (said_ms_ != 0 && now_ms - said_ms_ < kSayMs))
    return;
  said_ms_ = now_ms;
  log_warn("agent", "the coordinator cannot be reached, trying again",
           {{"coordinator", options_.coordinator}, {"reason", trouble}});
}

}  // namespace

Result<std::unique_ptr<Agent>> Agent::open(AgentOptions options) {
  Fd signals;
  if (options.hear_signals) {
    signals = hear_signals();
    if (!signals.valid()) return resource_exhausted("signalfd: no descriptor is left");
  }
  auto agent = std::make_unique<AgentImpl>(std::move(options), std::move(signals));
  SWAX_TRY(agent->start());
  return std::unique_ptr<Agent>(std::move(agent));
}

}  // namespace swax
