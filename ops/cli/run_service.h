// The service inside `swax run`: a coordinator and one worker, of this process, that talk over
// loopback. What they say goes to the run's log file.
// Threads: one owner. The worker has a thread of its own, with which its ranks die; the process's
// signals must be blocked before start(), so that no thread of the service takes them.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "coordinator/server.h"
#include "ops/cli/state_dir.h"
#include "proto/base/status.h"
#include "worker/agent/agent.h"

namespace swax {

constexpr const char* kRunWorker = "local";  // the name of its worker

class RunService {
 public:
  // The coordinator, on a free port of 127.0.0.1. Fails as coord::Server::open.
  static Result<std::unique_ptr<RunService>> start(const StateDir& state);
  ~RunService();  // ends both; ranks that still run are killed
  const std::string& address() const { return server_->address(); }

  // Once. Returns when what an earlier run left is dead and swept. Fails as worker_options and
  // Agent::open.
  Status start_worker(uint32_t slots);
  // checkpoint: the ranks save and leave, then the worker ends; else they are killed.
  void stop_worker(bool checkpoint);
  bool worker_ended() const { return worker_ended_; }             // or has never been started
  const std::string& worker_trouble() const { return trouble_; }  // once it has ended; empty: none
  // The worker must have ended. False: the coordinator does not end (a stuck disk); the process
  // should leave by _exit. Nothing it acknowledged is lost.
  bool stop();

 private:
  explicit RunService(StateDir state) : state_(std::move(state)) {}
  void work(AgentOptions options, std::promise<Status> opened);

  const StateDir state_;
  std::unique_ptr<coord::Server> server_;
  std::unique_ptr<Agent> agent_;  // made, used and ended by worker_
  std::mutex mutex_;              // of agent_
  bool stop_asked_ = false;
  std::atomic<bool> worker_ended_ = true;
  std::string trouble_;
  std::thread worker_;
};

}  // namespace swax
