#include "tests/ops/cli_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "proto/base/check.h"
#include "proto/base/clock.h"

namespace swax::test {
namespace {

struct Pipe {
  Pipe() { SWAX_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0); }
  std::array<int, 2> ends{};
};

[[noreturn]] void become_swax(const std::string& folder, const std::vector<std::string>& words,
                              int out, int err) {
  const int null = ::open("/dev/null", O_RDONLY);
  if (::chdir(folder.c_str()) != 0 || ::dup2(null, 0) < 0 || ::dup2(out, 1) < 0 ||
      ::dup2(err, 2) < 0)
    ::_exit(126);
  std::vector<std::string> all = {std::string(SWAX_BINARY_DIR) + "/bin/swax"};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

// Reads both pipes to their ends, or until the time is over.
bool drain(std::array<int, 2> fds, std::array<std::string*, 2> texts, int64_t limit_ms) {
  SystemClock clock;
  const int64_t end_ms = clock.monotonic_ms() + limit_ms;
  int open = 2;
  while (open > 0) {
    std::array<pollfd, 2> polls = {pollfd{fds[0], POLLIN, 0}, pollfd{fds[1], POLLIN, 0}};
    const int64_t left_ms = end_ms - clock.monotonic_ms();
    if (left_ms <= 0 || ::poll(polls.data(), 2, static_cast<int>(left_ms)) <= 0) return false;
    for (size_t i = 0; i < 2; ++i) {
      if (polls[i].revents == 0) continue;
      std::array<char, 65536> buffer;
      const ssize_t got = ::read(fds[i], buffer.data(), buffer.size());
      if (got > 0) {
        texts[i]->append(buffer.data(), static_cast<size_t>(got));
      } else {
        fds[i] = -1;  // poll leaves it out
        --open;
      }
    }
  }
  return true;
}

}  // namespace

Finished run_swax(const std::string& folder, const std::vector<std::string>& words, int limit_s) {
  const Pipe out, err;
  const pid_t pid = ::fork();
  SWAX_CHECK(pid >= 0);
  if (pid == 0) become_swax(folder, words, out.ends[1], err.ends[1]);
  ::close(out.ends[1]);
  ::close(err.ends[1]);
  Finished finished;
  if (!drain({out.ends[0], err.ends[0]}, {&finished.out, &finished.err}, limit_s * 1000))
    ::kill(pid, SIGKILL);
  int status = 0;
  SWAX_CHECK(::waitpid(pid, &status, 0) == pid);
  ::close(out.ends[0]);
  ::close(err.ends[0]);
  finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return finished;
}

int line_count(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

size_t longest_line(const std::string& text) {
  size_t longest = 0, begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  return longest;
}

std::vector<std::string> tree_of(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    names.push_back(std::filesystem::relative(entry.path(), folder).string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace swax::test
