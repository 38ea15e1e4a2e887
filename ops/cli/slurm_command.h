// Runs a program of the system (sbatch, squeue, scontrol) and takes what it says.
// Threads: may be called from any thread; blocks it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace swax {

struct CommandResult {
  int exit_code = -1;      // 128 + n for a signal; 127: there is no such program
  bool timed_out = false;  // it was killed; what it began may have happened all the same
  std::string out, err;    // at most kCommandBytesMax each, the rest is dropped
  bool ok() const { return exit_code == 0 && !timed_out; }
};
constexpr size_t kCommandBytesMax = 64 * 1024 * 1024;

// words[0] is looked for in PATH; stdin is /dev/null.
CommandResult run_command(const std::vector<std::string>& words, int64_t timeout_ms);

// Its stderr, else its stdout, without spaces at the ends: what to show a person.
std::string said(const CommandResult& result);

}  // namespace swax
