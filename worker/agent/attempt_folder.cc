#include "worker/agent/attempt_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/base/files.h"
#include "proto/base/hash.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr size_t kFolderBytesMax = 60;  // leaves 47 of sun_path's 107 for what mpirun appends

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

}  // namespace swax
