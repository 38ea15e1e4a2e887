#include "worker/agent/srun_rank.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "proto/base/clock.h"
#include "proto/base/files.h"
#include "proto/base/text.h"
#include "worker/agent/process.h"

namespace swax {
namespace {

constexpr int kRefused = 255;
constexpr int64_t kWaitMs = 120'000;  // as long as an agent waits for its ranks
constexpr int kLookMs = 20;
constexpr int64_t kSeatBytesMax = 16 * 1024;
constexpr std::string_view kAgent = "agent";

int fail_rank(const std::string& why) {
  std::fprintf(stderr, "swax srun-rank: %s\n", why.c_str());
  return kRefused;
}

std::string seat_path(const std::string& folder, const std::string& host) {
  return join_path(folder, "seat-" + host);
}

template <typename T>
bool parse(std::string_view text, T* value) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), *value);
  return end.ec == std::errc{} && end.ptr == text.data() + text.size();
}

// Others may write to /tmp: a folder that is not ours says nothing to us.
bool is_ours(const std::string& folder) {
  struct stat info {};
  return ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

Result<std::string> wait_for_seat(const std::string& folder, const std::string& host) {
  SystemClock clock;
  const std::string path = seat_path(folder, host);
  for (const int64_t end_ms = clock.monotonic_ms() + kWaitMs;;) {
    if (is_ours(folder)) {
      Result<std::string> text = read_file(path, kSeatBytesMax);
      if (text.ok() || text.status().code() != Code::kNotFound) return text;
    }
    if (clock.monotonic_ms() >= end_ms)
      return deadline_exceeded("the worker of node " + host + " expects no ranks: no " + path);
    ::poll(nullptr, 0, kLookMs);
  }
}

// Lines of NAME=value; the agent's process comes as agent=PID:START.
Status take_seat(const std::string& text) {
  for (const std::string_view line : split(text, '\n')) {
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(line.substr(0, equals)), value(line.substr(equals + 1));
    if (name != kAgent) {
      ::setenv(name.c_str(), value.c_str(), 1);
      continue;
    }
    ProcessId agent;
    const size_t colon = value.find(':');
    const std::string_view whole(value);
    if (colon == std::string::npos || !parse(whole.substr(0, colon), &agent.pid) ||
        !parse(whole.substr(colon + 1), &agent.start_ticks))
      return data_loss("agent=" + printable(value) + ": no process");
    Fd process = open_process(agent);
    if (!process.valid()) return unavailable("the worker has gone");
    if (::fcntl(process.get(), F_SETFD, 0) != 0)
      return internal_error(std::string("fcntl: ") + std::strerror(errno));
    ::setenv("SWAX_AGENT_FD", to_text(process.release()).c_str(), 1);
  }
  return ok();
}

}  // namespace

Status write_rank_seat(const std::string& folder, const std::string& host, const RankSeat& seat) {
  const auto self = read_process(::getpid());
  if (!self) return internal_error("/proc/self/stat cannot be read");
  return write_atomic(seat_path(folder, host),
                      "SWAX_WORKER=" + seat.worker + "\nSWAX_STATE=" + seat.state +
                          "\nSWAX_AGENT_DIR=" + seat.socket_folder + "\nSWAX_RANKS_HERE=" +
                          to_text(uint64_t{seat.ranks}) + "\n" + std::string(kAgent) + "=" +
                          to_text(self->id.pid) + ":" + to_text(self->id.start_ticks) + "\n");
}

Status remove_rank_seat(const std::string& folder, const std::string& host) {
  return remove_tree(seat_path(folder, host));
}

int run_srun_rank(const std::string& folder, const std::vector<std::string>& command) {
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) return kRefused;
  // Slurm signals every process of a job; the agent asks for a checkpoint. A rank hears USR1 and
  // TERM once it can save.
  for (const int signal : {SIGHUP, SIGINT, SIGUSR1, SIGUSR2, SIGTERM}) ::signal(signal, SIG_IGN);
  const char* host = std::getenv("SLURMD_NODENAME");
  if (host == nullptr || command.empty())
    return fail_rank("is started by srun below `swax worker`, not by hand");
  const Result<std::string> seat = wait_for_seat(folder, host);
  if (!seat.ok()) return fail_rank(seat.status().message());
  if (const Status s = take_seat(*seat); !s.ok()) return fail_rank(s.message());
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(words[0], words.data());
  return fail_rank(command[0] + ": " + std::strerror(errno));
}

}  // namespace swax
