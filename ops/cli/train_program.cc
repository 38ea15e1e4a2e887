#include "ops/cli/train_program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "proto/base/build_info.h"
#include "proto/base/files.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kVersionBytesMax = 4096;

Result<std::string> program_beside(const char* name) {
  std::string self(4096, '\0');
  const ssize_t bytes = ::readlink("/proc/self/exe", self.data(), self.size());
  if (bytes <= 0) return internal_error("/proc/self/exe: " + std::string(std::strerror(errno)));
  self.resize(static_cast<size_t>(bytes));
  const std::string path = join_path(parent_path(self), name);
  if (!path_exists(path)) return failed_precondition(path + " is missing: build it too");
  return path;
}

// First line that `program version` prints.
Result<std::string> version_line(const std::string& program) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return internal_error("pipe: " + std::string(std::strerror(errno)));
  Fd read_end(ends[0]), write_end(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return internal_error("fork: " + std::string(std::strerror(errno)));
  if (pid == 0) {
    ::dup2(write_end.get(), STDOUT_FILENO);
    ::execl(program.c_str(), program.c_str(), "version", static_cast<char*>(nullptr));
    ::_exit(127);
  }
  write_end.reset();
  std::string text;
  char buffer[512];
  for (;;) {
    const ssize_t got = ::read(read_end.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || text.size() > kVersionBytesMax) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  read_end.reset();
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return failed_precondition(program + " version: does not run");
  return text.substr(0, text.find('\n'));
}

// "swax-train 0.1.0 build 0123456789abcdef Release"
Status check_same_build(const std::string& program) {
  SWAX_ASSIGN(const std::string line, version_line(program));
  const std::vector<std::string_view> words = split(line, ' ');
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "build" && words[i + 1] == build_id()) return ok();
  }
  return failed_precondition(program + " is of another build (" + printable(line) +
                             "), this is build " + build_id() + ": build both");
}

}  // namespace

Result<std::string> train_program() {
  SWAX_ASSIGN(const std::string program, program_beside("swax-train"));
  SWAX_TRY(check_same_build(program));
  return program;
}

}  // namespace swax
