#include "proto/base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <memory>
#include <system_error>

#include "proto/base/failpoint.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int kTreeDepthMax = 128;  // of remove_tree; one descriptor is open for each level

Code code_of(int error) {
  switch (error) {
    case ENOENT:
      return Code::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return Code::kAlreadyExists;
    case EINVAL:
    case EISDIR:
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return Code::kInvalidArgument;
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kFailedPrecondition;
    case EAGAIN:
    case EBUSY:
    case ETIMEDOUT:
    case ESTALE:
    case EPIPE:
      return Code::kUnavailable;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return Code::kResourceExhausted;
    case EIO:
      return Code::kDataLoss;
    default:
      return Code::kInternal;
  }
}

// "write DIR/name: No space left on device"
Status errno_status(const char* what, std::string_view path, int error = errno) {
  std::string message = what;
  message += ' ';
  message += printable(path, 512);
  message += ": ";
  message += std::generic_category().message(error);
  return {code_of(error), std::move(message)};
}

// Repeats a call that a signal interrupted. close is never repeated: the descriptor is gone.
template <typename Call>
auto retry(Call call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

Fd open_fd(const std::string& path, int flags, mode_t mode = 0) {
  return Fd(retry([&] { return open(path.c_str(), flags | O_CLOEXEC, mode); }));
}

Status write_all(int fd, std::string_view bytes, std::string_view path) {
  while (!bytes.empty()) {
    const ssize_t n = retry([&] { return write(fd, bytes.data(), bytes.size()); });
    if (n < 0) return errno_status("write", path);
    if (n == 0) return errno_status("write", path, ENOSPC);  // no progress and no reason given
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return ok();
}

// After a failed fsync the kernel has dropped the pages: a second fsync would wrongly succeed, so
// only an interruption is repeated.
Status sync_fd(int fd, std::string_view path) {
  if (retry([&] { return fsync(fd); }) != 0) return errno_status("fsync", path);
  return ok();
}

// A new file beside `path`. The name ends in .tmp so that sweeps know what a crash left behind;
// O_EXCL because two hosts of one store may have the same process id.
Result<Fd> create_beside(const std::string& path, std::string& tmp) {
  static std::atomic<uint64_t> next{0};
  for (int attempt = 0; attempt < 100; ++attempt) {
    const uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
    tmp = path + "." + to_text(int64_t{getpid()}) + "." + to_text(number) + ".tmp";
    Fd fd = open_fd(tmp, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (fd.valid()) return fd;
    if (errno != EEXIST) return errno_status("create", tmp);
  }
  return errno_status("create", tmp, EEXIST);
}

Status fill_and_rename(Fd fd, const std::string& tmp, const std::string& path,
                       std::string_view bytes) {
  SWAX_TRY(write_all(fd.get(), bytes, tmp));
  SWAX_TRY(sync_fd(fd.get(), tmp));
  if (close(fd.release()) != 0) return errno_status("close", tmp);
  SWAX_FAILPOINT("files.before_rename");
  if (rename(tmp.c_str(), path.c_str()) != 0) return errno_status("rename", path);
  SWAX_FAILPOINT("files.before_dir_sync");
  return ok();
}

std::string without_end_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

using Dir = std::unique_ptr<DIR, decltype([](DIR* dir) { closedir(dir); })>;

// Next name without . and ..; empty at the end, errno 0 unless the read failed.
std::string next_name(DIR* dir) {
  for (;;) {
    errno = 0;
    const dirent* const entry = readdir(dir);
    if (entry == nullptr) return {};
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") return std::string(name);
  }
}

// Removes `name` in the open directory `at`. Symbolic links are removed, never followed: a
// directory is only entered with O_NOFOLLOW, whatever stood there a moment ago.
Status remove_at(int at, const std::string& name, const std::string& path, int depth) {
  if (unlinkat(at, name.c_str(), 0) == 0 || errno == ENOENT) return ok();
  if (errno != EISDIR) return errno_status("unlink", path);  // what Linux answers for a directory
  if (depth >= kTreeDepthMax) return errno_status("remove", path, ELOOP);
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  Fd fd(retry([&] { return openat(at, name.c_str(), kFlags); }));
  if (!fd.valid()) return errno == ENOENT ? ok() : errno_status("open directory", path);
  Dir dir(fdopendir(fd.get()));
  if (dir == nullptr) return errno_status("open directory", path);
  const int dir_fd = fd.release();  // now owned by dir
  for (std::string child = next_name(dir.get()); !child.empty(); child = next_name(dir.get())) {
    SWAX_TRY(remove_at(dir_fd, child, join_path(path, child), depth + 1));
  }
  if (errno != 0) return errno_status("read directory", path);
  if (unlinkat(at, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return ok();
  return errno_status("remove directory", path);
}

}  // namespace

Result<std::string> read_file(const std::string& path, int64_t bytes_max) {
  SWAX_CHECK(bytes_max >= 0);
  const Fd fd = open_fd(path, O_RDONLY);
  if (!fd.valid()) return errno_status("open", path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return errno_status("stat", path);
  if (S_ISDIR(info.st_mode)) return errno_status("read", path, EISDIR);
  // The size is only a first guess: /proc files say 0 and a file may grow while it is read. The
  // string is one byte longer than what is there, so that the last read finds the end.
  const size_t limit = static_cast<size_t>(bytes_max);
  std::string bytes(static_cast<size_t>(std::clamp<int64_t>(info.st_size, 0, bytes_max)) + 1, '\0');
  size_t filled = 0;
  for (;;) {
    const size_t room = bytes.size() - filled;
    const ssize_t n = retry([&] { return read(fd.get(), bytes.data() + filled, room); });
    if (n < 0) return errno_status("read", path);
    if (n == 0) break;
    filled += static_cast<size_t>(n);
    if (filled > limit) {
      return resource_exhausted("read " + printable(path, 512) + ": larger than " +
                                to_text(bytes_max) + " bytes");
    }
    if (filled == bytes.size()) bytes.resize(filled + std::min(filled + 4096, limit - filled + 1));
  }
  bytes.resize(filled);
  return bytes;
}

Status write_atomic(const std::string& path, std::string_view bytes) {
  std::string tmp;
  SWAX_ASSIGN(Fd fd, create_beside(path, tmp));
  const Status status = fill_and_rename(std::move(fd), tmp, path, bytes);
  if (!status.ok()) {
    unlink(tmp.c_str());
    return status;
  }
  return sync_dir(parent_path(path));
}

Status append_line(int fd, std::string_view line) {
  if (line.find('\n') != std::string_view::npos) {
    return invalid_argument("append_line: the line holds a line feed: " + printable(line));
  }
  std::string bytes(line);
  bytes += '\n';
  // One call writes it whole unless the disk is full or the descriptor is a slow pipe; then the
  // next call gives the reason or the rest of the line.
  return write_all(fd, bytes, "line to fd " + to_text(fd));
}

Status make_dirs(const std::string& path) {
  const std::string dir = without_end_slashes(path);
  if (dir.empty()) return invalid_argument("make_dirs: empty path");
  if (dir.size() >= PATH_MAX) return errno_status("mkdir", dir, ENAMETOOLONG);  // bounds the depth
  if (is_directory(dir)) return ok();
  const std::string parent = parent_path(dir);
  if (parent == dir || dir == ".." || dir == ".") return errno_status("mkdir", dir, ENOENT);
  SWAX_TRY(make_dirs(parent));
  if (mkdir(dir.c_str(), 0755) != 0) {
    if (errno != EEXIST) return errno_status("mkdir", dir);
    if (!is_directory(dir)) return errno_status("mkdir", dir, EEXIST);
  }
  return sync_dir(parent);  // also when another process made it: it may not have synced yet
}

Status remove_tree(const std::string& path) {
  const std::string tree = without_end_slashes(path);
  if (tree.empty() || tree == "/") {
    return invalid_argument("remove_tree: \"" + tree + "\": must name a file or folder");
  }
  return remove_at(AT_FDCWD, tree, tree, 0);
}

Status sync_dir(const std::string& path) {
  const Fd fd = open_fd(path, O_RDONLY | O_DIRECTORY);
  if (!fd.valid()) return errno_status("open directory", path);
  return sync_fd(fd.get(), path);
}

Status sync_file(const std::string& path) {
  const Fd fd = open_fd(path, O_RDONLY);
  if (!fd.valid()) return errno_status("open", path);
  return sync_fd(fd.get(), path);
}

bool path_exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

bool is_directory(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

Result<int64_t> file_bytes(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return errno_status("stat", path);
  return int64_t{info.st_size};
}

Result<std::vector<std::string>> list_dir(const std::string& path) {
  const Dir dir(opendir(path.c_str()));
  if (dir == nullptr) return errno_status("open directory", path);
  std::vector<std::string> names;
  for (std::string name = next_name(dir.get()); !name.empty(); name = next_name(dir.get())) {
    names.push_back(std::move(name));
  }
  if (errno != 0) return errno_status("read directory", path);
  std::sort(names.begin(), names.end());
  return names;
}

Result<int64_t> free_bytes(const std::string& path) {
  struct statvfs info {};
  if (retry([&] { return statvfs(path.c_str(), &info); }) != 0) {
    return errno_status("statvfs", path);
  }
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  const uint64_t blocks = info.f_bavail;
  const uint64_t block_bytes = std::max<uint64_t>(info.f_frsize, 1);
  return static_cast<int64_t>(blocks > kMax / block_bytes ? kMax : blocks * block_bytes);
}

std::string join_path(std::string_view a, std::string_view b) {
  if (a.empty() || b.starts_with('/')) return std::string(b);
  std::string path(a);
  if (b.empty()) return path;
  if (path.back() != '/') path += '/';
  path += b;
  return path;
}

std::string parent_path(std::string_view path) {
  const auto drop_slashes = [&] {
    while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  };
  drop_slashes();
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  path = path.substr(0, slash + 1);
  drop_slashes();
  return std::string(path);
}

Fd& Fd::operator=(Fd&& o) noexcept {
  if (this != &o) {
    reset();
    fd_ = o.release();
  }
  return *this;
}

int Fd::release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

void Fd::reset() {
  if (!valid()) return;
  const int saved = errno;  // so that an owner may go out of scope before errno is read
  close(release());
  errno = saved;
}

Result<Fd> lock_file(const std::string& path) {
  Fd fd = open_fd(path, O_RDWR | O_CREAT, 0644);
  if (!fd.valid()) return errno_status("open lock", path);
  if (retry([&] { return flock(fd.get(), LOCK_EX | LOCK_NB); }) == 0) return fd;
  if (errno == EWOULDBLOCK) {
    return failed_precondition("lock " + printable(path, 512) + ": held by another process");
  }
  return errno_status("lock", path);
}

}  // namespace swax
