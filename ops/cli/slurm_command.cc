#include "ops/cli/slurm_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "proto/base/clock.h"
#include "proto/base/files.h"

namespace swax {
namespace {

constexpr int kNoProgram = 127;

struct Pipe {
  Fd read_end, write_end;
  Pipe() {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    read_end = Fd(ends[0]);
    write_end = Fd(ends[1]);
  }
};

// -1: it cannot be started.
pid_t spawn(const std::vector<std::string>& words, const Pipe& out, const Pipe& err) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, out.write_end.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, err.write_end.get(), STDERR_FILENO);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<std::string> copies = words;
  std::vector<char*> argv;
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, argv[0], &files, &attributes, argv.data(), ::environ);
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
  return error == 0 ? pid : -1;
}

// False: the pipe has ended.
bool take(Fd* fd, std::string* text) {
  char buffer[65536];
  const ssize_t got = ::read(fd->get(), buffer, sizeof buffer);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (got <= 0) return false;
  const size_t room = kCommandBytesMax - std::min(kCommandBytesMax, text->size());
  text->append(buffer, std::min(room, static_cast<size_t>(got)));
  return true;
}

// False: the time was over first.
bool read_all(Pipe* out, Pipe* err, int64_t timeout_ms, CommandResult* result) {
  SystemClock clock;
  const int64_t end_ms = clock.monotonic_ms() + timeout_ms;
  while (out->read_end.valid() || err->read_end.valid()) {
    const int64_t left_ms = end_ms - clock.monotonic_ms();
    if (left_ms <= 0) return false;
    pollfd fds[2] = {{.fd = out->read_end.get(), .events = POLLIN, .revents = 0},
                     {.fd = err->read_end.get(), .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, static_cast<int>(std::min<int64_t>(left_ms, 1000)));
    if (fds[0].revents != 0 && !take(&out->read_end, &result->out)) out->read_end.reset();
    if (fds[1].revents != 0 && !take(&err->read_end, &result->err)) err->read_end.reset();
  }
  return true;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& words, int64_t timeout_ms) {
  CommandResult result;
  Pipe out, err;
  const pid_t pid = spawn(words, out, err);
  if (pid < 0) {
    result.exit_code = kNoProgram;
    result.err = words.front() + " cannot be started: is Slurm installed here?";
    return result;
  }
  out.write_end.reset();
  err.write_end.reset();
  result.timed_out = !read_all(&out, &err, timeout_ms, &result);
  if (result.timed_out) ::kill(pid, SIGKILL);
  result.exit_code = wait_for(pid);
  return result;
}

std::string said(const CommandResult& result) {
  constexpr const char* kSpace = " \t\r\n";
  std::string text =
      result.err.find_first_not_of(kSpace) == std::string::npos ? result.out : result.err;
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace swax
