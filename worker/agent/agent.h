// The node agent (`swax worker`): one process a node that runs ranks for a coordinator. The core
// (worker/agent/core) decides; this owns sockets, processes, files and time:
//   main thread    ranks' socket, children, signals, disk; event -> step -> commands, in order
//   link thread    the channel to the coordinator
//   short threads  data sets, ends of attempts, the store
// Nothing is sent before what it tells is on disk. When the state cannot be written, heartbeats and
// HELLO go on and everything else waits. `kill -9` of the agent takes its ranks along.
// Threads: open(), run() and the end from one thread, which lives as long as its ranks should; when
// signals are heard, before other threads exist. stop() from any thread.
#pragma once

#include <memory>
#include <string>

#include "proto/base/status.h"
#include "worker/agent/attempt_runner.h"
#include "worker/agent/core/types.h"

namespace swax {

struct AgentOptions {
  agent::Config timing{};   // slots, times; the rest is filled in
  std::string node;         // [a-z0-9][a-z0-9._-]{0,31}
  std::string state;        // folder; made when missing
  std::string coordinator;  // tcp://ADDRESS:PORT
  std::string build_id;
  std::string mpirun, train_program, swax_program;  // paths
  int64_t log_bytes_max = kLogBytesMax;             // of one rank and attempt
  PrepareData prepare;
  bool hear_signals = true;  // false: the process has others who hear them; stop() ends run()
};

class Agent {
 public:
  // Blocks the signals that run() hears, takes the state, ends what an earlier agent left there.
  // kInvalidArgument: name or address; kFailedPrecondition: the state is in use or another
  // worker's.
  static Result<std::unique_ptr<Agent>> open(AgentOptions options);
  virtual ~Agent() = default;
  // Serves until a signal or the coordinator ends it; the exit code. SIGTERM, SIGINT, SIGHUP and
  // SIGUSR1: the ranks write a checkpoint and leave (99); once more: they are killed.
  virtual int run() = 0;
  // As the first signal (checkpoint) or a later one (not).
  virtual void stop(bool checkpoint) = 0;
};

}  // namespace swax
