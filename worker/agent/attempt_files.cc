#include "worker/agent/attempt_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>

#include "proto/base/files.h"
#include "proto/base/hash.h"
#include "proto/base/ids.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kNoteBytesMax = 4096;
constexpr size_t kTailBytes = 400;
constexpr uint64_t kLogsKept = 100;  // attempts of a job
constexpr std::string_view kFailurePrefix = "failure-rank-";
constexpr std::string_view kSessionPrefix = "/tmp/swax-";

// A line of a program of ours says why; mpirun writes a page of guesses behind it.
std::string_view own_line(std::string_view text) {
  for (const std::string_view line : split(text, '\n'))
    for (const std::string_view program :
         {"swax launch-proxy: ", "swax srun-rank: ", "swax-train: "})
      if (line.starts_with(program)) return line.substr(0, kTailBytes);
  return {};
}

bool is_folder_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.size() <= 64 &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

// Others may write to /tmp: only what is ours is used or removed.
Status check_ours(const std::string& folder) {
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) return ok();
  if (S_ISDIR(info.st_mode) && info.st_uid == ::geteuid()) return ok();
  return failed_precondition(folder + " belongs to somebody else");
}

Status remove_older(const std::string& attempts, uint64_t epoch) {
  if (!is_directory(attempts)) return ok();
  SWAX_ASSIGN(const std::vector<std::string> names, list_dir(attempts));
  for (const std::string& name : names) {
    uint64_t number = epoch;
    if (name.starts_with("a")) std::from_chars(name.data() + 1, name.data() + name.size(), number);
    if (number < epoch) SWAX_TRY(remove_tree(join_path(attempts, name)));
  }
  return ok();
}

}  // namespace

AttemptPaths::AttemptPaths(const std::string& store, const std::string& job, uint64_t epoch) {
  const std::string name = "a" + to_text(epoch);
  data = join_path(store, "data");
  job_folder = join_path(store, "jobs/" + job);
  attempt = join_path(job_folder, "attempts/" + name);
  spec = join_path(attempt, "spec.pb");
  checkpoints = join_path(job_folder, "ckpt");
  records = join_path(job_folder, "records");
  logs = join_path(job_folder, "logs");
  mpirun_log = join_path(logs, name + "/mpirun.log");
  srun_log = join_path(logs, name + "/srun.log");
}

Status make_attempt_folders(const std::string& store, const pb::StartAttempt& start) {
  if (!is_folder_name(start.job()))
    return invalid_argument("job " + printable(start.job()) + ": no name of a folder");
  const AttemptPaths paths(store, start.job(), start.epoch());
  for (const std::string& folder :
       {paths.attempt, paths.checkpoints, paths.records, parent_path(paths.mpirun_log)})
    SWAX_TRY(make_dirs(folder));
  return ok();
}

Status write_attempt_spec(const std::string& store, const pb::StartAttempt& start) {
  const AttemptPaths paths(store, start.job(), start.epoch());
  SWAX_TRY(remove_older(parent_path(paths.attempt), start.epoch()));
  if (start.epoch() > kLogsKept) SWAX_TRY(remove_older(paths.logs, start.epoch() - kLogsKept));
  return write_atomic(paths.spec, start.spec().SerializeAsString());
}

std::string gang_session_folder(const std::string& store, const std::string& job, uint64_t epoch) {
  const std::string what = store + "\n" + job + "\n" + to_text(epoch);
  return std::string(kSessionPrefix) + to_text(static_cast<uint64_t>(::geteuid())) + "-" +
         xxh3_128(what).hex().substr(0, 16);
}

Status make_session_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0) return ok();
  if (errno == EEXIST) return check_ours(folder);
  return internal_error("create " + folder + ": " + std::strerror(errno));
}

Status remove_session(const std::string& folder, const std::string& note) {
  if (folder.starts_with(kSessionPrefix)) {
    SWAX_TRY(check_ours(folder));
    SWAX_TRY(remove_tree(folder));
  }
  return remove_tree(note);
}

Status sweep_sessions(const std::string& notes) {
  SWAX_ASSIGN(const std::vector<std::string> names, list_dir(notes));
  for (const std::string& name : names) {
    const std::string note = join_path(notes, name);
    SWAX_ASSIGN(const std::string text, read_file(note, kNoteBytesMax));
    SWAX_TRY(remove_session(text.substr(0, text.find('\n')), note));
  }
  return ok();
}

Result<std::vector<MpirunHost>> gang_hosts(const pb::StartAttempt& start) {
  std::vector<std::string> nodes(static_cast<size_t>(start.ranks_size()));
  for (const pb::RankPlace& place : start.ranks()) {
    if (place.rank() >= nodes.size()) return invalid_argument("START names a rank too high");
    nodes[place.rank()] = place.node();
  }
  std::vector<MpirunHost> hosts;
  for (const std::string& node : nodes) {
    const std::string name = node == start.lead() ? "localhost" : node;
    if (!hosts.empty() && hosts.back().name == name) {
      ++hosts.back().slots;
      continue;
    }
    const bool again = std::any_of(hosts.begin(), hosts.end(),
                                   [&name](const MpirunHost& h) { return h.name == name; });
    if (again) return invalid_argument("the ranks of node " + node + " do not follow each other");
    hosts.push_back({.name = name, .slots = 1});
  }
  if (hosts.empty() || hosts.front().name != "localhost")
    return invalid_argument("rank 0 is not on the lead");
  return hosts;
}

std::string tail_of(const std::string& log) {
  constexpr off_t kReadBytes = 16 * 1024;
  const Fd fd(::open(log.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return "";
  const off_t size = ::lseek(fd.get(), 0, SEEK_END);
  char buffer[kReadBytes];
  const ssize_t got =
      ::pread(fd.get(), buffer, sizeof buffer, std::max<off_t>(0, size - kReadBytes));
  if (got <= 0) return "";
  const std::string_view text(buffer, static_cast<size_t>(got));
  const std::string_view own = own_line(text);
  return std::string(
      own.empty() ? text.substr(text.size() - std::min<size_t>(text.size(), kTailBytes)) : own);
}

std::vector<agent::RankFailure> read_failures(const std::string& attempt) {
  std::map<std::pair<int64_t, uint32_t>, agent::RankFailure> sorted;  // by time, then rank
  const Result<std::vector<std::string>> names = list_dir(attempt);
  if (!names.ok()) return {};
  for (const std::string& name : *names) {
    if (!name.starts_with(kFailurePrefix)) continue;
    agent::RankFailure failure;
    const auto end = std::from_chars(name.data() + kFailurePrefix.size(), name.data() + name.size(),
                                     failure.rank);
    struct stat info {};
    const std::string path = join_path(attempt, name);
    const Result<std::string> text = read_file(path, kNoteBytesMax);
    if (end.ec != std::errc{} || end.ptr != name.data() + name.size() || !text.ok() ||
        ::stat(path.c_str(), &info) != 0)
      continue;
    failure.text = printable(text->substr(0, text->find('\n')), kTailBytes);
    const int64_t ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    sorted[{ns, failure.rank}] = std::move(failure);
  }
  std::vector<agent::RankFailure> failures;
  for (auto& [key, failure] : sorted) failures.push_back(std::move(failure));
  return failures;
}

}  // namespace swax
