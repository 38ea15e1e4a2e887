#include "ops/cli/doctor_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/base/clock.h"
#include "proto/base/files.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kOutputBytesMax = 65536;

Status errno_error(const char* call) {
  return internal_error(std::string(call) + ": " + std::strerror(errno));
}

// Reads to the end of the pipe; false: the time is over.
bool read_all(int fd, int64_t end_ms, std::string* text) {
  SystemClock clock;
  char buffer[4096];
  for (;;) {
    const int64_t left = end_ms - clock.monotonic_ms();
    if (left <= 0) return false;
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    const int count = ::poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
    if (count == 0 || (count < 0 && errno == EINTR)) continue;
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    const size_t room = kOutputBytesMax - text->size();
    text->append(buffer, std::min(static_cast<size_t>(got), room));
  }
}

}  // namespace

Result<std::string> program_output(const std::vector<std::string>& words, int64_t timeout_ms) {
  std::vector<std::string> copies = words;
  std::vector<char*> argv;
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe");
  Fd read_end(ends[0]), write_end(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return errno_error("fork");
  if (pid == 0) {
    ::dup2(write_end.get(), STDOUT_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  write_end.reset();
  std::string text;
  SystemClock clock;
  const bool ended = read_all(read_end.get(), clock.monotonic_ms() + timeout_ms, &text);
  if (!ended) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended) {
    return deadline_exceeded(words[0] + ": no end after " + duration_text(timeout_ms));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const std::string how = WIFEXITED(status) ? "exit code " + to_text(WEXITSTATUS(status))
                                              : "signal " + to_text(WTERMSIG(status));
    return failed_precondition(words[0] + ": " + how);
  }
  return text;
}

}  // namespace swax
