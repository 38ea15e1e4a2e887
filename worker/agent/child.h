// A program in a session of its own that dies with the thread that started it. The exec step
// between fork and exec calls async-signal-safe functions only, so threads may exist. The session's
// processes are found by the session number; the child stays unreaped while they are killed, so the
// number cannot have been given to anyone else. HUP, INT, USR1, USR2 and TERM are blocked in the
// child: a cluster's manager signals every process of a job, and mpirun and its daemons would end
// the ranks (in which they unblock them) or fail, where the agent asks for a checkpoint. Threads:
// start() must be called from a thread that lives as long as the child should: the kernel sends
// SIGKILL to the child when that thread ends. Everything else: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/status.h"
#include "worker/agent/process.h"

namespace swax {

struct LaunchSpec {
  std::vector<std::string> arguments;    // the first is the program's path
  std::vector<std::string> environment;  // NAME=value
  std::string output_path;               // stdout and stderr, appended; created
  std::string working_folder;
};

class Child {
 public:
  // kInvalidArgument: the program cannot be executed; kResourceExhausted: no process left.
  static Result<Child> start(const LaunchSpec& spec);
  ~Child();  // end()
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const ProcessId& id() const { return id_; }
  const Fd& process() const { return process_; }  // for poll(2)
  bool ended() const;
  // Kills what is left of the session, then reaps. Returns the child's wait status. Idempotent.
  int end();

 private:
  Child(ProcessId id, Fd process) : id_(id), process_(std::move(process)) {}
  ProcessId id_;
  Fd process_;
  bool reaped_ = false;
  int status_ = 0;
};

// SIGKILL to every process of the session, until none is left or limit_ms is over. False: some are
// left. The leader may be a zombie.
bool kill_session(pid_t session, int64_t limit_ms);

}  // namespace swax
