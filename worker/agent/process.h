// Processes of this machine as /proc shows them. A process is its pid together with its start time:
// a pid alone is given to another process after a while, so nothing here kills by bare pid.
// Threads: pure functions on the system.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/files.h"

namespace swax {

struct ProcessId {
  pid_t pid = -1;
  uint64_t start_ticks = 0;  // since boot
  auto operator<=>(const ProcessId&) const = default;
};

struct ProcessStat {
  ProcessId id;
  pid_t parent = -1, session = -1;
  char state = '?';  // 'Z': ended, not yet reaped by its parent
  std::string name;  // at most 15 bytes
  bool kernel_thread = false;
  int wait_status = 0;  // as of wait(2); only of an ended process, and only where we may see it
};

std::optional<ProcessStat> read_process(pid_t pid);  // nothing: no such process
std::vector<ProcessStat> list_processes();
std::vector<ProcessStat> child_processes(pid_t parent);  // zombies too

// NAME=value strings, each with a NUL behind it, as they were when the program began. Empty when
// the process is ending and has given its memory back; nothing when it is gone or we may not look.
std::optional<std::string> process_environment(pid_t pid);
std::optional<std::string_view> environment_value(std::string_view environment,
                                                  std::string_view name);

// A descriptor that stands for exactly this process; poll(2) finds it readable once the process has
// ended with all its threads. Not valid when the process is gone.
Fd open_process(const ProcessId& id);
bool signal_process(const Fd& process, int signal);  // false: it is gone
bool process_ended(const Fd& process);

// How an ended process ended, as of wait(2), without being its parent. While it waits to be reaped
// /proc tells; afterwards the kernel does from 6.15 on. Nothing: unknown.
std::optional<int> ended_status(const Fd& process, const ProcessId& id);

}  // namespace swax
