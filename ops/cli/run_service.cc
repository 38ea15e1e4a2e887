#include "ops/cli/run_service.h"

#include <algorithm>

#include "ops/cli/worker_options.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kStopMs = 5'000;
constexpr int64_t kLeaveMs = 120'000;  // for the checkpoint of ranks that were asked to leave

// The worker lives and dies with the coordinator: its silence is a slow disk or a busy machine.
coord::Config local_timing() {
  coord::Config timing;
  timing.suspect_ms = 30'000;
  timing.lost_ms = 60'000;
  return timing;
}

}  // namespace

Result<std::unique_ptr<RunService>> RunService::start(const StateDir& state) {
  std::unique_ptr<RunService> service(new RunService(state));
  SWAX_ASSIGN(service->server_, coord::Server::open({.state = state.coordinator_folder(),
                                                     .listen = "tcp://127.0.0.1:0",
                                                     .store = state.store_folder(),
                                                     .timing = local_timing()}));
  return service;
}

RunService::~RunService() {
  stop_worker(false);
  if (worker_.joinable()) worker_.join();
}

Status RunService::start_worker(uint32_t slots) {
  SWAX_ASSIGN(AgentOptions options, worker_options({.node = kRunWorker,
                                                    .state = state_.worker_folder(),
                                                    .coordinator = server_->address(),
                                                    .slots = slots}));
  options.hear_signals = false;
  options.timing.stop_grace_ms = std::max(options.timing.stop_grace_ms, kLeaveMs);
  worker_ended_ = false;
  std::promise<Status> opened;
  std::future<Status> answer = opened.get_future();
  worker_ = std::thread(&RunService::work, this, std::move(options), std::move(opened));
  return answer.get();
}

void RunService::work(AgentOptions options, std::promise<Status> opened) {
  Result<std::unique_ptr<Agent>> agent = Agent::open(std::move(options));
  const Status status = agent.status();
  if (status.ok()) {
    const std::scoped_lock lock(mutex_);
    agent_ = std::move(agent).value();
  }
  opened.set_value(status);
  if (status.ok()) {
    const int code = agent_->run();
    const std::scoped_lock lock(mutex_);
    agent_.reset();
    if (code != 0 && !stop_asked_)
      trouble_ =
          "the worker ended with code " + to_text(code) + "; " + state_.log_path() + " tells why";
  }
  worker_ended_ = true;
}

void RunService::stop_worker(bool checkpoint) {
  const std::scoped_lock lock(mutex_);
  stop_asked_ = true;
  if (agent_) agent_->stop(checkpoint);
}

bool RunService::stop() {
  if (worker_.joinable()) worker_.join();
  return server_->stop(kStopMs);
}

}  // namespace swax
