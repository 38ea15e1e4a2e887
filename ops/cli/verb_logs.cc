// `swax logs`: the coordinator says where a rank's log lies in the store; it is read from there, so
// that a reader that stops reading holds up nobody.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "ops/cli/client_events.h"
#include "ops/cli/client_follow.h"
#include "ops/cli/client_job.h"
#include "ops/cli/client_verbs.h"
#include "ops/cli/output.h"
#include "proto/base/files.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kFollowMs = 500;

// A log goes to a terminal without what would command the terminal.
void write_log(std::string text, bool terminal) {
  if (terminal) {
    for (char& c : text)
      if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') c = '?';
  }
  print(text);
}

class LogFile {
 public:
  explicit LogFile(std::string path) : path_(std::move(path)) {}

  // What has been written since. kNotFound: there is no such file yet.
  Status copy(bool terminal) {
    if (!fd_.valid()) fd_ = Fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd_.valid() && errno == ENOENT)
      return not_found("no log at " + one_line(path_, 1000) +
                       " yet; it lies in the store, which must be seen from this machine");
    if (!fd_.valid()) return failed_precondition(one_line(path_, 1000) + ": " + ::strerror(errno));
    char buffer[65536];
    while (std::ferror(stdout) == 0) {
      const size_t most = std::min<size_t>(sizeof buffer, pass_hole());
      const ssize_t got = ::pread(fd_.get(), buffer, most, at_);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return failed_precondition(one_line(path_, 1000) + ": " + ::strerror(errno));
      if (got == 0) break;
      at_ += got;
      write_log(std::string(buffer, static_cast<size_t>(got)), terminal);
    }
    std::fflush(stdout);
    return ok();
  }

 private:
  // The middle of a log that grew too long is a hole in its file. Moves at_ to the next data and
  // says what is missing; how many bytes follow before the next hole.
  size_t pass_hole() {
    struct stat info {};
    if (::fstat(fd_.get(), &info) == 0) at_ = std::min(at_, info.st_size);  // it was cut
    const off_t data = ::lseek(fd_.get(), at_, SEEK_DATA);
    if (data > at_) {
      print("\n[" + bytes_text(data - at_) +
            " of this log are missing here: more was printed than is kept]\n");
      at_ = data;
    }
    const off_t hole = ::lseek(fd_.get(), at_, SEEK_HOLE);
    return hole > at_ ? static_cast<size_t>(hole - at_) : SIZE_MAX;
  }

  std::string path_;
  Fd fd_;
  off_t at_ = 0;
};

struct Wanted {
  std::string job;
  uint64_t attempt = 0;  // 0: the newest
  uint32_t rank = 0;
};

pb::Reply ask_path(ClientSession* session, const Wanted& wanted) {
  pb::Request request;
  request.mutable_logs()->set_job(wanted.job);
  request.mutable_logs()->set_epoch(wanted.attempt);
  request.mutable_logs()->set_rank(wanted.rank);
  return session->read(request);
}

// Follows from attempt to attempt, or, when one is wanted, to its end.
int follow(ClientSession* session, const Wanted& wanted) {
  const bool terminal = is_terminal(STDOUT_FILENO);
  JobFollower follower(session, wanted.job, 0);
  std::optional<LogFile> log;
  uint64_t shown = 0;  // attempt
  const auto drain = [&] {
    if (!log) return ok();
    const Status status = log->copy(terminal);
    return status.code() == Code::kNotFound ? ok() : status;
  };
  while (const std::optional<pb::JobStatus> status = follower.next()) {
    if (const Status copied = drain(); !copied.ok()) return fail(copied);
    const uint64_t attempt = wanted.attempt > 0 ? wanted.attempt : status->epoch();
    if (attempt != shown && attempt <= status->epoch()) {
      const pb::Reply reply =
          ask_path(session, {.job = wanted.job, .attempt = attempt, .rank = wanted.rank});
      if (reply.code() != 0 && !may_pass(reply)) return fail_reply(reply);
      if (reply.code() == 0) {
        if (shown > 0) print_message("attempt " + to_text(attempt) + " of " + wanted.job);
        log.emplace(reply.path());
        shown = attempt;
        if (const Status copied = drain(); !copied.ok()) return fail(copied);
      }
    }
    if (std::ferror(stdout) != 0) return kExitOk;                       // nobody reads any more
    if (wanted.attempt > 0 && status->epoch() > wanted.attempt) break;  // it is over
    if (exit_code_of_job(*status) >= 0) break;
    follower.pause(kFollowMs);
  }
  if (const Status copied = drain(); !copied.ok()) return fail(copied);
  const int code = follower.exit_code();
  const bool problem = code == kExitNotFound || code == kExitConflict || code == kExitUnreachable ||
                       code == kExitInternal;
  return problem ? code : kExitOk;
}

}  // namespace

int verb_logs(const Args& args) {
  Result<ClientSession> session = connect_coordinator(args);
  if (!session.ok()) return fail(session.status());
  const Wanted wanted{.job = args.words().front(),
                      .attempt = static_cast<uint64_t>(args.integer("--attempt")),
                      .rank = static_cast<uint32_t>(args.integer("--rank"))};
  if (args.has("--follow")) return follow(&*session, wanted);
  const pb::Reply reply = ask_path(&*session, wanted);
  if (reply.code() != 0) return fail_reply(reply);
  if (args.text("--output") == "json") {
    print_line(Json::object()
                   .set("schema_version", kClientSchemaVersion)
                   .set("job", wanted.job)
                   .set("rank", wanted.rank)
                   .set("path", reply.path())
                   .text(false));
    return kExitOk;
  }
  const Status copied = LogFile(reply.path()).copy(is_terminal(STDOUT_FILENO));
  return copied.ok() ? kExitOk : fail(copied);
}

}  // namespace swax
