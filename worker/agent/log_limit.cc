#include "worker/agent/log_limit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/base/files.h"
#include "proto/base/text.h"

namespace swax {
namespace {

constexpr int64_t kBlockBytes = 4096;  // holes are made of whole blocks
constexpr int64_t kStatBlockBytes = 512;

int64_t whole_blocks(int64_t bytes) { return bytes / kBlockBytes * kBlockBytes; }

Status log_error_of(const std::string& what, const std::string& path) {
  return internal_error(what + " " + printable(path, 400) + ": " + std::strerror(errno));
}

}  // namespace

Result<int64_t> limit_log(const std::string& path, int64_t bytes_max) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return int64_t{0};
    return log_error_of("look at", path);
  }
  if (int64_t{info.st_blocks} * kStatBlockBytes <= bytes_max) return int64_t{0};
  const Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return log_error_of("open", path);
  const int64_t begin = whole_blocks(bytes_max / 8);
  const int64_t end = whole_blocks(int64_t{info.st_size} - bytes_max / 2);
  if (end <= begin) return int64_t{0};
  const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (::fallocate(fd.get(), mode, begin, end - begin) == 0) return end - begin;
  if (errno != EOPNOTSUPP && errno != ENOSYS) return log_error_of("shorten", path);
  if (::ftruncate(fd.get(), begin) != 0) return log_error_of("cut", path);
  return int64_t{info.st_size} - begin;
}

}  // namespace swax
