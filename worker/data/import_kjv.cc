#include "worker/data/import_kjv.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <vector>

#include "proto/base/files.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int kSilenceMsMax = 60'000;  // the whole text takes 0.05 s
constexpr size_t kLineBytesMax = 64 * 1024;

Status no_bible() {
  return not_found(
      "program 'bible' not found: apt-get install --no-install-recommends "
      "bible-kjv bible-kjv-text");
}

std::string error_text(int error) { return std::generic_category().message(error); }

// A running `bible` and the read end of its output; killed and reaped by the destructor.
class BibleProcess {
 public:
  BibleProcess() = default;
  ~BibleProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  BibleProcess(const BibleProcess&) = delete;
  BibleProcess& operator=(const BibleProcess&) = delete;

  Status start() {
    std::array<int, 2> pipe_fds{};
    if (pipe2(pipe_fds.data(), O_CLOEXEC) != 0) {
      return resource_exhausted("pipe: " + error_text(errno));
    }
    output_ = Fd(pipe_fds[0]);
    const Fd write_end(pipe_fds[1]);
    const int error = spawn(write_end.get());
    if (error == 0) return ok();
    pid_ = 0;
    if (error == ENOENT) return no_bible();
    return internal_error("start 'bible': " + error_text(error));
  }

  // Fills `out` with what has come; an empty answer is the end of the output.
  Result<size_t> read(std::span<char> out) {
    pollfd ready{output_.get(), POLLIN, 0};
    int polled = 0;
    do {
      polled = poll(&ready, 1, kSilenceMsMax);
    } while (polled < 0 && errno == EINTR);
    if (polled == 0) return deadline_exceeded("'bible' printed nothing for 60 s");
    for (;;) {
      const ssize_t n = ::read(output_.get(), out.data(), out.size());
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) return internal_error("read from 'bible': " + error_text(errno));
    }
  }

  Status wait_success() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0) {
      if (errno != EINTR) return internal_error("wait for 'bible': " + error_text(errno));
    }
    pid_ = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ok();
    return data_loss("'bible' failed with wait status " + to_text(status) +
                     ": is bible-kjv-text installed?");
  }

 private:
  int spawn(int stdout_fd) {
    // -p: else a bible.data in the working folder would be taken. -f: one verse a line.
    std::array<std::string, 5> words = {"bible", "-p", "/usr/lib", "-f", "gen1:1-rev22:21"};
    std::array<char*, 6> argv{};
    std::transform(words.begin(), words.end(), argv.begin(),
                   [](std::string& w) { return w.data(); });
    std::string locale = "LC_ALL=C";
    std::array<char*, 2> environment = {locale.data(), nullptr};

    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, stdout_fd, 1);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    const int error =
        posix_spawnp(&pid_, "bible", &files, &attributes, argv.data(), environment.data());
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return error;
  }

  pid_t pid_ = 0;
  Fd output_;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Length of "1Sm12" in "1Sm12:3 text", 0 when the line does not begin so. `*text` gets the place of
// the verse's first letter.
size_t chapter_mark(std::string_view line, size_t* text) {
  size_t i = 0;
  const auto run = [&](auto kind) {
    const size_t begin = i;
    while (i < line.size() && kind(line[i])) ++i;
    return i - begin;
  };
  run(is_digit);
  if (run(is_letter) == 0 || run(is_digit) == 0) return 0;
  const size_t mark = i;
  if (i == line.size() || line[i++] != ':' || run(is_digit) == 0) return 0;
  if (i == line.size() || line[i++] != ' ') return 0;
  *text = i;
  return mark;
}

}  // namespace

Status KjvCutter::verse(std::string_view line) {
  ++lines_;
  size_t text = 0;
  const size_t mark = chapter_mark(line, &text);
  if (mark == 0) {
    return data_loss("'bible' line " + to_text(lines_) + " is no verse: " + printable(line, 40));
  }
  if (line.substr(0, mark) == chapter_) {
    SWAX_TRY(sink_.text("\n"));
  } else {
    if (chapters_ > 0) SWAX_TRY(sink_.end_document());
    ++chapters_;
    chapter_ = line.substr(0, mark);
  }
  return sink_.text(line.substr(text));
}

Status KjvCutter::feed(std::string_view text) {
  for (;;) {
    const size_t end = text.find('\n');
    line_ += text.substr(0, end);
    if (line_.size() > kLineBytesMax) return data_loss("'bible' printed a line without end");
    if (end == std::string_view::npos) return ok();
    SWAX_TRY(verse(line_));
    line_.clear();
    text.remove_prefix(end + 1);
  }
}

Status KjvCutter::finish() {
  if (!line_.empty()) return data_loss("'bible' output ends inside a verse");
  if (chapters_ != kKjvChapters) {
    return data_loss("'bible' printed " + to_text(chapters_) + " chapters: must be " +
                     to_text(kKjvChapters));
  }
  return sink_.end_document();
}

Status find_bible() {
  const char* path = std::getenv("PATH");
  for (const std::string_view folder : split(path != nullptr ? path : "/bin:/usr/bin", ':')) {
    const std::string program = join_path(folder.empty() ? "." : folder, "bible");
    if (!is_directory(program) && access(program.c_str(), X_OK) == 0) return ok();
  }
  return no_bible();
}

Status import_kjv(DocumentSink& sink, const std::function<void(int64_t bytes)>& after_piece) {
  BibleProcess bible;
  SWAX_TRY(bible.start());
  KjvCutter cutter(sink);
  std::vector<char> buffer(64 * 1024);
  int64_t bytes = 0;
  for (;;) {
    SWAX_ASSIGN(const size_t got, bible.read(buffer));
    if (got == 0) break;
    SWAX_TRY(cutter.feed({buffer.data(), got}));
    bytes += static_cast<int64_t>(got);
    after_piece(bytes);
  }
  SWAX_TRY(bible.wait_success());
  return cutter.finish();
}

}  // namespace swax
