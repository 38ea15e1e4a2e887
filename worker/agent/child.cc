#include "worker/agent/child.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/base/clock.h"
#include "proto/base/log.h"

namespace swax {
namespace {

constexpr int64_t kSessionKillMs = 10'000;

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

struct ExecStep {
  char* const* arguments;
  char* const* environment;
  const char* working_folder;
  int output, input, error_pipe;
  pid_t parent;
};

// Runs in the forked child: async-signal-safe calls only, no allocation.
[[noreturn]] void exec_step(const ExecStep& step) {
  const auto leave = [&step] {
    const int error = errno;
    (void)!::write(step.error_pipe, &error, sizeof error);
    ::_exit(127);
  };
  for (int s = 1; s < NSIG; ++s) ::signal(s, SIG_DFL);
  sigset_t shielded;
  ::sigemptyset(&shielded);
  for (const int s : {SIGHUP, SIGINT, SIGUSR1, SIGUSR2, SIGTERM}) ::sigaddset(&shielded, s);
  ::sigprocmask(SIG_SETMASK, &shielded, nullptr);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) leave();
  if (::getppid() != step.parent) ::_exit(127);  // it died before the call above
  if (::setsid() < 0) leave();
  if (::dup2(step.input, 0) < 0 || ::dup2(step.output, 1) < 0 || ::dup2(step.output, 2) < 0)
    leave();
  if (::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) != 0) leave();
  if (::chdir(step.working_folder) != 0) leave();
  ::execve(step.arguments[0], step.arguments, step.environment);
  leave();
  ::_exit(127);
}

Status system_error(const std::string& what) {
  const bool no_room = errno == EAGAIN || errno == ENOMEM || errno == EMFILE || errno == ENOSPC;
  const std::string text = what + ": " + std::strerror(errno);
  return no_room ? resource_exhausted(text) : internal_error(text);
}

}  // namespace

Result<Child> Child::start(const LaunchSpec& spec) {
  const Fd input(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Fd output(
      ::open(spec.output_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!input.valid() || !output.valid()) return system_error("open " + spec.output_path);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_error("pipe");
  const Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  const std::vector<char*> arguments = pointers(spec.arguments);
  const std::vector<char*> environment = pointers(spec.environment);
  const ExecStep step{.arguments = arguments.data(),
                      .environment = environment.data(),
                      .working_folder = spec.working_folder.c_str(),
                      .output = output.get(),
                      .input = input.get(),
                      .error_pipe = write_end.get(),
                      .parent = ::getpid()};
  const pid_t pid = ::fork();
  if (pid < 0) return system_error("fork");
  if (pid == 0) exec_step(step);
  write_end.reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(read_end.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  const auto stat = read_process(pid);
  if (got != 0 || !stat) {
    ::kill(pid, SIGKILL);  // our own unreaped child: the pid is ours
    ::waitpid(pid, nullptr, 0);
    return invalid_argument(spec.arguments[0] + " in " + spec.working_folder + ": " +
                            std::strerror(error));
  }
  Fd process = open_process(stat->id);
  if (!process.valid()) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return system_error("pidfd of " + spec.arguments[0]);
  }
  return Child(stat->id, std::move(process));
}

Child::Child(Child&& other) noexcept
    : id_(other.id_),
      process_(std::move(other.process_)),
      reaped_(other.reaped_),
      status_(other.status_) {
  other.reaped_ = true;
}

Child::~Child() { end(); }

bool Child::ended() const { return reaped_ || process_ended(process_); }

int Child::end() {
  if (reaped_) return status_;
  const bool was_ended = ended();
  if (!was_ended) signal_process(process_, SIGKILL);
  if (!kill_session(id_.pid, kSessionKillMs))
    log_warn("agent", "processes of the session do not die", {{"session", id_.pid}});
  while (::waitpid(id_.pid, &status_, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  return status_;
}

bool kill_session(pid_t session, int64_t limit_ms) {
  SystemClock clock;
  const int64_t end_ms = clock.monotonic_ms() + limit_ms;
  for (;;) {
    bool left = false;
    for (const ProcessStat& p : list_processes()) {
      if (p.session != session || p.state == 'Z') continue;
      left = true;
      const Fd process = open_process(p.id);
      if (process.valid()) signal_process(process, SIGKILL);
    }
    if (!left) return true;
    if (clock.monotonic_ms() >= end_ms) return false;
    ::poll(nullptr, 0, 5);
  }
}

}  // namespace swax
