#include "tests/sim/agent_host.h"

#include "tests/sim/cluster.h"
#include "tests/sim/coordinator_host.h"

namespace swax::sim {
namespace {

constexpr int64_t kAgentTickMs = 500;
constexpr double kReportsMatter = 0.2;

// What a process hears from others, not from itself.
bool is_message(const agent::EventBody& body) {
  return std::holds_alternative<agent::FromCoordinator>(body) ||
         std::holds_alternative<agent::RankSaid>(body);
}

// Beats tell nothing that has to be remembered.
bool tells(const pb::Envelope& envelope) {
  return envelope.has_attempt_reports() || envelope.has_hello();
}

}  // namespace

AgentHost::AgentHost(World& world, Network& network, Oracle& oracle, Cluster& cluster, int number,
                     uint32_t slots)
    : world_(world), network_(network), oracle_(oracle), cluster_(cluster), disk_(world) {
  config_.node = "node-" + std::to_string(number);
  config_.state_id = "state-" + std::to_string(number);
  config_.slots = slots;
  config_.launch_limit_ms = 30'000;
  config_.load_limit_ms = 60'000;
  config_.save_limit_ms = 60'000;
  config_.validate_limit_ms = 60'000;
  config_.leave_limit_ms = 20'000;
  config_.train_floor_ms = 10'000;
  config_.stop_grace_ms = 30'000;
  endpoint_ = network.add_endpoint(
      [this](const pb::Envelope& e) { handle(agent::FromCoordinator{.envelope = e}); });
}

void AgentHost::start() {
  alive_ = true;
  ++config_.incarnation;
  state_ = std::make_unique<agent::State>();
  disk_.load(state_.get());
  network_.reconnect(endpoint_);
  handle(agent::Started{});
  tick();
}

void AgentHost::crash(int64_t down_ms) {
  if (!alive_) return;
  disk_.crash();
  end(down_ms);
}

void AgentHost::end(int64_t down_ms) {
  alive_ = false;
  inbox_.clear();
  paused_until_ = 0;
  crash_at_.reset();
  // Not within what they do now.
  world_.after(0, [this] { cluster_.node_died(node()); });
  world_.after(down_ms, [this] { start(); });
}

// The process ends here when that point was chosen.
bool AgentHost::crashes(Fault point, bool matters) {
  if (!alive_ || !matters || crash_at_ != point || !world_.faults_on()) return false;
  world_.fired(point);
  crash(world_.between(500, world_.chance(0.3) ? 60'000 : 4000));
  return true;
}

void AgentHost::pause(int64_t for_ms) {
  if (!alive_ || world_.now() < paused_until_) return;
  paused_until_ = world_.now() + for_ms;
  later(for_ms, [this] {
    // The clock has moved on and nothing is read yet: that is not the ranks' silence.
    process_event(agent::Tick{});
    while (alive_ && !inbox_.empty()) {
      agent::EventBody body = std::move(inbox_.front());
      inbox_.pop_front();
      process_event(std::move(body));
    }
  });
}

void AgentHost::later(int64_t delay_ms, std::function<void()> run) {
  world_.after(delay_ms, [this, process = process(), run = std::move(run)] {
    if (alive_ && this->process() == process) run();
  });
}

void AgentHost::tick() {
  handle(agent::Tick{});
  if (alive_) later(kAgentTickMs, [this] { tick(); });
}

void AgentHost::handle(agent::EventBody body) {
  if (!alive_) return;
  if (world_.now() < paused_until_) {
    if (!std::holds_alternative<agent::Tick>(body)) inbox_.push_back(std::move(body));
    return;
  }
  process_event(std::move(body));
}

void AgentHost::process_event(agent::EventBody body) {
  if (crashes(Fault::kAgentCrashReceive, is_message(body))) return;
  if (world_.canary() == Canary::kOldEpochAccepted) state_->accepted.clear();
  const agent::Event event{
      .now_ms = world_.now(), .wall_ms = world_.wall(), .body = std::move(body)};
  std::vector<agent::Command> commands = agent::step(*state_, config_, event);
  for (agent::Command& command : commands) {
    if (!alive_) return;
    run(command);
  }
}

void AgentHost::run(agent::Command& command) {
  if (auto* send = std::get_if<agent::Send>(&command)) {
    run_send(*send);
  } else if (std::holds_alternative<agent::Reconnect>(command)) {
    network_.reconnect(endpoint_);
  } else if (const auto* outbox = std::get_if<agent::SaveOutbox>(&command)) {
    run_save(*outbox);
  } else if (std::holds_alternative<agent::ReadNonce>(command)) {
    later(5, [this] { handle(agent::NonceRead{.nonce = kNonce}); });
  } else if (const auto* prepare = std::get_if<agent::Prepare>(&command)) {
    oracle_.on_begin(node(), prepare->start);
    later(world_.between(20, 400), [this, job = prepare->start.job(),
                                    epoch = uint64_t{prepare->start.epoch()}] {
      handle(agent::Prepared{.job = job, .epoch = epoch, .ok = true, .retry = false, .error = {}});
    });
  } else if (const auto* launch = std::get_if<agent::Launch>(&command)) {
    cluster_.launch(*this, launch->start);
  } else if (const auto* tell = std::get_if<agent::TellRank>(&command)) {
    cluster_.tell(*this, *tell);
  } else if (const auto* kill = std::get_if<agent::Kill>(&command)) {
    cluster_.kill(*this, kill->job, kill->epoch);
    later(world_.between(10, world_.chance(0.1) ? 4000 : 300),
          [this, kill = *kill] { handle(agent::Swept{.job = kill.job, .epoch = kill.epoch}); });
  } else if (const auto* remote = std::get_if<agent::RunRemote>(&command)) {
    cluster_.run_remote(*this, remote->launch);
  } else if (const auto* exit = std::get_if<agent::Exit>(&command)) {
    leave(*exit);
  }
}

void AgentHost::run_send(agent::Send& send) {
  const bool told = tells(send.envelope);
  if (crashes(Fault::kAgentCrashSend, told)) return;
  network_.send_to_coordinator(endpoint_, std::move(send.envelope));
  crashes(Fault::kAgentCrashSent, told);
}

// Synced before what follows it, when it adds or accepts something.
void AgentHost::run_save(const agent::SaveOutbox& save) {
  const bool keeps = !save.add.empty() || !save.job.empty();
  disk_.write(save);
  if (!keeps) return;
  // Reports are many; an epoch is accepted once in an attempt.
  const bool matters = crash_at_ && (!save.job.empty() || world_.chance(kReportsMatter));
  if (crashes(Fault::kAgentCrashJournal, matters)) return;
  if (world_.canary() != Canary::kAgentNotSynced) disk_.sync();
  crashes(Fault::kAgentCrashSynced, matters);
}

void AgentHost::leave(const agent::Exit& exit) {
  if (world_.tracing()) world_.trace(node() + " leaves with " + std::to_string(exit.code));
  end(world_.between(2000, 20'000));
}

}  // namespace swax::sim
