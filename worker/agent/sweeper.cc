#include "worker/agent/sweeper.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <map>
#include <set>

#include "proto/base/clock.h"
#include "proto/base/text.h"

namespace swax {
namespace {

bool has_mark(std::string_view environment, const JobMark& mark) {
  const auto job = environment_value(environment, "SWAX_JOB");
  return job && (mark.job.empty() || *job == mark.job) &&
         environment_value(environment, "SWAX_STATE") == mark.state;
}

std::set<pid_t> self_and_ancestors() {
  std::set<pid_t> family;
  pid_t pid = ::getpid();
  while (pid > 0 && family.insert(pid).second) {
    const auto stat = read_process(pid);
    if (!stat) break;
    pid = stat->parent;
  }
  return family;
}

// A process that is ending has given its environment back but may still hold files open.
bool ending_rank(const ProcessStat& p) {
  if (p.kernel_thread || p.state == 'Z') return false;
  return (p.name == "swax-train" || p.name == "mpirun") &&
         process_environment(p.id.pid) == std::string();
}

}  // namespace

std::vector<ProcessStat> marked_processes(const JobMark& mark) {
  const std::set<pid_t> family = self_and_ancestors();
  std::vector<ProcessStat> marked;
  for (ProcessStat& p : list_processes()) {
    if (p.state == 'Z' || p.kernel_thread || family.contains(p.id.pid)) continue;
    if (has_mark(process_environment(p.id.pid).value_or(""), mark)) marked.push_back(std::move(p));
  }
  return marked;
}

bool wait_processes(const JobMark& mark, int64_t limit_ms) {
  SystemClock clock;
  const int64_t end_ms = clock.monotonic_ms() + limit_ms;
  while (!marked_processes(mark).empty()) {
    if (clock.monotonic_ms() >= end_ms) return false;
    ::poll(nullptr, 0, 50);
  }
  return true;
}

Result<int> sweep_processes(const JobMark& mark, int64_t limit_ms, int64_t strangers_ms) {
  SystemClock clock;
  const int64_t begin_ms = clock.monotonic_ms();
  const int64_t end_ms = begin_ms + limit_ms, strangers_end_ms = begin_ms + strangers_ms;
  std::map<ProcessId, Fd> seen;  // descriptors show the real end, with every file closed
  for (;;) {
    std::string left;
    for (const ProcessStat& p : marked_processes(mark)) {
      Fd& process = seen[p.id];
      if (!process.valid()) process = open_process(p.id);
      if (process.valid()) signal_process(process, SIGKILL);
      left += " " + p.name + "(" + to_text(p.id.pid) + ")";
    }
    if (clock.monotonic_ms() < strangers_end_ms) {
      for (const ProcessStat& p : list_processes())
        if (ending_rank(p)) left += " " + p.name;
    }
    for (const auto& [id, process] : seen) {
      if (process.valid() && !process_ended(process)) left += " " + to_text(id.pid);
    }
    if (left.empty()) return static_cast<int>(seen.size());
    if (clock.monotonic_ms() >= end_ms)
      return deadline_exceeded("processes of " + mark.job + " in " + mark.state +
                               " do not die:" + left);
    ::poll(nullptr, 0, 10);
  }
}

}  // namespace swax
