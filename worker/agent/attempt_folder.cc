#include "worker/agent/attempt_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "proto/base/files.h"
#include "proto/base/hash.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kFolderBytesMax = 60;  // leaves 47 of sun_path's 107 for what mpirun appends
constexpr int64_t kReasonBytesMax = 64 * 1024;
constexpr std::string_view kFailurePrefix = "failure-rank-";

bool is_outside(const std::string& folder) { return folder.size() > kFolderBytesMax; }

// /tmp is shared: a folder of that name that another user made is not ours to use or remove.
Status check_owner(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return ok();
  if (S_ISDIR(info.st_mode) && info.st_uid == ::geteuid()) return ok();
  return failed_precondition(path + " belongs to somebody else");
}

}  // namespace

std::string session_folder(const std::string& folder) {
  if (!is_outside(folder)) return join_path(folder, "mpi");
  return "/tmp/swax-" + to_text(static_cast<uint64_t>(::geteuid())) + "-" +
         xxh3_128(folder).hex().substr(0, 16);
}

Status make_attempt_folder(const std::string& folder) {
  SWAX_TRY(remove_attempt_folder(folder));
  SWAX_TRY(make_dirs(folder));
  const std::string session = session_folder(folder);
  if (::mkdir(session.c_str(), 0700) != 0)
    return internal_error("create " + session + ": " + std::strerror(errno));
  return ok();
}

Status remove_attempt_folder(const std::string& folder) {
  const std::string session = session_folder(folder);
  if (is_outside(folder)) {
    SWAX_TRY(check_owner(session));
    SWAX_TRY(remove_tree(session));
  }
  return remove_tree(folder);
}

Status sweep_attempt_folders(const std::string& attempts) {
  if (!is_directory(attempts)) return ok();
  SWAX_ASSIGN(const std::vector<std::string> names, list_dir(attempts));
  for (const std::string& name : names) SWAX_TRY(remove_attempt_folder(join_path(attempts, name)));
  return ok();
}

std::vector<RankFailure> read_failures(const std::string& folder) {
  struct Dated {
    int64_t written_ns = 0;
    RankFailure failure;
  };
  std::vector<Dated> dated;
  const Result<std::vector<std::string>> names = list_dir(folder);
  if (!names.ok()) return {};
  for (const std::string& name : *names) {
    if (!name.starts_with(kFailurePrefix)) continue;
    Dated d;
    const std::string_view number = std::string_view(name).substr(kFailurePrefix.size());
    const auto end = std::from_chars(number.data(), number.data() + number.size(), d.failure.rank);
    if (end.ec != std::errc{} || end.ptr != number.data() + number.size()) continue;
    const std::string path = join_path(folder, name);
    struct stat info {};
    const Result<std::string> text = read_file(path, kReasonBytesMax);
    if (!text.ok() || ::stat(path.c_str(), &info) != 0) continue;
    d.failure.reason = text->substr(0, text->find('\n'));
    d.written_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    dated.push_back(std::move(d));
  }
  std::stable_sort(dated.begin(), dated.end(),
                   [](const Dated& a, const Dated& b) { return a.written_ns < b.written_ns; });
  std::vector<RankFailure> failures;
  for (Dated& d : dated) failures.push_back(std::move(d.failure));
  return failures;
}

}  // namespace swax
