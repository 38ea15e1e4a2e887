#include "tests/sim/agent_host.h"

#include "tests/sim/cluster.h"
#include "tests/sim/coordinator_host.h"

namespace swax::sim {
namespace {

constexpr int64_t kAgentTickMs = 500;

}  // namespace

AgentHost::AgentHost(World& world, Network& network, Oracle& oracle, Cluster& cluster, int number,
                     uint32_t slots)
    : world_(world), network_(network), oracle_(oracle), cluster_(cluster) {
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
  state_->accepted = disk_.accepted;
  state_->outbox = disk_.outbox;
  state_->next_report = disk_.next_report;
  network_.reconnect(endpoint_);
  handle(agent::Started{});
  tick();
}

void AgentHost::crash(int64_t down_ms) {
  if (!alive_) return;
  alive_ = false;
  inbox_.clear();
  paused_until_ = 0;
  cluster_.node_died(node());
  world_.after(down_ms, [this] { start(); });
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
    network_.send_to_coordinator(endpoint_, std::move(send->envelope));
  } else if (std::holds_alternative<agent::Reconnect>(command)) {
    network_.reconnect(endpoint_);
  } else if (const auto* outbox = std::get_if<agent::SaveOutbox>(&command)) {
    save(*outbox);
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

void AgentHost::save(const agent::SaveOutbox& save) {
  for (const uint64_t index : save.drop) disk_.outbox.erase(index);
  disk_.outbox.erase(disk_.outbox.begin(), disk_.outbox.upper_bound(save.drop_through));
  for (const pb::AttemptReport& report : save.add) disk_.outbox[report.index()] = report;
  disk_.next_report = save.next_report;
  if (!save.job.empty()) disk_.accepted[save.job] = save.accepted_epoch;
}

void AgentHost::leave(const agent::Exit& exit) {
  if (world_.tracing()) world_.trace(node() + " leaves with " + std::to_string(exit.code));
  crash(world_.between(2000, 20'000));
}

}  // namespace swax::sim
